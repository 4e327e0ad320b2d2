"""``parley.complete``: an event is completed from any process that knows the store."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, EventCompleted, StoreError, Turn
from parley.database.sqlite.private_file import LockFile
from parley.host.store_urls import open_admin, open_store
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.tables import MAX_EVENT_BYTES
from parley.store.sqlite.operator import OperatorSocket
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

posix = pytest.mark.skipif(os.name != "posix", reason="a process is asked by a socket of POSIX's")

COMPLETING = """
import asyncio, sys, parley
print(asyncio.run(parley.complete("payment:42", {"paid": True}, agent="shop", store=sys.argv[1])))
print(parley.complete_sync("payment:42", {"paid": True}, agent="shop", store=sys.argv[1]))
"""


def shop() -> Agent:
    agent = Agent("Shop")

    @agent.skill
    async def sell(turn: Turn) -> str:
        return "sold"

    return agent


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that does not exist yet."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'tasks.db'}"


async def value_in(url: str, agent: str, key: str) -> bytes | None:
    store = open_store(url)
    await store.open(lambda records: None)
    try:
        return await store.event(agent, key)
    finally:
        await store.close()


async def elsewhere(url: str) -> list[str]:
    """Complete an event twice in a process of its own, and return what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMPLETING, url, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().split()


@pytest.mark.slow
@posix
async def test_another_process_completes_it_while_a_server_has_the_store(url: str) -> None:
    async with serving(parley.asgi(shop(), store=url)):
        assert await elsewhere(url) == ["True", "False"]
        # The server's own process may name the store by its address, too.
        assert await parley.complete("payment:42", {"paid": True}, agent=shop(), store=url) is False
        with pytest.raises(EventCompleted, match="with another value"):
            await parley.complete("payment:42", {"paid": False}, agent="shop", store=url)
    assert await value_in(url, "shop", "payment:42") == b'{"paid":true}'


@pytest.mark.slow
async def test_another_process_completes_it_while_no_server_runs(url: str) -> None:
    open_admin(url).migrate()
    assert await elsewhere(url) == ["True", "False"]
    assert await value_in(url, "shop", "payment:42") == b'{"paid":true}'


@pytest.mark.slow
async def test_a_server_starts_while_another_process_completes_an_event(tmp_path: Path) -> None:
    """Who completes has the file for a moment, which a server waits for."""
    path = tmp_path / "tasks.db"
    open_admin(f"sqlite:///{path}").migrate()
    completing = LockFile(tmp_path / "tasks.db.lock")
    store = SqliteTaskStore(path)
    opening = asyncio.create_task(store.open(lambda records: None))
    await let_time_pass(0.2)
    assert not opening.done()
    completing.release()
    await opening
    await store.close()


@pytest.mark.slow
@posix
async def test_it_is_completed_while_a_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has the file and cannot be asked yet is asked when it can."""
    path, is_asked = tmp_path / "tasks.db", asyncio.Event()
    open_admin(f"sqlite:///{path}").migrate()
    listen = OperatorSocket.open

    async def listen_late(socket: OperatorSocket) -> None:
        is_asked.set()
        await let_time_pass(0.3)
        await listen(socket)

    monkeypatch.setattr(OperatorSocket, "open", listen_late)
    store = SqliteTaskStore(path)
    opening = asyncio.create_task(store.open(lambda records: None))
    await is_asked.wait()
    assert await parley.complete("k", 1, agent="shop", store=f"sqlite:///{path}") is True
    await opening
    assert await store.event("shop", "k") == b"1"
    await store.close()


@pytest.mark.slow
async def test_it_is_of_one_agent(url: str) -> None:
    open_admin(url).migrate()
    for agent in ("shop", "bank"):
        assert await parley.complete("k", agent, agent=agent, store=url) is True
    assert await value_in(url, "bank", "k") == b'"bank"'


@pytest.mark.slow
async def test_without_a_value_it_is_null(url: str) -> None:
    open_admin(url).migrate()
    assert await parley.complete("k", agent="shop", store=url)
    assert await value_in(url, "shop", "k") == b"null"


async def test_an_open_store_will_do() -> None:
    store: TaskStore = MemoryTaskStore()
    await store.open(lambda records: None)
    assert await parley.complete("k", [1, 2.5], agent="shop", store=store) is True
    assert await parley.complete("k", [1, 2.5], agent="shop", store=store) is False
    with pytest.raises(EventCompleted):
        await parley.complete("k", None, agent="shop", store=store)
    assert await store.event("shop", "k") == b"[1,2.5]"
    await store.close()


async def test_a_store_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "no.db"
    for complete in (_async, _sync):
        with pytest.raises(StoreError, match=r"no\.db: give the URL"):
            await complete("k", agent="shop", store=f"sqlite:///{path}")
    assert not path.exists()


@pytest.mark.service
async def test_a_database_without_a_store_is_not_made_one(postgres_url: str) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        await parley.complete("k", agent="shop", store=postgres_url)
    assert open_admin(postgres_url).schema().version == 0


async def _async(*args: Any, **options: Any) -> bool:
    return await parley.complete(*args, **options)


async def _sync(*args: Any, **options: Any) -> bool:
    return await asyncio.to_thread(parley.complete_sync, *args, **options)


@pytest.mark.parametrize("complete", [_async, _sync])
@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"store": "memory:"}, ValueError, "only the process of a memory: store"),
        ({"store": "mysql://host/db"}, ValueError, "names no store"),
        ({"agent": ""}, ValueError, "an agent or its key"),
        ({"agent": None}, ValueError, "an agent or its key"),
        ({"key": ""}, ValueError, "the key of an event"),
        ({"key": "x" * 513}, ValueError, "the key of an event"),
        ({"key": 42}, ValueError, "the key of an event"),
        ({"value": {"at": object()}}, TypeError, "the value of the event 'k': the object at .at "),
        ({"value": {1: 2}}, TypeError, "has no other keys"),
        ({"value": (1, 2)}, TypeError, "use a list"),
        ({"value": float("nan")}, TypeError, "JSON has no nan"),
        ({"value": "\ud800"}, TypeError, "surrogate"),
        ({"value": "x" * MAX_EVENT_BYTES}, ValueError, f"{MAX_EVENT_BYTES} bytes at most"),
    ],
)
async def test_what_cannot_be_is_refused(
    complete: Callable[..., Any],
    given: dict[str, Any],
    kind: type[Exception],
    words: str,
    tmp_path: Path,
) -> None:
    options = {"store": f"sqlite:///{tmp_path / 'tasks.db'}", "agent": "shop", "key": "k", **given}
    with pytest.raises(kind, match=words):
        await complete(options.pop("key"), options.pop("value", None), **options)


def test_the_blocking_form_needs_an_address() -> None:
    with pytest.raises(TypeError, match="the URL of a store"):
        parley.complete_sync("k", agent="shop", store=MemoryTaskStore())  # type: ignore[arg-type]
