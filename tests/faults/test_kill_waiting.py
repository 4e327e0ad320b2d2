"""Tasks that wait in every way survive kills: no wait is forgotten, and no act is repeated."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import parley
from parley import (
    A2AError,
    Agent,
    ClientError,
    Execution,
    Message,
    Part,
    Role,
    StoreError,
    TaskState,
    Turn,
)
from parley.host.store_urls import open_store
from parley.server.run import serving
from parley.store.events import RecordKind, StepResult
from tests.fleet.fleet import Fleet, fleet_of
from tests.kit.waiting import let_time_pass

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROUNDS = int(os.environ.get("PARLEY_KILLS", "1"))
TASKS = 6
KILLS = int(os.environ.get("PARLEY_KILLS_A_ROUND", "6"))
PAUSE = 7.2 / KILLS
WAITING = Path(__file__).with_name("waiting.py")
SECONDS = 200.0

FLEETS = [
    pytest.param("sqlite", ("both",), id="sqlite"),
    pytest.param("postgres", ("both", "both"), id="postgres", marks=pytest.mark.service),
    pytest.param("postgres", ("api", "worker", "worker"), id="roles", marks=pytest.mark.service),
]


class Peer:
    """Another agent, which stays up and counts its messages."""

    def __init__(self) -> None:
        self.messages: Counter[str] = Counter()
        self.agent = Agent("Peer", execution=Execution(max_attempts=1))

        @self.agent.skill(replies="task")
        async def work(turn: Turn) -> str:
            """Takes a moment."""
            self.messages[turn.text] += 1
            await turn.working("at it")
            await asyncio.sleep(0.5)
            return f"did {turn.text}"


class World:
    """The outside world: it pays, approves and answers as soon as tasks ask."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.paid: Counter[str] = Counter()
        self.approved: Counter[str] = Counter()
        self.faults: list[str] = []

    def acts(self, verb: str) -> list[list[str]]:
        """Return the acts of a kind that tasks recorded, without the verb."""
        path = self.fleet.home / "acts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(f"{verb} ")]

    async def pay(self) -> None:
        """Post to each callback until it succeeds, and once more; then expect an error for another
        value."""
        async with aiohttp.ClientSession() as session:

            async def post(url: str, value: Any, *expected: int) -> int:
                while True:
                    try:
                        async with session.post(url, json=value) as answer:
                            if answer.status < 500:
                                if answer.status not in expected:
                                    self.faults.append(f"{answer.status} for {url}")
                                return answer.status
                    except (aiohttp.ClientError, OSError):
                        pass
                    await let_time_pass(0.05)

            while True:
                for name, address in self.acts("pay"):
                    if not self.paid[name]:
                        await post(address, {"paid": name}, 204)
                        self.paid[name] += 1
                        await post(address, {"paid": name}, 204)
                        await post(address, {"paid": "other"}, 409)
                await let_time_pass(0.05)

    async def approve(self) -> None:
        """Complete each event in the store, from this process, and retry until that succeeds."""
        store = self.fleet.store
        while True:
            for (name,) in self.acts("approve"):
                while not self.approved[name]:
                    try:
                        await parley.complete(
                            f"approved:{name}", {"approved": name}, agent="waiting", store=store
                        )
                        self.approved[name] += 1
                    except parley.EventCompleted as error:
                        self.faults.append(str(error))
                        return
                    except StoreError:
                        await let_time_pass(0.05)
            await let_time_pass(0.05)

    async def answer(self, task_ids: list[str]) -> None:
        """Answer each question, with the same message until the agent accepts it once."""
        while True:
            for task_id in task_ids:
                await self._answer(task_id)
            await let_time_pass(0.05)

    async def _answer(self, task_id: str) -> None:
        async def send(remote: parley.RemoteAgent) -> None:
            task = await remote.get(task_id)
            if task.state is TaskState.INPUT_REQUIRED:
                answer = Message(
                    message_id=f"answer-{task_id}",
                    role=Role.USER,
                    task_id=task_id,
                    parts=(Part(text="yes"),),
                )
                await remote.send(answer, return_immediately=True)

        await self.once(send)

    async def once(self, do: Callable[[parley.RemoteAgent], Awaitable[Any]]) -> Any:
        """Run a function with a client of the agent, and retry until no fault interrupts it."""
        while True:
            try:
                async with asyncio.timeout(10), parley.connect(self.fleet.url, retries=0) as remote:
                    return await do(remote)
            except (ClientError, A2AError, TimeoutError):
                await let_time_pass(0.05)

    async def begin(self, name: str, skill: str) -> str:
        """Begin a task once, and return its id."""
        message = Message(message_id=f"begin-{name}", role=Role.USER, parts=(Part(text=name),))
        options = {"metadata": {"skill": skill}, "return_immediately": True}
        task = await self.once(lambda remote: remote.send(message, **options))
        return str(task.id)

    async def end_of(self, task_id: str) -> parley.Task:
        """Return a task once it has ended."""
        while True:
            task: parley.Task = await self.once(lambda remote: remote.get(task_id))
            if task.state.is_terminal:
                return task
            await let_time_pass(0.1)


