"""``parley.complete``: any process that knows the store completes an event."""

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
from parley.host.store_urls import open_admin, open_store
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.tables import MAX_EVENT_BYTES
from parley.store.task_store import TaskStore

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
    """Complete an event twice in another process, and return its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", COMPLETING, url, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().split()


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
