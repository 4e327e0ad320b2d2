"""``parley store webhooks``: list the suspended webhooks, and resume their deliveries."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from parley.host.host import Host
from parley.host.options import ServerOptions
from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig
from parley.model.tasks import TaskState
from parley.security.egress import Egress
from parley.store.events import Scope
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.webhooks import PushRecord, PushState
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import addition, creation, status
from tests.kit.webhooks import webhook
from tests.push.pushing import QUICK, Pushed, config, gated, placed

posix = pytest.mark.skipif(os.name != "posix", reason="a process is asked by a socket of POSIX's")

SECRETS = ("hunter2", "sesame", "path-secret", "query-secret")


def suspended(id: str, note: str = "it answers with HTTP 500, 9 times in a row") -> PushRecord:
    return PushRecord(
        config=TaskPushNotificationConfig(
            id=id,
            url="https://hooks.example.com/path-secret?key=query-secret",
            token="sesame",
            authentication=AuthenticationInfo(scheme="Bearer", credentials="hunter2"),
        ),
        version="1.0",
        revision=f"r-{id}",
        state=PushState.SUSPENDED,
        note=note,
    )


async def fill(store: TaskStore, tasks: int = 3) -> None:
    """Store tasks of two agents; each task has one active and two suspended webhooks."""
    await store.open(lambda records: None)
    for n in range(tasks):
        agent, tenant = ("shop", "") if n else ("bank", "acme")
        scope = Scope(agent, tenant=tenant, owner="ada")
        pushes = [suspended("a"), suspended("b"), suspended("told")]
        await store.append(creation(f"t{n}", scope=scope, turn_open=False, pushes=pushes))
        await store.append(
            addition(f"t{n}", 1, status(f"t{n}", TaskState.WORKING), turn_open=False)
        )
        for push in pushes[:2]:
            assert await store.save_delivery(f"t{n}", replace(push, cursor=n % 2))
    await store.close()


@pytest.fixture
def shop(tmp_path: Path) -> str:
    asyncio.run(fill(SqliteTaskStore(tmp_path / "shop.db")))
    return "sqlite:///shop.db"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return request.getfixturevalue("shop")
    made: str = request.getfixturevalue("postgres_url")
    asyncio.run(fill(PostgresTaskStore(made)))
    return made


def names(document: list[dict[str, str]]) -> list[str]:
    return [f"{each['task']}/{each['id']}" for each in document]


def test_what_is_suspended_is_listed_without_secrets(parley, url):
    ran = parley("store", "webhooks", "list", "--store", url)
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.field("Suspended") == "6 webhooks"
    assert (
        "Webhook: t0/a of bank, tenant acme at https://hooks.example.com, 2 events behind: "
        "it answers with HTTP 500, 9 times in a row\n"
    ) in ran.stdout
    assert "Webhook: t1/b of shop at https://hooks.example.com, 1 event behind: " in ran.stdout
    json_ran = parley("store", "webhooks", "list", "--store", url, "-o", "json")
    found = json_ran.document["webhooks"]
    assert names(found) == ["t0/a", "t0/b", "t1/a", "t1/b", "t2/a", "t2/b"]
    assert found[0] == {
        "agent": "bank",
        "tenant": "acme",
        "owner": "ada",
        "task": "t0",
        "id": "a",
        "server": "https://hooks.example.com",
        "eventsBehind": 2,
        "note": "it answers with HTTP 500, 9 times in a row",
    }
    assert not [secret for secret in SECRETS if secret in ran.stdout + json_ran.stdout]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (["--agent", "bank"], ["t0/a", "t0/b"]),
        (["--tenant", "acme"], ["t0/a", "t0/b"]),
        (["--task", "t2"], ["t2/a", "t2/b"]),
        (["a"], ["t0/a", "t1/a", "t2/a"]),
        (["b", "--agent", "shop", "--task", "t1"], ["t1/b"]),
        (["told"], []),
    ],
)
def test_those_that_are_chosen_are_listed_and_resumed(parley, url, chosen, expected):
    def listed(*chosen: str) -> list[str]:
        ran = parley("store", "webhooks", "list", *chosen, "--store", url, "-o", "json")
        return names(ran.document["webhooks"])

    everything = listed()
    assert listed(*chosen) == expected
    ran = parley("store", "webhooks", "resume", *chosen, "--store", url, "-o", "json")
    assert names(ran.document["resumed"]) == expected
    assert listed() == [each for each in everything if each not in expected]
    ran = parley("store", "webhooks", "resume", *chosen, "--store", url)
    assert (ran.status, ran.field("Resumed")) == (0, "nothing")


def test_all_are_resumed(parley, url):
    ran = parley("store", "webhooks", "resume", "--all", "--store", url)
    assert ran.status == 0
    assert "Resumed: 2 webhooks of bank\nResumed: 4 webhooks of shop\n" in ran.stdout
    assert parley("store", "webhooks", "list", "--store", url).field("Suspended") == "none"
    assert parley("store", "status", "--store", url).field("Webhooks") == "9 active"


# -- while a server has the store open -----------------------------------------------------------


async def run(*arguments: str, cwd: Path) -> dict:
    """Return the command's output, from a separate process."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "parley.cli", "store", "webhooks", *arguments, "-o", "json",
        stdout=asyncio.subprocess.PIPE, cwd=cwd,
    )  # fmt: skip
    out, _ = await process.communicate()
    return json.loads(out)


@asynccontextmanager
async def serving(store: TaskStore, agent: object) -> AsyncIterator[Pushed]:
    host = Host(
        placed(agent),
        store,
        ServerOptions(drain=0.0, egress=Egress.allowing(True)),
        retry_policy=QUICK,
    )
    await host.start()
    try:
        yield Pushed(host)
    finally:
        await host.stop()


@pytest.mark.slow
@posix
@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def test_a_server_goes_on_with_what_is_resumed_while_it_runs(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, store = "sqlite:///live.db", SqliteTaskStore(tmp_path / "live.db")
    if kind == "postgres":
        url = request.getfixturevalue("postgres_url")
        store = PostgresTaskStore(url)
    agent, gate = gated()
    async with webhook() as hook, webhook() as other, serving(store, agent) as caller:
        hook.answer = lambda told: 410 if told.number > 1 else 200
        task = await caller.task("go", config(hook.url, id="mine"), return_immediately=True)
        await caller.create(task.id, other.url, id="other")
        await caller.settled(task.id, PushState.SUSPENDED, "mine")
        found = await run("list", "--store", url, cwd=tmp_path)
        assert names(found["webhooks"]) == [f"{task.id}/mine"]
        hook.answer = lambda told: 200
        hook.told.clear()
        resumed = await run("resume", "mine", "--store", url, cwd=tmp_path)
        assert names(resumed["resumed"]) == [f"{task.id}/mine"]
        await hook.until(bool)
        assert hook.told[0].number == 2
        gate.set()
        await caller.settled(task.id, PushState.DONE, "mine")
        await caller.settled(task.id, PushState.DONE, "other")
        events = await caller.store.events(task.id, 0, 100)
        assert [told.number for told in hook.told] == [event.seq for event in events][1:]
