"""Many messages on one WebSocket: interleaved, cut, hostile, waiting, drained."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import parley
from parley import Settings
from parley.envelope.binding import EnvelopeBinding
from parley.model.service import Caller
from parley.server.run import serving
from tests.kit.waiting import until
from tests.server.envelope.agents import Gates, knowledge_base
from tests.server.envelope.speaking import SUBPROTOCOL, by_socket, request

pytestmark = pytest.mark.anyio


@pytest.fixture
def id() -> str:
    return uuid.uuid4().hex


def address(url: str) -> str:
    return f"{url.replace('http', 'ws', 1)}/envelope"


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


@pytest.mark.slow
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


@pytest.mark.slow
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
