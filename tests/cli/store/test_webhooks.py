"""``parley store webhooks``: which are suspended, and having them told again."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from parley.database.sqlite.private_file import LockFile
from parley.host.host import Host
from parley.host.options import ServerOptions
from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig
from parley.model.tasks import TaskState
from parley.security.egress import Egress
from parley.store.admin.sqlite import SqliteAdmin
from parley.store.events import Scope
from parley.store.memory import MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.webhooks import PushRecord, PushState, WebhookFilter
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import addition, creation, status
from tests.kit.waiting import let_time_pass, until
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
    """Keep tasks of two agents, each with a webhook that is told and two that are suspended."""
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


@pytest.mark.parametrize("wrong", [[], ["--all", "a"], ["--all", "--task", "t1"]])
def test_all_or_some_have_to_be_said(parley, shop, wrong):
    ran = parley("store", "webhooks", "resume", *wrong, "--store", shop)
    assert ran.status == 2
    assert "--all" in ran.stderr
    assert parley("store", "webhooks", "list", "--store", shop).field("Suspended") == "6 webhooks"


def test_an_agent_that_is_not_there_is_said_to_be_none(parley, shop):
    for command in (["list"], ["resume"]):
        ran = parley("store", "webhooks", *command, "--agent", "bakery", "--store", shop)
        assert ran.status == 2
        assert "no data of 'bakery'; it has bank, shop" in ran.stderr


def test_there_may_be_many(parley, tmp_path):
    asyncio.run(fill(SqliteTaskStore(tmp_path / "shop.db"), 600))
    ran = parley(
        "store", "webhooks", "resume", "--all", "--store", "sqlite:///shop.db", "-o", "json"
    )
    assert len(set(names(ran.document["resumed"]))) == 1200


# -- while a server has the store ----------------------------------------------------------------


async def run(*arguments: str, cwd: Path) -> dict:
    """Return what the command says, run by a process of its own."""
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


@posix
@pytest.mark.anyio
async def test_one_that_is_not_behind_is_told_what_comes(tmp_path: Path) -> None:
    """Another webhook of its task is told meanwhile."""
    agent, gate = gated()
    store = SqliteTaskStore(tmp_path / "live.db")
    async with webhook() as hook, webhook() as other, serving(store, agent) as caller:
        task = await caller.task("go", config(hook.url, id="mine"), return_immediately=True)
        await caller.create(task.id, other.url, id="other")
        await hook.until(lambda told: len(told) == 2)
        async with asyncio.timeout(10):
            while (push := (await store.pushes(task.id))[0]).cursor < 2:
                await let_time_pass(0.005)
        await store.save_delivery(task.id, replace(push, state=PushState.SUSPENDED))
        caller.host.push.watch(task.id)
        async with asyncio.timeout(10):
            await until(lambda: len(caller.host.push._tasks[task.id] or ()) == 1)
        await run("resume", "--all", "--store", "sqlite:///live.db", cwd=tmp_path)
        async with asyncio.timeout(10):
            await until(lambda: len(caller.host.push._tasks[task.id] or ()) == 2)
        gate.set()
        await hook.until_over()


@posix
def test_a_file_that_another_kind_of_process_has_is_left_alone(parley, shop, tmp_path):
    lock = LockFile(tmp_path / "shop.db.lock")
    try:
        ran = parley("store", "webhooks", "resume", "--all", "--store", shop)
        assert ran.status == 1
        assert f"is in use by process {os.getpid()}" in ran.stderr
    finally:
        lock.release()


@posix
@pytest.mark.anyio
async def test_only_the_owner_of_the_file_may_ask_and_nonsense_does_no_harm(tmp_path: Path) -> None:
    store = SqliteTaskStore(tmp_path / "live.db")
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "live.db.sock"))  # as a process leaves it that was killed
    stale.close()
    await store.open(lambda records: None)
    path = tmp_path / "live.db.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for nonsense in (b"\n", b"{}", b"x" * 10**5 + b"\n", b'{"state": "x"}\n', b"[]\n"):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(nonsense)
        writer.write_eof()
        said = await asyncio.wait_for(reader.read(), 10)
        assert said == b"" or json.loads(said)["error"]
        writer.close()
    # One that is silent does not keep the store from closing.
    _, silent = await asyncio.open_unix_connection(path)
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await store.close()
    assert not path.exists()
    silent.close()


@pytest.mark.anyio
async def test_a_path_that_is_too_long_for_a_socket_is_no_hindrance(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    store = SqliteTaskStore(folder / "live.db")
    await store.open(lambda records: None)
    try:
        with pytest.raises(StoreUnavailable, match="is in use by process"):
            await asyncio.to_thread(SqliteAdmin(folder / "live.db").resume, WebhookFilter())
    finally:
        await store.close()


def test_what_is_in_memory_has_no_operator() -> None:
    assert not MemoryTaskStore().has_operators


def test_webhooks_that_wait_for_their_receivers_are_listed_apart(parley, tmp_path):
    async def wait() -> None:
        store = SqliteTaskStore(tmp_path / "waiting.db")
        await fill(store, 2)
        await store.open(lambda records: None)
        [*_, push] = await store.pushes("t1")
        assert push.id == "told"
        push = await store.put_push("t1", replace(push, revision="new"))
        note = "the circuit of its destination is open: it answers with HTTP 503"
        assert await store.save_delivery("t1", replace(push, note=note))
        await store.close()

    asyncio.run(wait())
    ran = parley("store", "webhooks", "list", "--store", "sqlite:///waiting.db")
    assert ran.status == 0, ran.stderr
    assert ran.field("Waiting") == "1 webhook"
    assert "behind: the circuit of its destination is open: it answers with HTTP 503" in ran.stdout
    ran = parley("store", "webhooks", "list", "--store", "sqlite:///waiting.db", "-o", "json")
    assert names(ran.document["waiting"]) == ["t1/told"]
    assert "t1/told" not in names(ran.document["webhooks"])
