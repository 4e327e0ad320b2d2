"""Owner policies: which callers see which tasks, contexts, webhooks and receipts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from parley import (
    Agent,
    CallContext,
    Caller,
    Execution,
    Message,
    Rights,
    TaskPushNotificationConfig,
    TaskState,
    Turn,
)
from parley.extensions import SEARCH, SearchTasksRequest
from parley.model.errors import A2AError, TaskNotFoundError
from parley.model.operations import (
    CancelTaskRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)
from parley.security import claim
from parley.store.sqlite.store import SqliteTaskStore

pytestmark = pytest.mark.anyio

ISSUER = "https://login.example"


def of(id: str, org: Any = "acme", **fields: Any) -> CallContext:
    tenant = fields.pop("tenant", "")
    extensions = fields.pop("extensions", frozenset())
    fields = {"issuer": ISSUER, "authenticated": True, "claims": {"org": org}, **fields}
    return CallContext(caller=Caller(id=id, **fields), tenant=tenant, extensions=extensions)


ADA, BOB, EVE = of("ada"), of("bob"), of("eve", "evil")


def asking(owner: Any = None, **options: Any) -> Agent:
    agent = Agent(
        "Asking", rights=Rights(owner=claim("org") if owner is None else owner), **options
    )

    @agent.skill
    async def ask(turn: Turn) -> str:
        count = await turn.update("count", lambda n: n + 1, 0)
        answer = await turn.ask(f"{turn.caller.id} is number {count}")
        return f"{turn.caller.id} said {answer.text}"

    return agent


# -- keys ------------------------------------------------------------------------------------------


# -- rejected callers ------------------------------------------------------------------------------


# -- shared data -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "outsider"),
    [
        (claim("org"), EVE),
        (claim("org"), of("ada", issuer="https://other.example")),
        (claim("org"), of("ada", authenticated=False)),
        (claim("org", across_issuers=True), EVE),
        (lambda caller: caller.claims["org"], EVE),
        ("tenant", of("ada", tenant="other")),
        ("caller", EVE),
    ],
)
async def test_what_one_makes_belongs_to_its_owner_and_nobody_else(
    talk: Any, owner: Any, outsider: CallContext
) -> None:
    friend = ADA if owner == "caller" else BOB
    async with talk(asking(owner)) as caller:
        service = caller.service
        task = await caller.task("go", context=ADA)
        hook = TaskPushNotificationConfig(
            task_id=task.id, id="hook", url="https://hooks.example.com/a2a"
        )
        await service.create_task_push_notification_config(hook, ADA)
        get, search = GetTaskRequest(id=task.id), SearchTasksRequest(text="go")
        get_hook = GetTaskPushNotificationConfigRequest(task_id=task.id, id="hook")
        for context, is_shared in ((friend, True), (outsider, False)):
            listed = await service.list_tasks(ListTasksRequest(), context)
            assert ([each.id for each in listed.tasks], listed.total_size) == (
                ([task.id], 1) if is_shared else ([], 0)
            )
            found = await SEARCH.handle(service, search, context)
            assert [each.id for each in found.tasks] == [task.id] * is_shared
            for asked in (
                service.get_task(get, context),
                service.get_task_push_notification_config(get_hook, context),
            ):
                if is_shared:
                    await asked
                else:
                    with pytest.raises(TaskNotFoundError):
                        await asked
        with pytest.raises(TaskNotFoundError):
            await service.cancel_task(CancelTaskRequest(id=task.id), outsider)
        with pytest.raises(TaskNotFoundError):
            await caller.send("yes", task_id=task.id, context=outsider)
        done = await caller.task("yes", task_id=task.id, context=friend)
        assert done.text == f"{friend.caller.id} said yes"


# -- the queue -------------------------------------------------------------------------------------


async def test_a_busy_member_does_not_starve_its_group(talk: Any) -> None:
    order: list[str] = []
    free = asyncio.Event()
    agent = Agent("Busy", rights=Rights(owner=claim("org")), execution=Execution(max_running=1))

    @agent.skill(replies="task")
    async def work(turn: Turn) -> None:
        order.append(turn.caller.id)
        await free.wait()

    async with talk(agent) as caller:
        sent = [
            await caller.task("go", context=context, return_immediately=True)
            for context in (ADA, ADA, ADA, ADA, BOB)
        ]
        free.set()
        async with asyncio.timeout(20):
            for task in sent:
                items = caller.service.subscribe_to_task(SubscribeToTaskRequest(id=task.id), ADA)
                try:
                    async for _ in items:
                        pass
                except A2AError:
                    pass  # it has ended
    assert sorted(order) == ["ada"] * 4 + ["bob"]
    assert order.index("bob") <= 2


# -- callers, read back from the store -------------------------------------------------------------


async def test_client_actors_and_scopes_are_those_of_the_message_in_every_attempt(
    talk: Any, tmp_path: Path
) -> None:
    seen: list[Caller] = []
    agent = Agent("Noting")

    @agent.skill
    async def note(turn: Turn) -> str:
        seen.append(turn.caller)
        return (await turn.ask("Go on?")).text

    path = tmp_path / "tasks.db"
    app = Caller(
        id="ada",
        issuer=ISSUER,
        authenticated=True,
        client="phone",
        actors=("assistant", "gateway"),
        scopes=frozenset({"write", "read"}),
        granted={object(): frozenset({"read", "write"})},
    )
    cron = Caller(id="ada", issuer=ISSUER, authenticated=True, client="cron")
    async with talk(agent, SqliteTaskStore(path)) as caller:
        task = await caller.task("go", context=CallContext(caller=app))
    async with talk(agent, SqliteTaskStore(path)) as caller:
        reply = await caller.send("yes", task_id=task.id, context=CallContext(caller=cron))
        assert not isinstance(reply, Message)
        assert reply.state is TaskState.COMPLETED
    first, second = seen
    assert first == Caller(
        id="ada",
        issuer=ISSUER,
        authenticated=True,
        client="phone",
        actors=("assistant", "gateway"),
        scopes=frozenset({"read", "write"}),
    )
    assert second == cron
