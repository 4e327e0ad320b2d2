"""The database is down for longer than any request waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley import Task, TaskState
from parley.model.errors import OverloadedError
from parley.model.operations import CancelTaskRequest, GetTaskRequest, SubscribeToTaskRequest
from tests.contract.conftest import past_the_card
from tests.fleet.conftest import FleetOf
from tests.fleet.fleet import Fleet, Replica
from tests.fleet.test_drain import connect, saying
from tests.kit.http import ask
from tests.kit.servers import WAYS
from tests.kit.waiting import let_time_pass

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.service]

BOUND = 150.0


async def until_ready(replica: Replica, status: int) -> Any:
    """Wait until a replica's readiness has this status, and return the response."""
    while True:
        answer = await ask(replica.url, "GET", "/health/ready")
        if answer.status == status:
            return answer.json
        await let_time_pass(0.05)


async def answer(fleet: Fleet, way: tuple[str, str], task: Task) -> list[Any]:
    """Send a replica all requests at once, over one binding, and return all results."""
    async with connect(fleet.replicas[0].url, *way) as client:
        return await asyncio.gather(
            *[past_the_card(client, "GetTask", GetTaskRequest(id=task.id)) for _ in range(40)],
            past_the_card(client, "SendMessage", saying("quick", "x", "c")),
            past_the_card(client, "SendStreamingMessage", saying("quick", "x", "c")),
            past_the_card(client, "CancelTask", CancelTaskRequest(id=task.id)),
            past_the_card(client, "SubscribeToTask", SubscribeToTaskRequest(id=task.id)),
            return_exceptions=True,
        )


@pytest.mark.parametrize("fault", ["stopped", "paused"])
async def test_everybody_is_told_so_in_time_and_nothing_is_left_behind(
    fleet_of: FleetOf, fault: str
) -> None:
    async with asyncio.timeout(BOUND), fleet_of(2, grpc_port=0) as fleet:
        async with connect(fleet.replicas[1].url, "JSONRPC", "1.0") as client:
            task = await past_the_card(client, "SendMessage", saying("quick", "x", "c"))
        assert task.state is TaskState.COMPLETED
        for replica in fleet.replicas:
            assert await until_ready(replica, 200) == {"status": "ready"}
        # The six clients read cards during the fault: cards need no store.
        stop = fleet.postgres.stop if fault == "stopped" else fleet.postgres.pause
        await asyncio.to_thread(stop)
        try:
            for replica in fleet.replicas:
                told = await until_ready(replica, 503)
                assert told["status"] == "unavailable"
                assert told["reason"].startswith("the store has been silent for ")
                assert (await ask(replica.url, "GET", "/health/live")).status == 200
            answers = await asyncio.gather(*[answer(fleet, way, task) for way in WAYS])
        finally:
            if fault == "stopped":
                await asyncio.to_thread(fleet.postgres.start)
            else:
                fleet.postgres.go_on()
        for way, each in zip(WAYS, answers, strict=True):
            for error in each:
                assert type(error) is OverloadedError, (way, error)
                assert error.retry_after
                assert "postgres" not in error.message
        for replica in fleet.replicas:
            await until_ready(replica, 200)
        async with connect(fleet.replicas[1].url, "JSONRPC", "1.0") as client:
            again = await past_the_card(client, "SendMessage", saying("quick", "x", "c"))
            assert again.state is TaskState.COMPLETED
            for each in (await client.list(context_id="c")).tasks:
                assert (await client.wait(each.id)).state is TaskState.COMPLETED
