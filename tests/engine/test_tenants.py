"""Tenants and owners: callers see no data of others, and cannot infer it from the server's work."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from parley import Retention, Rights, TaskPushNotificationConfig
from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.errors import A2AError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, Caller
from parley.security import Bearer, claim
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.task_log import Append
from parley.store.sqlite.store import SqliteTaskStore
from tests.engine.talk import Talk

pytestmark = pytest.mark.anyio


def shop(name: str = "Shop") -> Agent:
    agent = Agent(name, retention=Retention(history=True))

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        """Takes an order, once it knows the size."""
        size = await turn.ask("Which size?")
        past = [each.text for each in await turn.history()]
        return f"{name}: {size.text} after {past}"

    return agent


class Tenant:
    """A caller of one tenant."""

    def __init__(self, host: Host, name: str, caller: str = "ada") -> None:
        self.service = host.tenants[name]
        self.context = CallContext(tenant=name, caller=Caller(id=caller))

    async def send(self, text: str, **message: Any) -> Any:
        given = {"message_id": uuid4().hex, "role": Role.USER, "parts": (Part(text=text),)}
        request = SendMessageRequest(message=Message(**{**given, **message}))
        return await self.service.send_message(request, self.context)

    async def list(self) -> list[str]:
        page = await self.service.list_tasks(ListTasksRequest(), self.context)
        assert page.total_size == len(page.tasks)
        return [task.id for task in page.tasks]


@pytest.fixture
def shops(new_store):
    """A maker of hosts: ``async with shops({"acme": agent}) as host``."""

    @asynccontextmanager
    async def opened(tenants: dict[str, Agent]) -> Any:
        host = Host(placed(None, tenants), new_store(), ServerOptions(tenants=tenants, drain=0.0))
        await host.start()
        try:
            yield host
        finally:
            await host.stop()

    return opened


async def test_tenants_share_no_context_though_they_name_it_alike(shops):
    one = shop()
    async with shops({"acme": one, "globex": one}) as host:
        for name in ("acme", "globex"):
            tenant = Tenant(host, name)
            task = await tenant.send(f"{name} shoes", context_id="c-1")
            done = await tenant.send(f"{name} 42", task_id=task.id)
            said = done.artifacts[0].parts[0].text
            other = {"acme": "globex", "globex": "acme"}[name]
            assert other not in said
            assert len(await tenant.list()) == 1


async def test_a_message_that_two_tenants_send_alike_is_no_repeat(shops):
    one = shop()
    async with shops({"acme": one, "globex": one}) as host:
        tasks = []
        for name in ("acme", "globex", "acme"):
            tenant = Tenant(host, name)
            tenant.context = CallContext(
                tenant=name, caller=tenant.context.caller, extensions=frozenset({IDEMPOTENT_SEND})
            )
            tasks.append((await tenant.send("shoes", message_id="m-1")).id)
        assert tasks[0] == tasks[2] != tasks[1]


# -- a foreign id costs the same queries as an unknown id: counted, not timed ----------------------


ADA = CallContext(caller=Caller(id="ada", authenticated=True, claims={"org": "acme"}))
EVE = CallContext(caller=Caller(id="eve", authenticated=True, claims={"org": "evil"}))


WORK: ContextVar[list[tuple[str, int]]] = ContextVar("WORK")
"""The queries and appends of a request: their names and numbers of rows."""


class Counted:
    """Record the store's work for a request, without the host's background work."""

    async def _rows(self, name: str, values: Any) -> Any:
        rows = await super()._rows(name, values)  # type: ignore[misc]
        WORK.get([]).append((name, len(rows)))
        return rows

    async def append(self, append: Append) -> Any:
        WORK.get([]).append(("append", 1))
        return await super().append(append)  # type: ignore[misc]


class CountedSqlite(Counted, SqliteTaskStore):
    pass


class CountedPostgres(Counted, PostgresTaskStore):
    pass


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def counted(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    if request.param == "sqlite":
        return lambda: CountedSqlite(tmp_path / "tasks.db", synchronous="OFF")
    return lambda: CountedPostgres(request.getfixturevalue("postgres_url"))


def vault(owner: Any) -> Agent:
    token = Bearer(lambda text: None)
    agent = Agent("Vault", rights=Rights(owner=owner))

    @agent.skill(replies="task")
    async def keep(turn: Turn) -> str:
        return (await turn.ask("Go on?")).text

    @agent.skill(replies="task", security=token)
    async def write(turn: Turn) -> str:
        return "written"

    return agent


@pytest.fixture
async def caller(counted: Callable[[], Any]) -> AsyncIterator[Talk]:
    host = Host(placed(vault(claim("org"))), counted(), ServerOptions(drain=0.0))
    await host.start()
    try:
        yield Talk(host.services[""], host)
    finally:
        await host.stop()


def asked(caller: Talk, task_id: str) -> dict[str, Any]:
    """Return each operation on a task, called as another owner."""
    service, hook = caller.service, {"task_id": task_id, "id": "hook"}
    config = TaskPushNotificationConfig(url="https://hooks.example.com/a2a", **hook)
    page = ListTaskPushNotificationConfigsRequest(task_id=task_id)
    return {
        "get": lambda: service.get_task(GetTaskRequest(id=task_id), EVE),
        "cancel": lambda: service.cancel_task(CancelTaskRequest(id=task_id), EVE),
        "subscribe": lambda: anext(
            service.subscribe_to_task(SubscribeToTaskRequest(id=task_id), EVE)
        ),
        "send": lambda: caller.send("go on", task_id=task_id, context=EVE),
        "stream": lambda: anext(caller.stream("go on", task_id=task_id, context=EVE)),
        "create": lambda: service.create_task_push_notification_config(config, EVE),
        "read": lambda: service.get_task_push_notification_config(
            GetTaskPushNotificationConfigRequest(**hook), EVE
        ),
        "list": lambda: service.list_task_push_notification_configs(page, EVE),
        "delete": lambda: service.delete_task_push_notification_config(
            DeleteTaskPushNotificationConfigRequest(**hook), EVE
        ),
    }


async def test_a_foreign_id_costs_the_queries_of_an_unknown_one(caller: Talk) -> None:
    task = await caller.task("secret", context=ADA)
    foreign, unknown = asked(caller, task.id), asked(caller, task.id[:-4] + "0000")
    for name in foreign:
        work: list[list[tuple[str, int]]] = []
        for ask in (foreign[name], unknown[name]):
            work.append([])
            token = WORK.set(work[-1])
            with pytest.raises(A2AError):
                await ask()
            WORK.reset(token)
        assert work[0] == work[1], name
        # One query decides; it reads no row of the task, and nothing is written.
        assert work[0] == [("load", 0)], name
