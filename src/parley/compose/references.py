"""Which earlier tasks a part may be told of: those of its own agent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from parley.agent.turn import Turn
from parley.engine.turn.attempt import CALL_PREFIX, RemoteCall
from parley.model.encoding import decode
from parley.model.parts import Message
from parley.model.references import tasks_named
from parley.model.tasks import Task
from parley.store.events import RecordKind, StepResult

MOST_RECORDS = 1000
"""How many records of an earlier task are read for the calls that it made."""

MOST_TASKS = 20
"""How many earlier tasks are read, and how many of its own a part is referred to: the last ones."""


class Reachable:
    """The tasks of parts that a composition knows, by the addresses of their agents.

    A caller refers to tasks of the composition. What these began at an agent is what that agent
    knows, so it is what a message to it refers to.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._address_of: dict[str, str] = {}
        self._earlier: dict[str, list[str]] | None = None
        self._reading = asyncio.Lock()

    def add(self, answer: Task | Message, address: str) -> None:
        """Note whose task an answer is."""
        if isinstance(answer, Task):
            self._address_of[answer.id] = address

    async def by(self, address: str, task_ids: Sequence[str]) -> tuple[str, ...]:
        """Return what of the tasks that a message refers to the agent at an address knows."""
        found = [id for id in task_ids if self._address_of.get(id) == address]
        if any(id not in self._address_of for id in task_ids):
            async with self._reading:  # parts at the same time read it once
                found += (await self._began()).get(address, [])
        return tuple(dict.fromkeys(found))[-MOST_TASKS:]

    async def _began(self) -> dict[str, list[str]]:
        """Return the tasks that the composition's earlier tasks began, by their agents' addresses.

        These are the tasks that the newest message refers to, and its caller owns.
        """
        if self._earlier is None:
            found: dict[str, list[str]] = {}
            named = tasks_named(self._turn.latest)[-MOST_TASKS:]
            for task in await self._turn._context.tasks(named):
                store = self._turn._attempt.runner.store
                records = await store.private_records(
                    task.id, [RecordKind.REMEMBERED], limit=MOST_RECORDS
                )
                for record in records:
                    event = record.event
                    if isinstance(event, StepResult) and event.key.startswith(CALL_PREFIX):
                        call = decode(event.value, RemoteCall)
                        if call.task_id:
                            found.setdefault(call.address, []).append(call.task_id)
            self._earlier = found
        return self._earlier
