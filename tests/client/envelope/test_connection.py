"""Requests over WebSockets that come and go, and over HTTP where there are none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

import parley
from parley.client.errors import AuthenticationRequired, ConnectionClosed, Timeout
from parley.envelope import EnvelopeFailed, LinkSettings, NotFromAgent, SocketRefused
from parley.model.backoff import Backoff
from tests.client.envelope.scripted import (
    Peer,
    ScriptedAgent,
    Sent,
    answer_to,
    echo,
    scripted_agent,
)
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio

QUICK = Backoff(0.01, 0.05)


def quick(**settings: Any) -> LinkSettings:
    return LinkSettings(**{"backoff": QUICK, "heartbeat": 5.0, **settings})


async def test_many_requests_share_a_socket_and_each_gets_its_own_answer() -> None:
    waiting: list[tuple[Peer, Sent]] = []

    async def in_reverse(peer: Peer, request: Sent) -> None:
        waiting.append((peer, request))
        if len(waiting) == 20:
            for each in reversed(waiting):
                await echo(*each)

    async with scripted_agent(in_reverse) as agent, parley.envelope.connect(agent.url) as client:
        asked = [client.request("echo", {"n": n}) for n in range(20)]
        answers = await asyncio.gather(*asked)
    assert [answer.result for answer in answers] == [{"n": n} for n in range(20)]
    assert len(agent.upgrades) == 1
    assert {each["source"]["agentId"] for each in agent.received} == {client.source.agent_id}


async def test_more_requests_than_may_be_under_way_wait() -> None:
    under_way, most = 0, 0

    async def slow(peer: Peer, request: Sent) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        await echo(peer, request)

    async with scripted_agent(slow) as agent:
        settings = quick(max_in_flight=3)
        async with parley.envelope.connect(agent.url, settings=settings) as client:
            await asyncio.gather(*[client.request("echo") for _ in range(12)])
    assert most <= 3


async def test_an_unanswered_request_is_sent_again_with_the_same_id() -> None:
    async def cut_twice(peer: Peer, request: Sent) -> None:
        if len(agent.requests) < 3:
            peer.cut()
        else:
            await echo(peer, request)

    async with (
        scripted_agent(cut_twice) as agent,
        parley.envelope.connect(agent.url, settings=quick()) as client,
    ):
        answer = await client.request("echo", {"a": 1}, timeout=20)
    assert answer.result == {"a": 1}
    assert len({request["messageId"] for request in agent.requests}) == 1
    metadata = [request["payload"].get("metadata", {}) for request in agent.requests]
    assert [each.get("retryCount", 0) for each in metadata] == [0, 1, 2]
    assert metadata[0]["timeout"] >= metadata[1]["timeout"] >= metadata[2]["timeout"]
    assert metadata[0]["timeout"] <= 20_000


async def test_a_command_goes_on_after_its_last_event() -> None:
    async def cut_in_the_middle(peer: Peer, request: Sent) -> None:
        after = request["payload"]["metadata"].get("after", 0)
        await peer.answer(request, "accepted", metadata={"taskId": "t"})
        for number in range(after + 1, 7):
            await peer.event(request, number, "success" if number == 6 else "partial")
            if number == after + 2 and len(agent.requests) < 4:
                peer.cut()
                return

    async with (
        scripted_agent(cut_in_the_middle) as agent,
        parley.envelope.connect(agent.url, settings=quick()) as client,
    ):
        stream = client.stream("work", sub_type="command")
        events = [event async for event in stream]
    assert [event.status for event in events] == ["accepted", *["partial"] * 5, "success"]
    assert [event.sequence for event in events[1:]] == [1, 2, 3, 4, 5, 6]
    assert stream.task_id == "t"
    assert events[-1].is_final


async def test_duplicate_and_reordered_messages_reach_the_caller_once() -> None:
    async def disorder(peer: Peer, request: Sent) -> None:
        events = [
            answer_to(request, "EVENT", "partial", metadata={"sequence": n}) for n in range(1, 6)
        ]
        for index in (1, 0, 1, 3, 2, 2, 4, 0):  # the same messages, some twice
            await peer.send(events[index])
        again = answer_to(request, "EVENT", "partial", metadata={"sequence": 3})
        await peer.send(again)  # the same event under another id
        await peer.answer(request)
        await peer.answer(request, results=["late"])

    async with scripted_agent(disorder) as agent, parley.envelope.connect(agent.url) as client:
        events = [event async for event in client.stream("work")]
        assert sorted(event.sequence or 0 for event in events[:-1]) == [1, 2, 3, 4, 5]
        assert (await client.request("work")).results == ()


async def test_a_stream_without_numbers_is_not_told_twice() -> None:
    async def cut_after_one(peer: Peer, request: Sent) -> None:
        await peer.event(request, None)
        await let_time_pass(0.05)
        peer.cut()

    async with (
        scripted_agent(cut_after_one) as agent,
        parley.envelope.connect(agent.url, settings=quick()) as client,
    ):
        with pytest.raises(parley.ClientError, match=r"closed|broke"):
            _ = [event async for event in client.stream("work")]
    assert len(agent.requests) == 1


async def test_a_reader_that_is_too_slow_takes_the_stream_up_again() -> None:
    async def flood(peer: Peer, request: Sent) -> None:
        after = request["payload"]["metadata"].get("after", 0)
        for number in range(after + 1, 51):
            await peer.event(request, number)
        await peer.answer(request)

    async with scripted_agent(flood) as agent:
        settings = quick(max_waiting=8, retries=20)
        async with parley.envelope.connect(agent.url, settings=settings) as client:
            numbers = []
            async for event in client.stream("work"):
                numbers.append(event.sequence)
                # Other requests are answered all the time.
                assert (await client.heartbeat()).payload == {"load": 0.5}
    assert numbers == [*range(1, 51), None]
    assert len(agent.requests) > 1
    assert len(agent.upgrades) == 1


async def test_a_silent_agent_is_disconnected_and_another_connection_made() -> None:
    async def silent_at_first(peer: Peer, request: Sent) -> None:
        if len(agent.upgrades) > 1:
            agent.answers_heartbeats = True
            await echo(peer, request)

    async with scripted_agent(silent_at_first) as agent:
        agent.answers_heartbeats = False
        settings = quick(heartbeat=0.05, tolerance=2, ping=None)
        async with parley.envelope.connect(agent.url, settings=settings) as client:
            assert (await client.request("echo", [1])).results == ([1],)
    assert len(agent.upgrades) == 2
    assert agent.heartbeats


async def test_a_heartbeat_of_the_agent_is_answered_once_and_not_for_ever() -> None:
    async def nothing(peer: Peer, request: Sent) -> None: ...

    async with scripted_agent(nothing) as agent, parley.envelope.connect(agent.url) as client:
        ours = answer_to({"messageId": ""}, "HEARTBEAT", "")
        ours["message"].pop("correlationId")
        for number in range(300):
            await agent.peers[0].send({**ours, "messageId": f"beat-{number}", "payload": {}})
        for _ in range(2):
            assert (await client.heartbeat()).payload == {"load": 0.5}
        answered = [each["message"].get("correlationId") for each in agent.heartbeats]
    assert list(filter(None, answered)) == [f"beat-{number}" for number in range(120)]


async def test_a_timeout_is_the_callers_and_names_the_task() -> None:
    async def never(peer: Peer, request: Sent) -> None:
        await peer.answer(request, "accepted", metadata={"taskId": "t-1"})

    async with scripted_agent(never) as agent, parley.envelope.connect(agent.url) as client:
        with pytest.raises(Timeout) as caught:
            _ = [each async for each in client.stream("work", sub_type="command", timeout=0.1)]
        assert caught.value.task_id == "t-1"
        agent.script = _nothing
        with pytest.raises(Timeout):
            await client.request("work", timeout=0.05)
        agent.script = echo
        assert (await client.request("echo", 1, timeout=5)).result == 1


async def _nothing(peer: Peer, request: Sent) -> None: ...


async def test_errors_of_the_agent_are_raised_with_what_it_says() -> None:
    async def refuse(peer: Peer, request: Sent) -> None:
        error = {
            "code": "INVALID_PARAMS",
            "message": "no",
            "retryAfter": 90_000,
            "violations": [{"field": "payload.parameters.a", "description": "a number"}],
        }
        await peer.answer(request, "error", error=error, metadata={"taskId": "t"})

    async with scripted_agent(refuse) as agent, parley.envelope.connect(agent.url) as client:
        with pytest.raises(EnvelopeFailed, match="INVALID_PARAMS: no") as caught:
            await client.request("echo")
    failed = caught.value
    assert (failed.code, failed.retry_after, failed.task_id) == ("INVALID_PARAMS", 90.0, "t")
    assert failed.violations[0].field == "payload.parameters.a"
    assert isinstance(failed.a2a_error, parley.A2AError)


async def test_a_refusal_until_a_time_is_waited_for() -> None:
    waits = [10, 60_000]

    async def once(peer: Peer, request: Sent) -> None:
        if len(agent.requests) == 1:
            error = {"code": "OVERLOADED", "message": "busy", "retryAfter": waits.pop(0)}
            await peer.answer(request, "error", error=error)
        else:
            await echo(peer, request)

    async with scripted_agent(once) as agent, parley.envelope.connect(agent.url) as client:
        assert (await client.request("echo", 2)).result == 2
        agent.received.clear()
        with pytest.raises(EnvelopeFailed, match="OVERLOADED"):  # no time to wait for it
            await client.request("echo", timeout=30.0)


@pytest.mark.parametrize("status", [400, 404, 426, 500, 503])
async def test_a_server_or_proxy_that_opens_no_socket_is_asked_by_http(status: int) -> None:
    async with scripted_agent(_events) as agent:
        agent.refuse = lambda _: web.Response(status=status)
        async with parley.envelope.connect(agent.url, settings=quick()) as client:
            assert not client.uses_socket
            events = [event async for event in client.stream("work")]
            assert [event.sequence for event in events] == [1, 2, 3, None]
            await client.notify("note", {"a": 1})
            assert len(agent.upgrades) == 1  # not tried again for every request
        with pytest.raises(SocketRefused, match=f"answered {status}"):
            await parley.envelope.connect(agent.url, transport="socket")


async def _events(peer: Peer, request: Sent) -> None:
    for number in (1, 2, 3):
        await peer.event(request, number)
    await peer.answer(request)


async def test_the_socket_is_used_again_when_it_can_be_had() -> None:
    async with scripted_agent(echo) as agent:
        agent.refuse = lambda _: web.Response(status=502)
        settings = quick(socket_again=0.01)
        async with parley.envelope.connect(agent.url, settings=settings) as client:
            await client.request("echo")
            assert not client.uses_socket
            agent.refuse = lambda _: None

            async def is_back() -> bool:
                await client.request("echo")
                return client.uses_socket

            await until(is_back)


async def test_a_server_that_never_answers_the_handshake_is_asked_by_http() -> None:
    async with scripted_agent(echo) as agent:
        stuck = asyncio.Event()
        upgrade = agent.upgrade

        async def hang(request: web.Request) -> web.StreamResponse:
            await stuck.wait()
            return await upgrade(request)

        agent.upgrade = hang  # type: ignore[method-assign]
        async with _with_upgrade(agent, hang) as url:
            settings = quick(handshake=0.05)
            http = parley.client.bindings.http.HttpTransport(connect_timeout=0.1)
            async with http, parley.envelope.connect(url, settings=settings, http=http) as client:
                assert (await client.request("echo", 1)).result == 1
                assert not client.uses_socket
            stuck.set()


async def test_redirects_of_the_upgrade_are_not_followed() -> None:
    async with scripted_agent(echo) as thief, scripted_agent(echo) as agent:
        agent.refuse = lambda _: web.Response(status=307, headers={"Location": thief.url})
        async with parley.envelope.connect(agent.url, bearer="secret") as client:
            assert (await client.request("echo", 1)).result == 1
    assert thief.upgrades == []
    assert agent.upgrades[0]["Authorization"] == "Bearer secret"


async def test_refused_credentials_are_an_error_and_no_fallback() -> None:
    async with scripted_agent(echo) as agent:
        agent.refuse = lambda _: web.Response(
            status=401, headers={"WWW-Authenticate": 'Bearer realm="x"'}
        )
        with pytest.raises(AuthenticationRequired, match="credentials"):
            await parley.envelope.connect(agent.url, bearer="wrong")
    assert agent.received == []


async def test_closing_ends_what_is_under_way() -> None:
    async with scripted_agent(_nothing) as agent:
        async with parley.envelope.connect(agent.url) as client:
            asked = asyncio.create_task(client.request("work"))
            await until(lambda: len(agent.requests) == 1)
        with pytest.raises(ConnectionClosed):
            await asked
        with pytest.raises(ConnectionClosed):
            await client.request("work")
        await until(lambda: agent.open_sockets == 0)


async def test_messages_that_are_none_are_named_and_do_not_hang_the_caller() -> None:
    async def broken(peer: Peer, request: Sent) -> None:
        answer = answer_to(request, "RESPONSE", "success")
        del answer["source"]
        await peer.send(answer)

    async with scripted_agent(broken) as agent, parley.envelope.connect(agent.url) as client:
        with pytest.raises(parley.A2AError, match="source"):
            await client.request("echo")
        agent.script = echo
        assert (await client.request("echo", 3)).result == 3


async def test_an_answer_larger_than_the_limit_is_refused() -> None:
    async def huge(peer: Peer, request: Sent) -> None:
        await peer.answer(request, results=["x" * 5000])

    async with scripted_agent(huge) as agent:
        settings = quick(max_message=4096)
        async with parley.envelope.connect(agent.url, settings=settings) as client:
            with pytest.raises(parley.ClientError, match="larger"):
                await client.request("echo")
            with pytest.raises(parley.ClientError, match="this side sends at most"):
                await client.request("echo", "x" * 5000)


async def test_only_answers_signed_by_the_agents_key_count() -> None:
    key = parley.envelope.EnvelopeKey(
        id="k", owner="scripted", algorithm="HMAC-SHA256", material=b"s" * 32
    )

    async def signed(peer: Peer, request: Sent) -> None:
        from parley.envelope.codec import members_of, read_message
        from parley.envelope.signatures import sign_message

        answer = answer_to(request, "RESPONSE", "success", results=[1])
        if request["payload"]["action"] == "signed":
            import json

            answer = members_of(sign_message(read_message(json.dumps(answer)), key))
        await peer.send(answer)

    async with scripted_agent(signed) as agent:
        mine = parley.envelope.EnvelopeKey(
            id="m", owner="me", algorithm="HMAC-SHA256", material=b"m" * 32
        )
        async with parley.envelope.connect(agent.url, agent_key=key, key=mine) as client:
            assert (await client.request("signed")).result == 1
            with pytest.raises(NotFromAgent):
                await client.request("plain")
    assert agent.requests[0]["source"]["agentId"] == "me"
    assert agent.requests[0]["security"]["keyId"] == "m"


def _with_upgrade(agent: ScriptedAgent, upgrade: Any) -> Any:
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def serve() -> Any:
        app = web.Application()
        app.router.add_get("/envelope", upgrade)
        app.router.add_post("/envelope", agent.post)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/envelope"  # type: ignore[union-attr]
        await runner.cleanup()

    return serve()
