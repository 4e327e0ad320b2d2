"""The messages of Pydantic AI, kept with the contexts of the agent."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.tools import DeferredToolRequests
from pydantic_ai.usage import RunUsage

from parley.agent.turn import Turn
from parley.integrations.task_values import TaskValue

HISTORY = "pydantic-ai"
RUN = "pydantic-ai-run"

MAX_BYTES = 1_000_000
"""How many bytes of JSON a conversation keeps; its oldest tasks go above that."""

_REQUESTS = TypeAdapter(DeferredToolRequests)


class KeptConversation:
    """What a context remembers: the messages of its tasks that ended, and the run of this one.

    It has the newest messages of the context, at most ``limit`` and ``MAX_BYTES``, in whole tasks;
    the newest task is always kept. The run of a task is written before the model is asked again and
    before tools are called, so a further attempt goes on from there. It is removed when the task
    ends, however it ends.
    """

    def __init__(self, turn: Turn, limit: int) -> None:
        self.earlier: list[ModelMessage] = []
        self.messages: list[ModelMessage] = []
        """The messages of this task."""
        self.requests: DeferredToolRequests | None = None
        """What the run waits for."""
        self.pauses = 0
        """How often the run has paused."""
        self.usage = RunUsage()
        self._turn = turn
        self._limit = limit
        self._run = TaskValue(turn, RUN)

    async def load(self) -> None:
        """Read what is kept."""
        turns = await self._turn.recall(HISTORY, [])
        others = [turn for turn in turns if turn["task"] != self._turn.task_id]
        written = [each for turn in others for each in turn["messages"]]
        self.earlier = ModelMessagesTypeAdapter.validate_python(written)
        run = await self._run.read()
        if run is not None:
            self.messages = ModelMessagesTypeAdapter.validate_python(run["messages"])
            self.requests = (
                None if run["requests"] is None else _REQUESTS.validate_python(run["requests"])
            )
            self.usage = RunUsage(**run["usage"])
            self.pauses = run["pauses"]

    @property
    def has_begun(self) -> bool:
        """Whether an earlier turn or attempt has got somewhere."""
        return bool(self.messages)

    async def checkpoint(
        self,
        messages: list[ModelMessage],
        usage: RunUsage,
        requests: DeferredToolRequests | None = None,
    ) -> None:
        """Keep the run as it is now. ``messages`` are all of the context."""
        self.messages = messages[len(self.earlier) :]
        self.requests = requests
        if requests is not None:
            self.pauses += 1
        counted = ("requests", "tool_calls", "input_tokens", "output_tokens")
        run = {
            "messages": _written(self.messages),
            "requests": None if requests is None else _REQUESTS.dump_python(requests, mode="json"),
            "usage": {name: getattr(usage, name) for name in counted},
            "pauses": self.pauses,
        }
        await self._run.write(run)

    async def finish(self, messages: list[ModelMessage]) -> None:
        """Add the task to what the context remembers. A further attempt replaces it."""
        task_id = self._turn.task_id
        entry = {"task": task_id, "messages": _written(messages[len(self.earlier) :])}

        def add(turns: list[Any]) -> list[Any]:
            kept = [each for each in turns if each["task"] != task_id] + [entry]
            sizes = [len(msgspec.json.encode(each)) for each in kept]
            while len(kept) > 1 and (
                sum(len(each["messages"]) for each in kept) > self._limit or sum(sizes) > MAX_BYTES
            ):
                del kept[0], sizes[0]
            return kept

        await self._turn.update(HISTORY, add, [])


def _written(messages: list[ModelMessage]) -> Any:
    return ModelMessagesTypeAdapter.dump_python(messages, mode="json")
