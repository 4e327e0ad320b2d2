"""A draining replica, and its clients that wait for the work of other replicas."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pytest

import parley
from parley import Message, Part, RemoteAgent, Role, Task, TaskState
from parley.client.retry import Retry
from parley.model.operations import BY_NAME, SendMessageRequest
from tests.contract.conftest import past_the_card
from tests.fleet.conftest import FleetOf
from tests.fleet.ledger import check_log, kept, numbers
from tests.fleet.load import opened
from tests.kit.servers import WAYS
from tests.kit.waiting import let_time_pass

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.service]

BOUND = 90.0


def connect(url: str, binding: str, version: str) -> AbstractAsyncContextManager[RemoteAgent]:
    """Connect a client without retries."""
    retries = Retry(calls=0, streams=0)
    return parley.connect(url, binding=binding, version=version, retries=retries, idempotent=False)


def saying(skill: str, text: str, context_id: str) -> SendMessageRequest:
    parts = (Part(text=text),)
    return SendMessageRequest(
        message=Message(
            message_id="m",
            context_id=context_id,
            role=Role.USER,
            parts=parts,
            metadata={"skill": skill},
        )
    )


async def all_tasks(agent: RemoteAgent, context_id: str) -> tuple[Task, ...]:
    return (await agent.list(context_id=context_id, include_artifacts=True)).tasks


async def until_works(agent: RemoteAgent, context_id: str, count: int) -> None:
    """Wait until this many tasks of a context are working."""
    while True:
        tasks = await all_tasks(agent, context_id)
        if sum(task.state is TaskState.WORKING for task in tasks) == count:
            return
        await let_time_pass(0.02)


async def test_whoever_waits_for_another_replica_is_answered_before_the_end(
    fleet_of: FleetOf,
) -> None:
    """The client gets the result if it comes soon, and otherwise the current task."""
    roles = ("api", "api", "worker")
    async with asyncio.timeout(BOUND), fleet_of(3, roles=roles, drain=3.0, grpc_port=0) as fleet:
        ends, stays, _ = fleet.replicas
        async with parley.connect(stays.url) as other, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(connect(ends.url, *way)) for way in WAYS]
            soon = [
                asyncio.create_task(
                    past_the_card(each, "SendMessage", saying("slow", "15", "soon"))
                )
                for each in clients
            ]
            never = [
                asyncio.create_task(
                    past_the_card(each, "SendMessage", saying("forever", "go", "never"))
                )
                for each in clients
            ]
            await until_works(other, "soon", len(WAYS))
            await until_works(other, "never", len(WAYS))
            assert await ends.end(signal.SIGTERM) == 0
            for answer in await asyncio.gather(*soon):
                assert (type(answer), answer.state) == (Task, TaskState.COMPLETED)
            for answer in await asyncio.gather(*never):
                assert (type(answer), answer.state) == (Task, TaskState.WORKING)
                # The task is unchanged, and still works on the other replica.
                assert (await other.get(answer.id)).state is TaskState.WORKING
                assert (await other.cancel(answer.id)).state is TaskState.CANCELED
            for context_id in ("soon", "never"):
                assert len(await all_tasks(other, context_id)) == len(WAYS)


async def read(client: RemoteAgent, request: SendMessageRequest, begun: asyncio.Event) -> list[Any]:
    """Return the events of a stream, which must not end with an error."""
    events = []
    items = client._interfaces.stream(BY_NAME["SendStreamingMessage"], request, client.context)
    async for item in items:
        events.append(item.event)
        if len(events) > 5:
            begun.set()
    return events


@pytest.mark.parametrize("runs", ["here", "elsewhere"])
async def test_whoever_reads_is_let_go_without_an_error_and_goes_on_elsewhere(
    fleet_of: FleetOf, runs: str
) -> None:
    roles = ("api", "api", "worker") if runs == "elsewhere" else ()
    async with (
        asyncio.timeout(BOUND),
        fleet_of(3, roles=roles, grpc_port=0) as fleet,
        AsyncExitStack() as stack,
    ):
        ends, stays, _ = fleet.replicas
        clients = [await stack.enter_async_context(connect(ends.url, *way)) for way in WAYS]
        begun = [asyncio.Event() for _ in clients]
        readers = [
            asyncio.create_task(read(client, saying("report", "200 20", "r"), event))
            for client, event in zip(clients, begun, strict=True)
        ]
        while not all(event.is_set() for event in begun):
            assert not [reader.result() for reader in readers if reader.done()]
            await let_time_pass(0.02)
        assert await ends.end(signal.SIGTERM) == 0
        for reader, way in zip(readers, WAYS, strict=True):
            read_there = await reader
            first = read_there[0]
            assert first.id
            async with connect(stays.url, *way) as again:
                rest = [event async for event in again.subscribe(first.id, after=0)]
            if way[1] != "0.3":
                assert rest[: len(read_there)] == read_there, way
            assert rest[-1].status.state is TaskState.COMPLETED
            async with opened(fleet) as store:
                check_log(found := await kept(store, first.id))
            assert "".join(a.text for a in found.task.artifacts) == numbers(200)
