"""How many may wait or read at once, and how many of those may be one caller."""

import asyncio
import contextlib

import pytest

from parley.model.errors import OverloadedError
from parley.model.service import CallContext, Caller, StreamItem
from parley.server.app import Settings
from parley.server.limits import ConcurrencyLimiter
from parley.server.run import serving
from tests.kit.http import MESSAGE, call, connection, post
from tests.kit.scripted import Scripted, Standstill, app_of, reply, task

pytestmark = pytest.mark.anyio


def who(scope):
    name = dict(scope["headers"]).get(b"x-user", b"").decode()
    return Caller(id=name, authenticated=bool(name))


async def test_one_caller_gets_a_share_of_the_streams():
    still = Standstill(StreamItem(task(), 1))
    settings = Settings(max_streams=4, caller_share=0.5)
    app = app_of(Scripted(subscribe_to_task=still), settings=settings, identify=who)
    async with serving(app) as url, contextlib.AsyncExitStack() as stack:
        for user in ("ada", "ada", "eve"):
            http = await stack.enter_async_context(connection(url))
            await http.subscribe(headers={"x-user": user})
        refused = await post(url, call("SubscribeToTask"), {"x-user": "ada"})
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "2 streams are open for this caller" in refused.error["message"]
        http = await stack.enter_async_context(connection(url))
        await http.subscribe(headers={"x-user": "eve"})
        refused = await post(url, call("SubscribeToTask"), {"x-user": "bob"})
        assert "4 streams are open, which is all" in refused.error["message"]


async def test_senders_who_wait_are_limited_in_number():
    gate, waiting = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(request, context):
        waiting.release()
        await gate.wait()
        return reply()

    service = Scripted(send_message=slow)
    app = app_of(
        service, settings=Settings(max_blocking_requests=3, caller_share=0.7), identify=who
    )
    async with serving(app) as url, asyncio.TaskGroup() as group:
        senders = [
            group.create_task(post(url, call("SendMessage"), {"x-user": user}))
            for user in ("ada", "ada", "")
        ]
        async with asyncio.timeout(20):
            for _ in senders:
                await waiting.acquire()
        for user, words in (("ada", "all that this server"), ("eve", "all that this server")):
            refused = await post(url, call("SendMessage"), {"x-user": user})
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert refused.error["code"] == -32012
            assert words in refused.error["message"]
        gate.set()
        answers = [(await sender).json for sender in senders]
        assert all("result" in answer for answer in answers)
        assert "result" in (await post(url, call("SendMessage"), {"x-user": "ada"})).json


async def test_senders_who_do_not_wait_take_no_place():
    gate = asyncio.Event()

    async def slow(request, context):
        if not (request.configuration and request.configuration.return_immediately):
            waiting.release()
            await gate.wait()
        return reply()

    waiting = asyncio.Semaphore(0)
    app = app_of(Scripted(send_message=slow), settings=Settings(max_blocking_requests=1))
    at_once = call(
        "SendMessage", {"message": MESSAGE, "configuration": {"returnImmediately": True}}
    )
    said = {"messageId": "m", "role": "user", "kind": "message", "parts": []}
    said["parts"] = [{"kind": "text", "text": "hi"}]
    older = call("message/send", {"message": said, "configuration": {"blocking": False}})
    async with serving(app) as url, asyncio.TaskGroup() as group:
        sender = group.create_task(post(url, call("SendMessage")))
        async with asyncio.timeout(20):
            await waiting.acquire()
        assert (await post(url, call("SendMessage"))).status == 503
        assert "result" in (await post(url, at_once)).json
        assert "result" in (await post(url, older, {"a2a-version": "0.3"})).json
        gate.set()
        assert "result" in (await sender).json


def test_namesakes_of_two_issuers_have_a_share_each():
    limiter = ConcurrencyLimiter("senders wait", 4, 0.25)
    bobs = [Caller("bob", True, issuer=issuer) for issuer in ("", "one", "two")]
    with contextlib.ExitStack() as stack:
        for bob in [*bobs, Caller("bob")]:
            stack.enter_context(limiter.slot(CallContext(caller=bob)))
        for bob in bobs:
            with pytest.raises(OverloadedError), limiter.slot(CallContext(caller=bob)):
                pass


def test_slots_are_released_and_shared():
    limiter = ConcurrencyLimiter("senders wait", 4, 0.5)
    ada = CallContext(caller=Caller(id="ada"))
    here = CallContext(caller=Caller(id="ada"), tenant="other")
    with limiter.slot(ada), limiter.slot(ada):
        with (
            pytest.raises(OverloadedError, match="2 senders wait for this caller"),
            limiter.slot(ada),
        ):
            pass
        with (
            limiter.slot(here),
            limiter.slot(CallContext()),
            pytest.raises(OverloadedError, match="4 senders wait"),
            limiter.slot(CallContext()),
        ):
            pass
    with pytest.raises(KeyError), limiter.slot(ada):
        raise KeyError
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(limiter.slot(CallContext()))