@asynccontextmanager
async def killing(fleet: Fleet, chance: random.Random) -> AsyncIterator[None]:
    """Kill and restart replicas at random moments within the context.

    Make at most ``KILLS`` kills: on a slow machine, each kill hits a replica that has hardly begun.
    """

    over = False

    async def strike() -> None:
        for _ in range(KILLS):
            if over:
                return
            await let_time_pass(chance.uniform(0.0, PAUSE))
            victim = fleet.one(chance)
            await victim.end()
            await let_time_pass(chance.uniform(0.0, 0.3))
            await victim.start()

    async with asyncio.TaskGroup() as group:  # if a replica does not start, the test ends
        group.create_task(strike())
        yield
        over = True


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("skill", ["one_by_one", "at_once"])
@pytest.mark.parametrize(("store", "roles"), FLEETS)
async def test_tasks_that_wait_survive_kills(
    store: str,
    roles: tuple[str, ...],
    skill: str,
    seed: int,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    chance = random.Random(f"{store} {roles} {skill} {seed}")
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    if store == "postgres":
        url = request.getfixturevalue("postgres_url")
    peer = Peer()
    async with (
        serving(parley.asgi(peer.agent)) as there,
        fleet_of(
            len(roles), tmp_path, store=url, roles=roles, seed=seed, script=WAITING, peer=there
        ) as fleet,
    ):
        world = World(fleet)
        names = [f"{skill}-{seed}-{n}" for n in range(TASKS)]
        ids: list[str] = []
        works = [asyncio.create_task(each) for each in (world.pay(), world.approve())]
        try:
            async with asyncio.timeout(SECONDS), killing(fleet, chance):
                ids += [await world.begin(name, skill) for name in names]
                works.append(asyncio.create_task(world.answer(ids)))
                ended = [await world.end_of(task_id) for task_id in ids]
        except TimeoutError:
            pytest.fail(await _standing(world, ids))
        finally:
            for each in works:
                each.cancel()
            await asyncio.gather(*works, return_exceptions=True)
        for name, task in zip(names, ended, strict=True):
            assert task.state is TaskState.COMPLETED, (task.status, fleet.logs())
            assert json.loads(task.text) == {
                "nap": "slept",
                "payment": {"paid": name},
                "approval": {"approved": name},
                "patience": "in vain",
                "question": "yes",
                "work": f"did {name}",
            }
        total = await world.once(lambda remote: remote.list())
        assert total.total_size == TASKS
    assert world.faults == []
    assert peer.messages == dict.fromkeys(names, 1)
    assert {name for name, _ in world.acts("pay")} == set(names)
    await check_logs(url, ids)


async def _standing(world: World, ids: list[str]) -> str:
    """Describe the state of unfinished tasks."""
    lines = [f"paid {dict(world.paid)}", f"approved {dict(world.approved)}", *world.faults]
    for task_id in ids:
        task = await world.once(lambda remote, id=task_id: remote.get(id))
        lines.append(f"{task_id} {task.state} {task.status.message}")
    return "\n".join([*lines, world.fleet.logs()])


async def check_logs(url: str, task_ids: list[str]) -> None:
    """Check that no work is left, and that every wait, step and call is in the log once."""
    store = open_store(url)
    await store.open(lambda records: None)
    try:
        for task_id in task_ids:
            record = await store.load(task_id)
            assert record is not None
            assert not record.turn_open
            assert (record.waiting, record.wakes_at) == (0, None)
            found = await store.private_records(task_id, [RecordKind.REMEMBERED])
            keys = Counter(each.event.key for each in found if isinstance(each.event, StepResult))
            once = {key: n for key, n in keys.items() if not key.startswith("call")}
            assert set(once.values()) == {1}, once
        assert await store.next_wake(["waiting"]) is None
    finally:
        await store.close()
