"""Many messages on one WebSocket: interleaved, cut, hostile, waiting, drained."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

import parley
from parley import Settings
from parley.envelope.binding import EnvelopeBinding
from parley.model.service import Caller
from parley.security import Bearer
from parley.server.run import serving
from tests.kit.waiting import until
from tests.server.envelope.agents import Gates, knowledge_base
from tests.server.envelope.speaking import (
    SUBPROTOCOL,
    TRANSPORTS,
    by_post,
    by_socket,
    request,
    sequences,
)
from tests.server.envelope.speaking import statuses as statuses_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def id() -> str:
    return uuid.uuid4().hex


def address(url: str) -> str:
    return f"{url.replace('http', 'ws', 1)}/envelope"


async def test_many_requests_are_under_way_on_one_socket(url: str, gates: Gates, id: str) -> None:
    async with by_socket(url) as socket:
        names = [f"{id} {n}" for n in range(20)]
        for name in names:
            await socket.send(request("gated", {"name": name}, id=name, sub="command"))
        for name in names:
            assert (await socket.next(name))["payload"]["status"] == "accepted"
        (quick,) = await socket.ask(request("search", {"query": id}, id=id))
        assert quick["payload"]["status"] == "success"
        for name in reversed(names):
            gates.of(name).set()
            answers = await socket.rest(name)
            assert statuses_of(answers)[-1] == "EVENT success"
            assert sequences(answers) == [*range(1, len(answers) + 1)]


@pytest.mark.parametrize("again", ["message", "subscription", "post"])
async def test_a_stream_that_is_cut_goes_on_without_loss_or_doubles(
    url: str, gates: Gates, id: str, again: str
) -> None:
    message = request("report", {"name": id, "chunks": 6}, id=id, sub="command")
    async with by_socket(url) as socket:
        await socket.send(message)
        seen = [await socket.next(id) for _ in range(5)]
        socket.socket.transport.abort()
    last = sequences(seen)[-1]
    task = seen[0]["payload"]["metadata"]["taskId"]
    gates.of(id).set()
    if again == "subscription":
        message = request("a2a.SubscribeToTask", {"id": task}, id=f"{id} 2", after=last)
    else:
        message = request(
            "report", {"name": id, "chunks": 6}, id=id, sub="command", after=last, retryCount=1
        )
    async with (by_post if again == "post" else by_socket)(url) as other:
        rest = await other.ask(message)
    numbers = sequences(seen) + sequences(rest)
    assert numbers == [*range(1, len(numbers) + 1)]
    results = [a["payload"]["results"][0] for a in [*seen, *rest] if a["payload"]["results"]]
    chunks = [
        part["text"]
        for each in results
        if "artifactUpdate" in each
        for part in each["artifactUpdate"]["artifact"].get("parts", [])
    ]
    assert "".join(chunks) == "0 1 2 3 4 5 "
    assert gates.calls[id] == 1


async def test_a_closed_socket_leaves_nothing_behind(id: str) -> None:
    gates = Gates()
    app = parley.asgi(knowledge_base(gates), bindings=[EnvelopeBinding(max_requests_per_socket=4)])
    async with serving(app) as url:
        for n in range(3):
            async with by_socket(url) as socket:
                for m in range(10):
                    name = f"{id} {n} {m}"
                    await socket.send(request("gated", {"name": name}, id=name))
                if n:
                    await until(lambda n=n: f"{id} {n} 3" in gates.began, 5)
        await until(lambda: app.bindings["envelope"].requests.load == 0, 5)
        assert app.request_bytes.total == 0
        async with by_socket(url) as socket:
            (answer,) = await socket.ask(request("search", {"query": "q"}, id=id))
            assert answer["payload"]["status"] == "success"
        for name in gates.began:
            gates.of(name).set()


async def test_a_closed_socket_cancels_no_task(url: str, gates: Gates, id: str) -> None:
    async with by_socket(url) as socket:
        await socket.send(request("gated", {"name": f"{id} n"}, id=f"{id} n", sub="notification"))
        await socket.send(request("gated", {"name": id}, id=id))
        await until(lambda: id in gates.began, 5)
    await until(lambda: f"{id} n" in gates.began, 5)
    gates.of(id).set()
    gates.of(f"{id} n").set()
    async with by_socket(url) as socket:
        (answer,) = await socket.ask(request("gated", {"name": id}, id=id, retryCount=1))
        assert answer["payload"]["results"] == [{"text": f"through {id}"}]
    assert gates.calls[id] == gates.calls[f"{id} n"] == 1


async def test_messages_that_cannot_be_read_are_answered_until_they_are_too_many(
    url: str, id: str
) -> None:
    async with by_socket(url) as socket:
        for text, known in (
            ("{", ""),
            ("[]", ""),
            ('{"messageId": 1}', ""),
            (json.dumps({"messageId": id}), id),
            (json.dumps(request("search", id=f"{id} 2") | {"version": "2.0"}), f"{id} 2"),
            ("[" * 5000, ""),
            ('{"messageId": "\ud800"}'.encode("utf-8", "replace").decode(), "?"),
        ):
            await socket.send(text)
            payload = (await socket.next(known))["payload"]
            assert payload["status"] == "error"
            assert payload["error"]["message"]
        (answer,) = await socket.ask(request("search", {"query": id}, id=f"{id} 3"))
        assert answer["payload"]["status"] == "success"
        with suppress(ConnectionClosed):
            for _ in range(40):
                await socket.send("{")
        await asyncio.wait_for(socket.socket.wait_closed(), 5)
        assert socket.socket.close_code == 1008
        assert len(socket.order) == 33  # each was answered, also the last


async def test_answers_to_nothing_are_ignored(url: str, id: str) -> None:
    async with by_socket(url) as socket:
        for kind in ("RESPONSE", "EVENT"):
            message = request("x", id=f"{id} {kind}", kind=kind)
            message["payload"] = {"status": "success", "results": [], "metadata": {}}
            message["message"]["correlationId"] = "nobody asked"
            await socket.send(message)
        (answer,) = await socket.ask(request("search", {"query": id}, id=id))
        assert answer["payload"]["status"] == "success"
        assert len(socket.order) == 1


async def test_an_event_of_a_client_is_for_the_handler(id: str) -> None:
    heard: list[Any] = []

    async def note(message: Any, context: Any) -> Any:
        if message.payload.action != "stock.changed":
            return NotImplemented
        heard.append(message.payload.parameters)
        return {"nobody": "reads this"}

    app = parley.asgi(knowledge_base(Gates()), bindings=[EnvelopeBinding(handler=note)])
    async with serving(app) as url:
        async with by_socket(url) as socket:
            for action in ("stock.changed", "unknown"):
                await socket.send(request(action, {"n": 1}, id=f"{id} {action}", kind="EVENT"))
            await until(lambda: heard, 5)
            await socket.ask(request("search", {"query": "q"}, id=id))
            assert len(socket.order) == 1
        async with by_post(url) as post:
            await post.ask(request("stock.changed", {"n": 2}, id=f"{id} 3", kind="EVENT"))
    assert heard == [{"n": 1}, {"n": 2}]


async def test_a_socket_that_names_subprotocols_names_v1(url: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with connect(address(url), subprotocols=["chat"], proxy=None):  # type: ignore[list-item]
            pass
    response = refused.value.response
    assert response.status_code == 400
    error = json.loads(response.body or b"{}")["payload"]["error"]
    assert SUBPROTOCOL in error["message"]
    async with connect(address(url), proxy=None) as socket:
        assert socket.subprotocol is None
        await socket.send(json.dumps(request("search", {"query": "q"}, id=uuid.uuid4().hex)))
        assert json.loads(await socket.recv())["message"]["type"] == "RESPONSE"
    async with connect(address(url), subprotocols=["chat", SUBPROTOCOL], proxy=None) as socket:  # type: ignore[list-item]
        assert socket.subprotocol == SUBPROTOCOL


async def test_another_client_library_is_served_too(url: str, id: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address(url), protocols=[SUBPROTOCOL]) as socket,
    ):
        assert socket.protocol == SUBPROTOCOL
        await socket.send_json(request("search", {"query": "q"}, id=id))
        answer = await socket.receive_json(timeout=5)
        assert answer["message"]["correlationId"] == id
        assert answer["payload"]["metadata"]["totalResults"] == 3


async def test_a_caller_is_authenticated_before_the_upgrade() -> None:
    agent = knowledge_base(Gates(), security=Bearer({"good": Caller(id="ada")}.get))
    settings = Settings(auth_failures_per_minute=3)
    async with serving(parley.asgi(agent, settings=settings)) as url:

        async def status(token: str) -> tuple[int, str]:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            with pytest.raises(InvalidStatus) as refused:
                async with connect(
                    address(url),
                    subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
                    additional_headers=headers,
                    proxy=None,
                ):
                    pass
            response = refused.value.response
            assert json.loads(response.body or b"{}")["payload"]["status"] == "error"
            return response.status_code, response.headers.get("www-authenticate", "")

        assert await status("") == (401, "Bearer")
        async with by_socket(url, authorization="Bearer good") as socket:
            message = request("search", {"query": "q"}, id="1", agent="ada")
            (answer,) = await socket.ask(message)
            assert answer["payload"]["status"] == "success"
        for _ in range(3):
            assert (await status("bad"))[0] == 401
        assert (await status("bad"))[0] == 429
        async with aiohttp.ClientSession() as session:
            headers = {"authorization": "Bearer bad"}
            async with session.post(f"{url}/envelope", json={}, headers=headers) as answer:
                assert answer.status == 429
                assert (await answer.json())["payload"]["error"]["retryAfter"] > 0


async def test_a_socket_ends_with_the_credentials_that_opened_it() -> None:
    expires = [2e9]

    def who(scope: Any) -> Caller:
        return Caller("ada", True, {"exp": expires[0]})

    app = parley.asgi(knowledge_base(Gates()), caller=who)
    async with serving(app) as url:
        for status, code in (("success", 1000), ("error", 1008)):
            async with by_socket(url) as socket:
                message = request("search", {"query": "q"}, id=status, agent="ada")
                (answer,) = await socket.ask(message)
                assert answer["payload"]["status"] == status
                if code == 1008:
                    assert answer["payload"]["error"]["code"] == "UNAUTHENTICATED"
                    await asyncio.wait_for(socket.socket.wait_closed(), 5)
            assert socket.socket.close_code == code
            expires[0] = 1.0


async def test_an_address_that_may_not_see_agents_finds_nothing() -> None:
    settings = Settings(restrict={"agents": ["192.0.2.0/24"]})
    async with serving(parley.asgi(knowledge_base(Gates()), settings=settings)) as url:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(address(url), subprotocols=[SUBPROTOCOL], proxy=None):  # type: ignore[list-item]
                pass
        assert refused.value.response.status_code == 404
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/envelope", json=request("search", id="1")) as answer,
        ):
            assert answer.status == 404


async def test_tenants_and_assistants_have_the_binding_too() -> None:
    gates = Gates()
    app = parley.asgi(
        {"/kb": knowledge_base(gates)}, tenants={"acme": knowledge_base(gates, key="acme-kb")}
    )
    async with serving(app) as url:
        for path in ("/kb", "/acme", "/a2a/kb", "/a2a/acme", "/kb/anyone"):
            for by in (by_post, by_socket):
                async with by(f"{url}{path}") as speaker:
                    id = uuid.uuid4().hex
                    (answer,) = await speaker.ask(request("search", {"query": "q"}, id=id))
                    assert answer["payload"]["status"] == "success", path
    with pytest.raises(ValueError, match="envelope"):
        parley.asgi(tenants={"envelope": knowledge_base(gates)})


async def test_waiting_requests_run_by_priority_and_a_full_queue_says_when(id: str) -> None:
    gates = Gates()
    binding = EnvelopeBinding(max_requests_per_socket=8, max_requests_waiting=3)
    async with (
        serving(parley.asgi(knowledge_base(gates), bindings=[binding])) as url,
        by_socket(url) as socket,
    ):
        held = [f"held {n}" for n in range(7)]
        for name in held:
            await socket.send(request("gated", {"name": name}, id=name))
        await until(lambda: len(gates.began) == 7, 5)
        waiting = ["low", "normal", "urgent"]
        for name in waiting:
            await socket.send(request("gated", {"name": name}, id=name, priority=name))
        (full,) = await socket.ask(request("gated", {"name": "x"}, id="x", priority="urgent"))
        error = full["payload"]["error"]
        assert (error["code"], error["retryAfter"]) == ("OVERLOADED", 1000)
        # What waits for no turn goes past: heartbeats, and reading or canceling a task.
        beat = await socket.ask(request("x", id="beat", kind="HEARTBEAT"))
        assert beat[0]["payload"]["load"] > 0
        (listed,) = await socket.ask(request("a2a.ListTasks", id="list"))
        assert listed["payload"]["status"] == "success"
        assert gates.began == [*gates.began[:7]]
        for name in (held[0], "urgent", "normal"):
            gates.of(name).set()
            await socket.rest(name)
            await until(lambda name=name: len(gates.began) > gates.began.index(name), 5)
        await until(lambda: len(gates.began) == 10, 5)
        assert gates.began[7:] == ["urgent", "normal", "low"]
        for name in (*held, "low"):
            gates.of(name).set()


async def test_limits_of_the_agent_hold_and_are_told(id: str) -> None:
    gates = Gates()
    agent = knowledge_base(gates, limits=["2/hour per caller"])
    async with serving(parley.asgi(agent)) as url, by_socket(url) as socket:
        (answer,) = await socket.ask(request("search", {"query": "q"}, id=f"{id} 1"))
        assert ";r=1" in answer["payload"]["metadata"]["rateLimits"]["ratelimit"]
        async with by_post(url) as post:
            await post.ask(request("search", {"query": "q"}, id=f"{id} 2"))
        (refused,) = await socket.ask(request("search", {"query": "q"}, id=f"{id} 3"))
        error = refused["payload"]["error"]
        assert error["code"] == "TOO_MANY_REQUESTS"
        assert error["retryAfter"] > 0
        assert ";r=0" in refused["payload"]["metadata"]["rateLimits"]["ratelimit"]
    assert sum(gates.calls.values()) == 2


async def test_a_draining_server_answers_what_is_under_way_and_says_goodbye(id: str) -> None:
    gates = Gates()
    app = parley.asgi(knowledge_base(gates))
    async with serving(app) as url:
        query = await connect(address(url), subprotocols=[SUBPROTOCOL], proxy=None).__aenter__()  # type: ignore[list-item]
        await query.send(json.dumps(request("gated", {"name": id}, id=id)))
        async with by_socket(url) as stream, by_socket(url) as idle:
            await stream.send(request("gated", {"name": f"{id} 2"}, id=f"{id} 2", sub="command"))
            assert (await stream.next(f"{id} 2"))["payload"]["status"] == "accepted"
            await until(lambda: len(gates.began) == 2, 5)
            app.lifecycle.drain()
            await asyncio.wait_for(idle.socket.wait_closed(), 5)
            assert idle.socket.close_code == 1012
            await asyncio.wait_for(stream.socket.wait_closed(), 5)
            assert stream.socket.close_code == 1012
            await query.send(json.dumps(request("search", {"query": "q"}, id="late")))
            refused = json.loads(await asyncio.wait_for(query.recv(), 5))
            assert refused["payload"]["error"]["code"] == "OVERLOADED"
            assert refused["payload"]["error"]["retryAfter"] > 0
            gates.of(id).set()
            answer = json.loads(await asyncio.wait_for(query.recv(), 5))
            assert answer["message"]["correlationId"] == id
            assert answer["payload"]["status"] == "success"
            await asyncio.wait_for(query.wait_closed(), 5)
            assert query.close_code == 1012
        gates.of(f"{id} 2").set()


async def test_what_outlasts_the_grace_period_is_told_so(id: str) -> None:
    gates = Gates()
    app = parley.asgi(knowledge_base(gates), drain=2.0)
    async with contextlib.AsyncExitStack() as stack:
        server = contextlib.AsyncExitStack()
        url = await server.enter_async_context(serving(app, grace=1))
        socket = await stack.enter_async_context(by_socket(url))
        await socket.send(request("gated", {"name": id}, id=id))
        await until(lambda: id in gates.began, 5)
        await server.aclose()
        (answer,) = await socket.rest(id)
        assert answer["payload"]["error"]["code"] == "OVERLOADED"
        await asyncio.wait_for(socket.socket.wait_closed(), 5)
        assert socket.socket.close_code == 1012


async def test_a_reader_that_does_not_read_holds_up_its_own_events_alone(
    url: str, gates: Gates, id: str, served: Any
) -> None:
    gates.of(id).set()
    slow = await connect(
        address(url), subprotocols=[SUBPROTOCOL], max_queue=1, proxy=None
    ).__aenter__()  # type: ignore[list-item]
    for n in range(8):
        message = request("report", {"name": id, "chunks": 300}, id=f"{id} {n}", sub="command")
        await slow.send(json.dumps(message))
    async with by_socket(url) as other:
        (answer,) = await other.ask(request("search", {"query": id}, id=f"{id} other"))
        assert answer["payload"]["status"] == "success"
    numbers: dict[str, list[int]] = {}
    while len([1 for each in numbers.values() if each[-1] == -1]) < 8:
        answer = json.loads(await asyncio.wait_for(slow.recv(), 5))
        name, payload = answer["message"]["correlationId"], answer["payload"]
        if answer["message"]["type"] == "EVENT":
            numbers.setdefault(name, []).append(payload["metadata"]["sequence"])
            if payload["status"] == "success":
                found = numbers[name]
                assert found == [*range(1, len(found) + 1)]
                found.append(-1)
    await slow.close()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_the_timeout_of_a_request_runs_while_it_waits_for_room(transport: str) -> None:
    gates = Gates()
    app = parley.asgi(knowledge_base(gates), bindings=[EnvelopeBinding(max_requests=1)])
    async with serving(app) as url, by_socket(url) as busy, TRANSPORTS[transport](url) as speaker:
        await busy.send(request("gated", {"name": "a"}, id="a"))
        await until(lambda: gates.began)
        (late,) = await speaker.ask(request("search", {"query": "late"}, id="late", timeout=50))
        assert late["payload"]["error"]["code"] == "DEADLINE_EXCEEDED"
        assert late["message"]["correlationId"] == "late"
        gates.of("a").set()
        assert (await busy.next("a"))["payload"]["status"] == "success"
    assert not gates.calls["late"]
