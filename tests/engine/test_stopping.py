"""The end of a host: a failure does not keep other parts open, and the file can be opened again."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from parley import Agent, Execution, Turn
from parley.host.app import asgi
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.security.egress import Egress
from parley.store.sqlite.store import SqliteTaskStore
from tests.engine.talk import Talk
from tests.kit.waiting import let_time_pass, until
from tests.kit.webhooks import webhook
from tests.push.pushing import Pushed

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


def host_of(agent: Agent, path: Path, kind: Any = SqliteTaskStore, **options: Any) -> Host:
    store = kind(path, synchronous="OFF")
    return Host(placed(agent), store, ServerOptions(**{"drain": 0.0} | options))


def quick() -> Agent:
    agent = Agent("Quick", execution=Execution(cancel_grace=0.2))

    @agent.skill(replies="task")
    async def answer(turn: Turn) -> str:
        return "done"

    return agent


def waiting(gate: asyncio.Event, **options: Any) -> Agent:
    agent = Agent("Waiting", execution=Execution(cancel_grace=0.2, **options))

    @agent.skill(replies="task")
    async def wait(turn: Turn) -> str:
        await gate.wait()
        return "done"

    return agent


def sockets() -> int:
    """The number of sockets of the process, where the system reports it."""
    if sys.platform != "linux":
        return 0
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
    return count


def ours() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("parley")}


@asynccontextmanager
async def nothing_is_left(path: Path, besides: str = "") -> AsyncIterator[None]:
    """Check that the body's tasks, threads and sockets end, and that it releases the file's lock.

    ``besides`` is part of the name of a coroutine that cannot be ended.
    """
    tasks, threads, lines = asyncio.all_tasks(), ours(), sockets()
    yield
    async with asyncio.timeout(10):
        while left := {
            task
            for task in asyncio.all_tasks() - tasks
            if not besides or besides not in repr(task.get_coro())
        }:
            await asyncio.wait(left)
        await until(lambda: not ours() - threads and sockets() <= lines)
    if path.parent.is_dir():
        after = host_of(quick(), path)
        await after.start()
        await Talk(after.services[""], after).task("again")
        await after.stop()


async def test_a_sender_whose_wait_has_just_expired_does_not_keep_the_server_from_closing(
    path: Path,
) -> None:
    gate = asyncio.Event()
    async with nothing_is_left(path):
        host = host_of(waiting(gate, max_running=1), path)
        await host.start()
        talk = Talk(host.services[""], host)
        senders = [asyncio.create_task(talk.send(word)) for word in ("first", "second")]
        replies = talk.executor.remote_replies
        async with asyncio.timeout(10):
            while not replies._waits:
                await asyncio.sleep(0)
        (wait,) = replies._waits
        wait.reschedule(0)
        while not wait.expired():
            await asyncio.sleep(0)
        replies.close()  # the server does this when it ends, at this very moment
        await host.stop()
        await asyncio.gather(*senders)


async def test_an_agent_that_does_not_end_does_not_keep_the_server_from_closing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    agent, gate = Agent("Deaf", execution=Execution(cancel_grace=0.1)), asyncio.Event()

    @agent.skill(replies="task")
    async def deaf(turn: Turn) -> None:
        while not gate.is_set():
            with suppress(asyncio.CancelledError):
                await gate.wait()

    async with nothing_is_left(path, besides="TaskRunner._run"):
        host = host_of(agent, path)
        await host.start()
        await Talk(host.services[""], host).task("hello", return_immediately=True)
        await host.stop()
    assert "1 turns did not end when they were stopped" in caplog.text
    gate.set()


async def _cancelled(work: Callable[[], Awaitable[None]], after: int) -> bool:
    """Cancel the work after this many rounds of the loop; return whether it was still running."""
    task = asyncio.ensure_future(work())
    for _ in range(after):
        await let_time_pass(0.0005 if after > 20 else 0)
    was_quicker = not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return was_quicker and task.cancelled()


@pytest.mark.parametrize("after", [*range(1, 12), 15, 20, 25, 30])
async def test_a_stop_that_is_cancelled_at_any_moment_closes_everything(
    path: Path, after: int
) -> None:
    async with webhook() as hook, nothing_is_left(path):
        forever, began = asyncio.Event(), asyncio.Event()

        async def never(told: Any) -> int:
            began.set()
            await forever.wait()
            return 200

        hook.answer = never
        host = host_of(waiting(forever), path, drain=600.0, egress=Egress.allowing(True))
        await host.start()
        await Pushed(host).send("hello", f"{hook.url}/a", return_immediately=True)
        await began.wait()
        assert await _cancelled(host.stop, after)
        forever.set()


async def test_what_is_left_when_a_wait_for_the_end_is_over_goes_on_at_the_next_start(
    path: Path,
) -> None:
    gate = asyncio.Event()
    host = host_of(waiting(gate), path, drain=60.0)
    await host.start()
    task = await Talk(host.services[""], host).task("hello", return_immediately=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await host.stop()
    gate.set()
    after = host_of(waiting(gate), path)
    await after.start()
    async with asyncio.timeout(10):
        while not (await after.store.load(task.id)).task.state.is_terminal:  # type: ignore[union-attr]
            await let_time_pass(0.01)
    await after.stop()


# The app


class SlowToCount(SqliteTaskStore):
    """An open store that never returns the number of unclaimed tasks."""

    asked: asyncio.Event

    async def unclaimed(self) -> Mapping[str, int]:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("begun", [False, True])
async def test_a_server_that_gives_its_lifespan_up_leaves_nothing_open(
    path: Path, begun: bool
) -> None:
    gate = asyncio.Event()
    async with nothing_is_left(path):
        store = SqliteTaskStore(path) if begun else SlowToCount(path)
        if isinstance(store, SlowToCount):
            store.asked = asyncio.Event()
        app = asgi(waiting(gate), store=store, drain=60.0)
        sent: asyncio.Queue[Any] = asyncio.Queue()
        messages = iter([{"type": "lifespan.startup"}])

        async def receive() -> Any:
            message = next(messages, None)
            if message is None:
                await asyncio.Event().wait()
            return message

        living = asyncio.create_task(app({"type": "lifespan"}, receive, sent.put))
        if isinstance(store, SlowToCount):
            await store.asked.wait()
        else:
            assert (await sent.get())["type"] == "lifespan.startup.complete"
        living.cancel()
        with pytest.raises(asyncio.CancelledError):
            await living


@pytest.mark.parametrize("after", [*range(12), 15, 20, 25, 30])
async def test_a_start_that_is_cancelled_at_any_moment_leaves_nothing_open(
    path: Path, after: int
) -> None:
    async with nothing_is_left(path):
        host = host_of(quick(), path)
        if not await _cancelled(host.start, after):
            await host.stop()
