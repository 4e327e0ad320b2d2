"""Both transports, and another replica, answer a REQUEST in the same way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from tests.kit.processes import free_port
from tests.kit.services.postgres import PostgresServer
from tests.kit.waiting import until
from tests.server.envelope.agents import Gates
from tests.server.envelope.speaking import (
    SUBPROTOCOL,
    Speaker,
    by_post,
    by_socket,
    is_last,
    request,
    sequences,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def id() -> str:
    return uuid.uuid4().hex


async def test_a_resumed_stream_says_the_state_that_the_task_has(
    speaker: Speaker, gates: Gates, id: str
) -> None:
    gates.of(id).set()
    whole = await speaker.ask(request("report", {"name": id}, id=id, sub="command"))
    again = request("report", {"name": id}, id=id, sub="command", after=3)
    rest = [each for each in await speaker.ask(again) if each["message"]["type"] == "EVENT"]
    assert [state_of(each) for each in rest] == [state_of(each) for each in whole[-len(rest) :]]
    assert state_of(rest[0]) == "TASK_STATE_WORKING"


def state_of(message: dict[str, Any]) -> str:
    return str(message["payload"]["metadata"]["state"])


# -- the same message to another replica, after the first replica was killed ---------------------


SCRIPT = Path(__file__).with_name("replica.py")


class Replica:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    async def is_ready(self) -> bool:
        assert self.process.returncode is None
        async with aiohttp.ClientSession() as session:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{self.url}/health/ready") as answer:
                    return answer.status == 200
        return False

    async def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        await self.process.wait()


@pytest.fixture(scope="module")
def acts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas") / "acts"


@pytest.fixture(scope="module")
async def replicas(postgres: PostgresServer, acts: Path) -> AsyncIterator[list[Replica]]:
    started, store = [], postgres.new_url()
    for _ in range(2):
        port = free_port()
        with acts.with_name("log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, SCRIPT, str(port), store, str(acts),
                stdout=log, stderr=log,
            )  # fmt: skip
        started.append(Replica(process, port))
    try:
        for replica in started:
            await until(replica.is_ready, 30)
        yield started
    finally:
        for replica in started:
            await replica.kill()


@pytest.mark.service
async def test_a_message_to_two_replicas_at_once_is_done_once(
    replicas: list[Replica], acts: Path
) -> None:
    message = request("pay", {"what": "rent"}, id="m-2")
    async with by_socket(replicas[0].url) as one, by_socket(replicas[1].url) as two:
        answers = await asyncio.gather(*[each.ask(message) for each in (one, two)])
    (first,), (second,) = answers
    assert first["payload"]["results"] == second["payload"]["results"]
    assert first["payload"]["metadata"]["taskId"] == second["payload"]["metadata"]["taskId"]
    assert acts.read_text().splitlines().count("rent") == 1


@pytest.mark.service
async def test_a_killed_replica_loses_and_doubles_nothing(
    replicas: list[Replica], acts: Path
) -> None:
    first, second = replicas
    message = request("pay", {"what": "slow rent"}, id="m-1", sub="command")
    seen = []
    address = f"{first.url.replace('http', 'ws', 1)}/envelope"
    async with connect(address, subprotocols=[SUBPROTOCOL], proxy=None) as line:  # type: ignore[list-item]
        await line.send(json.dumps(message))
        with contextlib.suppress(ConnectionClosed):
            while True:
                seen.append(json.loads(await asyncio.wait_for(line.recv(), 20)))
                if len(seen) == 8:
                    await first.kill()
    last = sequences(seen)[-1]
    again = request("pay", {"what": "slow rent"}, id="m-1", sub="command", after=last, retryCount=1)
    rest = []
    async with by_socket(second.url) as other:
        await other.send(again)
        while not rest or not is_last(rest[-1]):
            rest.append(await other.next("m-1", 30))
    assert rest[-1]["payload"]["status"] == "success"
    numbers = sequences(seen) + sequences(rest)
    assert numbers == [*range(1, len(numbers) + 1)]
    async with by_post(second.url) as post:
        query = request("pay", {"what": "slow rent"}, id="m-1", retryCount=2)
        (answer,) = await post.ask(query)
    assert answer["payload"]["metadata"]["taskId"] == rest[-1]["payload"]["metadata"]["taskId"]
    text = answer["payload"]["results"][0]["text"]
    assert text == "slow rent " + "".join(f"{n} " for n in range(20))
    assert acts.read_text().splitlines().count("slow rent") == 1
