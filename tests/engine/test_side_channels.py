"""The work for an id of another owner is that for one that never was: counted, not timed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, CallContext, Caller, Rights, TaskPushNotificationConfig, Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.errors import A2AError
from parley.model.operations import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    SubscribeToTaskRequest,
)
from parley.security import Bearer, claim
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.task_log import Append
from parley.store.sqlite.store import SqliteTaskStore
from tests.engine.talk import Talk

pytestmark = pytest.mark.anyio

ADA = CallContext(caller=Caller(id="ada", authenticated=True, claims={"org": "acme"}))
EVE = CallContext(caller=Caller(id="eve", authenticated=True, claims={"org": "evil"}))


WORK: ContextVar[list[tuple[str, int]]] = ContextVar("WORK")
"""The queries for a request by name, with the number of their rows, and its appends."""


class Counted:
    """Notes what a store does for a request, and not what the host does beside it."""

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
    """Return each operation about a task, as another owner asks for it."""
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
        # One query decides, nothing is read of the task, and nothing is written.
        assert work[0] == [("load", 0)], name
