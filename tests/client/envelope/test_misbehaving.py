"""What the client does with servers that stall, flood and refuse, and with broadcasts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web

import parley
from parley.client.errors import Disconnected
from parley.envelope import LinkSettings, Target
from parley.model.backoff import Backoff
from tests.client.envelope.scripted import Peer, Sent, answer_to, echo, scripted_agent
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio

QUICK = LinkSettings(backoff=Backoff(0.01, 0.05), heartbeat=5.0)
EVERYONE = Target(agent_type="library", routing_strategy="broadcast")


async def test_requests_of_the_same_id_are_answered_one_after_another() -> None:
    async with scripted_agent(echo) as agent, parley.envelope.connect(agent.url) as client:
        async with asyncio.timeout(5):
            asked = [client.request("echo", {"n": n}, message_id="same") for n in range(3)]
            answers = await asyncio.gather(*asked)
    assert [answer.result for answer in answers] == [{"n": n} for n in range(3)]


async def test_a_broadcast_has_the_events_of_every_agent() -> None:
    async def two_agents(peer: Peer, request: Sent) -> None:
        for number in (1, 2):
            for by in ("a", "b"):
                metadata = {"sequence": number, "agentId": by}
                await peer.send(answer_to(request, "EVENT", "partial", metadata=metadata))
        await peer.answer(request)

    async with scripted_agent(two_agents) as agent, parley.envelope.connect(agent.url) as client:
        events = [event async for event in client.stream("work", target=EVERYONE)]
    named = [(event.metadata.agent_id, event.sequence) for event in events[:-1]]
    assert named == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


async def test_a_command_to_all_goes_on_until_each_agent_has_ended() -> None:
    async def two_agents(peer: Peer, request: Sent) -> None:
        async def event(by: str, status: str, **metadata: Any) -> None:
            given = {"agentId": by, **metadata}
            await peer.send(answer_to(request, "EVENT", status, metadata=given))

        for by in ("a", "b"):
            await event(by, "accepted")
        await event("c", "error")
        await event("a", "success", sequence=1)
        accepted = [{"agentId": by, "status": "accepted"} for by in ("a", "b")]
        await peer.answer(request, "accepted", results=accepted)
        await event("b", "partial", sequence=1)
        await event("b", "success", sequence=2)

    async with scripted_agent(two_agents) as agent, parley.envelope.connect(agent.url) as client:
        stream = client.stream("work", sub_type="command", target=EVERYONE)
        async with asyncio.timeout(5):
            events = [event async for event in stream]
    assert [event.metadata.agent_id for event in events] == ["a", "b", "c", "a", "", "b", "b"]
    assert [event.is_final for event in events] == [False] * 6 + [True]
    assert events[2].status == "error"


async def test_a_broadcast_that_is_cut_after_an_event_is_not_sent_again() -> None:
    async def cut(peer: Peer, request: Sent) -> None:
        metadata = {"sequence": 1, "agentId": "a"}
        await peer.send(answer_to(request, "EVENT", "partial", metadata=metadata))
        peer.cut()

    async with (
        scripted_agent(cut) as agent,
        parley.envelope.connect(agent.url, settings=QUICK) as client,
    ):
        events = client.stream("work", target=EVERYONE)
        assert (await anext(events)).sequence == 1
        with pytest.raises(Disconnected):
            await anext(events)
    assert len(agent.requests) == 1


async def test_messages_that_nobody_reads_are_bounded_in_size() -> None:
    async def flood(peer: Peer, request: Sent) -> None:
        for _ in range(25):
            await peer.send(answer_to({"messageId": "x"}, "EVENT", "partial", pad="x" * 1_000_000))
        await echo(peer, request)

    async with scripted_agent(flood) as agent, parley.envelope.connect(agent.url) as client:
        await client.request("echo")
        unread = client.messages()
        found = 0
        async with asyncio.timeout(5):
            while found < 16:
                await anext(unread)
                found += 1
        waiting = asyncio.ensure_future(anext(unread))
        await let_time_pass(0.05)
        assert not waiting.done()
        waiting.cancel()


async def test_heartbeats_do_not_keep_a_client_from_reading() -> None:
    """An agent reads nothing until its answer is read: the client has to read all the same."""

    async def stall(peer: Peer, request: Sent) -> None:
        assert peer.socket is not None
        transport = peer.socket._req.transport  # type: ignore[union-attr]
        if request["payload"]["action"] == "small":
            transport.pause_reading()  # type: ignore[union-attr]
            await until(lambda: large is not None and sending.is_set())
            await peer.send({**answer_to(request, "HEARTBEAT", ""), **UNASKED})
            await echo(peer, request)
        else:
            await echo(peer, request)

    sending = asyncio.Event()
    large: asyncio.Task[Any] | None = None
    async with scripted_agent(stall) as agent, parley.envelope.connect(agent.url) as client:
        small = asyncio.ensure_future(client.request("small"))
        await until(lambda: agent.requests)
        large = asyncio.ensure_future(client.request("large", "x" * 8_000_000))
        await let_time_pass(0.2)  # the socket's buffers are full now
        sending.set()
        async with asyncio.timeout(5):
            await small
        large.cancel()


UNASKED = {"message": {"type": "HEARTBEAT"}, "payload": {}}


async def test_a_kept_connection_is_opened_again_after_its_credentials_were_refused() -> None:
    refusals = 0

    def refuse(_: web.Request) -> web.StreamResponse | None:
        nonlocal refusals
        if not agent.peers or refusals >= 2:
            return None
        refusals += 1
        error = {"code": "UNAUTHENTICATED", "message": "expired"}
        body = answer_to({"messageId": ""}, "RESPONSE", "error", error=error)
        return web.json_response(body, status=401)

    async with scripted_agent(echo) as agent:
        agent.refuse = refuse
        async with parley.envelope.connect(agent.url, settings=QUICK) as client:
            client.messages()
            agent.peers[0].cut()
            await until(lambda: len(agent.peers) == 2, seconds=5)
    assert refusals == 2
