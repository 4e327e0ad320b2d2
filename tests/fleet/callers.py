"""Callers with Parley's client, which record all responses.

Each caller does one thing with one task and never gives up. Callers only record the outcomes;
``ledger.check_outcome`` checks them.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

import parley
from parley import RemoteAgent, Task, TaskState
from parley.client.errors import Disconnected, UnexpectedStatus, Unreachable
from parley.client.retry import TRANSIENT_STATUSES, Retry
from parley.model.errors import OverloadedError, TaskNotCancelableError
from tests.fleet.book import Book
from tests.kit.waiting import let_time_pass
from tests.kit.webhooks import Webhook

PATIENT = Retry(calls=400, streams=400, first=0.05, limit=0.5)
"""Retries for about three minutes: longer than any fault lasts."""

LONG = 180.0


class World:
    """A caller's environment: the agent's address, a client, a book, a webhook and chance."""

    def __init__(
        self, url: str, agent: RemoteAgent, book: Book, hook: Webhook, chance: random.Random
    ) -> None:
        self.url = url
        self.agent = agent
        self.book = book
        self.hook = hook
        self.chance = chance

    async def begin(self, skill: str, text: str, **options: Any) -> Task:
        """Begin a task, and return at once."""
        answer = await self.agent.send(
            text, message_metadata={"skill": skill}, return_immediately=True, **options
        )
        assert answer.id, answer
        self.book.says(answer.id, text)
        return answer

    async def say(self, task_id: str, text: str, **options: Any) -> Task:
        """Send a message to a task."""
        answer = await self.agent.send(text, task_id=task_id, **options)
        assert answer.id, answer
        self.book.says(task_id, text)
        return answer

    async def cancel(self, task_id: str) -> Task:
        """Cancel a task, and retry after a lost response; the client itself does not."""
        while True:
            try:
                return await self.agent.cancel(task_id)
            except TaskNotCancelableError:
                return await self.agent.get(task_id)  # the call with the lost response canceled it
            except (Disconnected, Unreachable, OverloadedError, UnexpectedStatus) as error:
                if getattr(error, "status", 503) not in TRANSIENT_STATUSES:
                    raise
                self.book.refused["canceler"] += 1
                await let_time_pass(0.1)

    async def follow(self, task_id: str) -> None:
        """Read all events of a task with Parley's client."""
        await self.take_down("subscriber", self.agent.subscribe(task_id, after=0))

    async def take_down(self, who: str, stream: Any) -> None:
        """Read a stream to its end, and record it."""
        numbered = [(stream.seq, event) async for event in stream]
        self.book.read(who, stream.task_id, numbered)

    async def watch(self, task_id: str) -> None:
        """Read all events of a task without Parley's client, which would hide repeats.

        Each connection has to begin with the next event after the last seen event.
        """
        numbered: list[tuple[int, Any]] = []
        body = {"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task_id}}
        async with aiohttp.ClientSession() as session:
            while not (numbered and is_end(numbered[-1][1])):
                last = numbered[-1][0] if numbered else 0
                headers = {"A2A-Version": "1.0", "Last-Event-ID": str(last)}
                try:
                    async with session.post(self.url, json=body, headers=headers) as answer:
                        if answer.content_type == "text/event-stream":
                            async for number, event in frames(answer):
                                assert number == last + 1, f"event {number} came after {last}"
                                last = number
                                numbered.append((number, event))
                        else:
                            await refused(answer)
                except (aiohttp.ClientError, OSError):
                    self.book.refused["watcher"] += 1
                    await let_time_pass(0.1)
        self.book.read("watcher", task_id, numbered)


async def refused(answer: aiohttp.ClientResponse) -> None:
    """Check that the error permits a retry, and wait before it."""
    text = await answer.text()
    assert answer.status in TRANSIENT_STATUSES, f"{answer.status} {text[:500]}"
    await let_time_pass(0.1)


async def frames(answer: aiohttp.ClientResponse) -> Any:
    """Yield the events of a stream and their numbers."""
    number, data = None, ""
    async for raw in answer.content:
        line = raw.decode().rstrip("\n")
        if line.startswith("id:"):
            number = int(line[3:])
        elif line.startswith("data:"):
            data += line[5:]
        elif not line and data:
            said = json.loads(data)
            assert "result" in said, said
            assert number is not None, said
            yield number, said["result"]
            number, data = None, ""


def is_end(event: Any) -> bool:
    """Return whether an event, as JSON, ends its task."""
    state = (event.get("statusUpdate") or event.get("task") or {}).get("status", {}).get("state")
    return state in {f"TASK_STATE_{s}" for s in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")}


# -- callers ---------------------------------------------------------------------------------------


async def stream(world: World) -> None:
    """Send a message and read the stream of its reply."""
    text = f"{world.chance.randint(20, 80)} {world.chance.randint(1, 25)}"
    events = world.agent.stream(text, message_metadata={"skill": "report"})
    await world.take_down("streamer", events)
    world.book.says(events.task_id, text)
    world.book.answers.append(await world.agent.get(events.task_id))


async def audience(world: World) -> None:
    """Let several readers read one task, some of them late."""
    task = await world.begin("report", f"{world.chance.randint(20, 60)} 15")
    async with asyncio.TaskGroup() as readers:
        readers.create_task(world.follow(task.id))
        readers.create_task(world.watch(task.id))
        await let_time_pass(world.chance.uniform(0, 0.3))
        readers.create_task(world.watch(task.id))


async def step(world: World) -> None:
    """Wait for a task that acts outside the log."""
    text = str(world.chance.randint(3, 12))
    answer = await world.agent.send(text, message_metadata={"skill": "steps"})
    assert answer.id
    world.book.says(answer.id, text)
    world.book.answers.append(answer)
    await world.watch(answer.id)


async def many(world: World) -> None:
    """Begin several small tasks at once, and wait for each."""

    async def one() -> None:
        answer = await world.agent.send("go", message_metadata={"skill": "quick"})
        assert answer.id
        world.book.says(answer.id, "go")
        world.book.answers.append(answer)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(world.chance.randint(2, 10)):
            tasks.create_task(one())


async def chat(world: World) -> None:
    """Answer three questions."""
    task = await world.agent.send("go", message_metadata={"skill": "chat"})
    assert task.id
    world.book.says(task.id, "go")
    for word in ("red", "green", "blue"):
        assert task.state is TaskState.INPUT_REQUIRED, task
        task = await world.say(task.id, word)
    world.book.answers.append(task)
    await world.watch(task.id)


async def patron(world: World) -> None:
    """Read a task from its beginning to its end, across all its questions."""
    task = await world.agent.send("go", message_metadata={"skill": "chat"})
    assert task.id
    world.book.says(task.id, "go")
    async with asyncio.TaskGroup() as readers:
        readers.create_task(world.follow(task.id))
        for word in ("red", "green", "blue"):
            await let_time_pass(world.chance.uniform(0, 1.0))
            await world.say(task.id, word)


async def look(world: World) -> None:
    """Poll a task until it has ended."""
    task = await world.begin("report", f"{world.chance.randint(20, 60)} 15")
    looks = [task]
    while not looks[-1].state.is_terminal:
        await let_time_pass(world.chance.uniform(0.0, 0.2))
        looks.append(await world.agent.get(task.id))
    world.book.looks.append(looks)


async def mail(world: World) -> None:
    """Send messages to a task while it works, and then the message that ends it."""
    task = await world.begin("inbox", "go")
    for word in ("one", "two", "three"):
        await let_time_pass(world.chance.uniform(0, 0.2))
        await world.say(task.id, word, return_immediately=True)
    answer = await world.say(task.id, "end")
    world.book.answers.append(answer)
    await world.watch(task.id)


async def patience(world: World) -> None:
    """Wait for a slow task."""
    text = str(world.chance.randint(5, 25))
    answer = await world.agent.send(text, message_metadata={"skill": "slow"})
    assert answer.id
    world.book.says(answer.id, text)
    world.book.answers.append(answer)


async def failure(world: World) -> None:
    """Begin a task that fails, and read its events."""
    task = await world.begin(world.chance.choice(("fail", "crash")), "go")
    await world.watch(task.id)


async def cancel(world: World) -> None:
    """Cancel an endless task, and read its events."""
    task = await world.begin("forever", "go")
    async with asyncio.TaskGroup() as readers:
        readers.create_task(world.watch(task.id))
        await let_time_pass(world.chance.uniform(0, 0.4))
        ended = await world.cancel(task.id)
        assert ended.state is TaskState.CANCELED, ended.state
        world.book.answers.append(ended)


async def hooked(world: World) -> None:
    """Begin a task with a webhook."""
    path = f"/{world.chance.getrandbits(64):x}"
    text = f"{world.chance.randint(10, 40)} 10"
    url = world.hook.url.removesuffix("/hook") + path
    task = await world.begin("report", text, push=url)
    world.book.hooked[task.id] = path
    await world.watch(task.id)


Caller = Callable[[World], Awaitable[None]]
CALLERS: tuple[Caller, ...] = (
    stream, audience, step, many, chat, patron, look, mail, patience, failure, cancel, hooked,
)  # fmt: skip


def client(url: str) -> Any:
    """Return a connection that retries until it succeeds."""
    return parley.connect(url, retries=PATIENT, timeout=20.0, stream_idle_timeout=40.0)
