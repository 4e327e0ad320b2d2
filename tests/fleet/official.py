"""Callers with the official SDK's clients, of 1.3 and of 0.3, which do not resume a cut stream.

Their events have no numbers, but the chunks have numbers. At any moment, a reader's text is
therefore a prefix of the agent's output: a lost, doubled or misplaced chunk would show. After a
cut, a reader asks for the task again, as the specification says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any
from uuid import uuid4

from tests.fleet.callers import LONG
from tests.fleet.fleet import Fleet
from tests.fleet.ledger import numbers
from tests.fleet.load import Load
from tests.kit.waiting import let_time_pass
from tests.peers.conftest import command_of
from tests.peers.official_caller import Official, Process, Refused, official_process

WAYS = (
    ("python-1.3", "JSONRPC", "1.0"),
    ("python-1.3", "HTTP+JSON", "1.0"),
    ("python-0.3", "JSONRPC", "0.3"),
    ("python-0.3", "HTTP+JSON", "0.3"),
)
ENDS = {"completed", "failed", "canceled", "rejected"}


class Reader:
    """A reader's state of one task: its text, and its end."""

    def __init__(self, whole: str) -> None:
        self.whole = whole
        self.task_id = ""
        self.text = ""
        self.state = ""

    @property
    def is_over(self) -> bool:
        """Whether the reader has seen the end of the task."""
        return self.state in ENDS

    def take(self, event: dict[str, Any]) -> None:
        """Apply an event of either version, and check that it fits the earlier events."""
        kind, value = self._opened(event)
        assert not (self.is_over and kind != "task"), f"after the end came {event}"
        if kind == "task":
            self.task_id = value["id"]
            self.text = "".join(text_of(each) for each in value.get("artifacts", ()))
        elif kind == "artifact":
            chunk = text_of(value["artifact"])
            self.text = self.text + chunk if value.get("append") else chunk
        if kind != "artifact":
            said = str(value["status"]["state"])
            self.state = said.removeprefix("TASK_STATE_").lower()
        assert self.whole.startswith(self.text), f"{self.text[-80:]!r} came of {event}"

    @staticmethod
    def _opened(event: dict[str, Any]) -> tuple[str, Any]:
        if "kind" in event:
            kinds = {"task": "task", "artifact-update": "artifact", "status-update": "status"}
            return kinds[event["kind"]], event
        [(name, value)] = event.items()
        names = {"task": "task", "artifactUpdate": "artifact", "statusUpdate": "status"}
        return names[name], value


def text_of(value: Any) -> str:
    """Return the text of an artifact."""
    return "".join(part.get("text", "") for part in value["parts"])


def request_of(text: str, version: str) -> dict[str, Any]:
    """Return the parameters that send a text to ``report``."""
    said: dict[str, Any] = {"messageId": uuid4().hex, "metadata": {"skill": "report"}}
    if version == "0.3":
        parts = [{"kind": "text", "text": text}]
        return {"message": {**said, "kind": "message", "role": "user", "parts": parts}}
    return {"message": {**said, "role": "ROLE_USER", "parts": [{"text": text}]}}


async def read(client: Official, load: Load, chance: random.Random) -> bool:
    """Send a message and read its task to the end, over any number of streams.

    Return ``False`` if the reader never got a task: the final check covers such tasks.
    """
    count = chance.randint(20, 80)
    reader = Reader(numbers(count))
    request = request_of(f"{count} {chance.randint(1, 20)}", client.version)
    try:
        async with aclosing(client.items("stream", request)) as events:
            async for event in events:
                reader.take(event)
    except (Refused, TimeoutError) as error:
        load.book.refused[f"{client.peer} {kind_of(error)}"] += 1
    if not reader.task_id:
        return False
    while not reader.is_over:
        await let_time_pass(chance.uniform(0.05, 0.3))
        params = {"id": reader.task_id}
        try:
            async with aclosing(client.items("subscribe", params)) as events:
                async for event in events:
                    reader.take(event)
        except (Refused, TimeoutError):
            # A task that has ended rejects subscriptions: the task itself is then the last event.
            try:
                task = await client.call("get", params)
            except (Refused, TimeoutError) as error:
                load.book.refused[f"{client.peer} {kind_of(error)}"] += 1
            else:
                said = str(task["status"]["state"]).removeprefix("TASK_STATE_").lower()
                if said in ENDS:
                    reader.take(task if "kind" in task else {"task": task})
    assert (reader.state, reader.text) == ("completed", reader.whole), reader.task_id
    load.book.done[f"official {client.version}"] += 1
    return True


def kind_of(error: Exception) -> str:
    """Return the client's name for its failure."""
    return error.kind if isinstance(error, Refused) else type(error).__name__


@asynccontextmanager
async def official_processes() -> AsyncIterator[dict[str, Process]]:
    """The processes of the official clients, by name."""
    async with AsyncExitStack() as stack:
        processes = {}
        for peer in sorted({peer for peer, _, _ in WAYS}):
            words = command_of(peer, "clients")
            processes[peer] = await stack.enter_async_context(official_process(words))
        yield processes


@asynccontextmanager
async def official_readers(
    processes: dict[str, Process], fleet: Fleet, load: Load, seed: int
) -> AsyncIterator[None]:
    """Run official clients on a fleet within the context, and wait for their end.

    Each binding of each version reads at least one task to its end.
    """
    over = asyncio.Event()

    async def work(client: Official, chance: random.Random) -> None:
        done = False
        while not (done and over.is_set()):
            async with asyncio.timeout(LONG):
                done = await read(client, load, chance) or done

    async with asyncio.TaskGroup() as working:
        for n, (peer, binding, version) in enumerate(WAYS):
            client = Official(peer, processes[peer], fleet.url, binding, version)
            working.create_task(work(client, random.Random(f"{seed} official {n}")))
        try:
            yield
        finally:
            over.set()
