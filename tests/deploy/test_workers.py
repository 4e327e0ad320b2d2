"""``parley serve --workers N``: one address, several processes, and a parent."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import parley
from tests.deploy.proxied import listens
from tests.kit.http import ask
from tests.kit.processes import Running, below, free_port
from tests.kit.waiting import block_thread, let_time_pass

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.service,
    pytest.mark.skipif(os.name != "posix", reason="workers are forked"),
]

AGENT = str(Path(__file__).with_name("agent.py"))
BOUND = 30


class Parent(Running):
    """``parley serve --workers 2`` on PostgreSQL."""

    def __init__(self, store: str, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        words = ["serve", AGENT, "--store", store, "--port", str(self.port), "--workers", "2"]
        super().__init__([*words, "--lease", "2s", "--grpc-port", "0", "--metrics"], folder)

    @property
    def workers(self) -> set[int]:
        return set(below(self.process.pid))

    async def answering(self, binding: str = "") -> set[int]:
        """Return the workers that answer, asked over new connections."""
        found = set()
        for _ in range(16):
            async with parley.connect(self.url, binding=binding) as agent:
                found.add(int(str(await agent.send("?", message_metadata={"skill": "who"}))))
        return found

    async def until_all_answer(self, *besides: int) -> set[int]:
        """Wait until two workers other than ``besides`` answer, and return them."""
        async with asyncio.timeout(BOUND):
            while len(found := await self.answering()) < 2 or found & {*besides}:
                await let_time_pass(0.05)
        return found


@pytest.fixture
def parent(postgres_url: str, tmp_path: Path) -> Iterator[Parent]:
    with Parent(postgres_url, tmp_path) as parent:
        parent.until("Ctrl-C stops the server")
        yield parent


def until_gone(pids: set[int]) -> None:
    for _ in range(BOUND * 50):
        if not [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
            return
        block_thread(0.02)
    raise AssertionError(f"{pids} still run")


async def test_all_workers_answer_and_a_dead_one_is_replaced(parent: Parent) -> None:
    workers = await parent.until_all_answer()
    assert workers == parent.workers == await parent.answering("GRPC")
    parent.process.send_signal(signal.SIGHUP)
    assert await parent.until_all_answer() == workers
    dead, alive = workers
    os.kill(dead, signal.SIGKILL)
    assert alive in await parent.until_all_answer(dead)
    os.kill(alive, signal.SIGTERM)  # drained by hand: another one follows at once
    await parent.until_all_answer(dead, alive)
    assert (
        f"worker {dead} was killed by signal 9; another one starts in 0.5 seconds" in parent.stderr
    )
    assert f"worker {alive} exited with status 0; another one starts in 0.0" in parent.stderr
    assert parent.stdout.count("Ctrl-C stops the server") == 1


async def test_each_worker_has_the_metrics_of_all_and_a_dead_one_keeps_its_counts(
    parent: Parent,
) -> None:
    workers = await parent.until_all_answer()
    before = await counted(parent.url)
    for _ in range(20):
        async with parley.connect(parent.url) as agent:
            await agent.send("?", message_metadata={"skill": "who"})
    assert {await counted(parent.url) for _ in range(10)} == {before + 20}
    os.kill(dead := workers.pop(), signal.SIGKILL)
    await parent.until_all_answer(dead)
    assert await counted(parent.url) >= before + 20


async def counted(url: str) -> float:
    text = (await ask(url, "GET", "/metrics")).body.decode()
    assert "parley_queue_age_seconds" in text
    return sum(
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("parley_turn_duration_seconds_count")
    )


async def test_all_workers_reload_the_file_of_settings(postgres_url: str, tmp_path: Path) -> None:
    file = tmp_path / "parley.toml"
    file.write_text('limits = ["900/minute per caller"]')
    with Parent(postgres_url, tmp_path) as parent:
        workers = await parent.until_all_answer()
        file.write_text('limits = ["800/minute per caller"]')
        parent.process.send_signal(signal.SIGHUP)
        parent.until("reloaded: limits", times=len(workers))
        assert await parent.until_all_answer() == workers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_all_workers(parent: Parent, tmp_path: Path, number: int) -> None:
    await parent.until_all_answer()
    workers = parent.workers
    go = tmp_path / "go"
    async with (
        asyncio.timeout(BOUND),
        parley.connect(parent.url) as agent,
        asyncio.TaskGroup() as group,
    ):
        answer = group.create_task(agent.send(str(go), message_metadata={"skill": "halves"}))
        while not (await agent.list(include_artifacts=True)).tasks:
            await let_time_pass(0.02)
        # systemd signals every process of a unit: a second signal ends no worker at once.
        for pid in (*workers, parent.process.pid):
            os.kill(pid, number)
        while listens(parent.port):
            await let_time_pass(0.02)
        go.touch()
        assert await asyncio.to_thread(parent.end) == 0
    assert "the rest" in str(answer.result())
    until_gone(workers)
    assert "Traceback" not in parent.stderr


async def test_workers_end_when_their_parent_is_killed(parent: Parent) -> None:
    workers = await parent.until_all_answer()
    parent.process.kill()
    until_gone(workers)


async def test_a_worker_that_cannot_start_ends_all_with_its_error(tmp_path: Path) -> None:
    with Parent("postgresql://127.0.0.1:1/none", tmp_path) as parent:
        assert parent.end() == 1
    assert parent.stderr.count("cannot be reached") == 1
    assert parent.stdout == ""
