"""Replies of the model and results of tools as steps of the task.

A turn runs from the top for every answer and after a crash. The framework lets whoever listens to
the beginning of a run give its output, so a further attempt takes these from the task's log: the
model is not asked twice, and no tool that returned is called twice.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import Counter
from typing import Any

import msgspec
from beeai_framework.agents.requirement.utils._tool import FinalAnswerTool
from beeai_framework.backend import ChatModel, ChatModelOutput
from beeai_framework.backend.types import ChatModelUsage
from beeai_framework.tools import JSONToolOutput, StringToolOutput, Tool
from pydantic import BaseModel

from parley.agent.turn import Turn
from parley.integrations.beeai.messages import read, written

MAX_KEPT = 1 << 20
"""The most bytes of one reply or result that are remembered; a longer one is made again."""

WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+(Z|[+-]\d\d:\d\d)?")
"""A time: prompts of the framework say when a message came, another time in each attempt."""

PARLEY = "_parley_remote_skill"
"""The attribute of tools that are remote skills: the turn remembers their calls by itself."""


class RunReplay:
    """Remembers the runs of models and tools in a task."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._times: Counter[str] = Counter()
        self._open: dict[str, tuple[asyncio.Future[Any], asyncio.Task[Any]]] = {}

    async def begin(self, run_id: str, instance: Any, data: Any) -> None:
        """Give a run its output if it is remembered, else remember what it returns."""
        asked = _asked(instance, data.input)
        if asked is None:
            return
        begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def make() -> Any:
            begun.set_result(True)
            return await made

        step = asyncio.create_task(self._turn.step(self._key(asked), make))
        await asyncio.wait((step, begun), return_when=asyncio.FIRST_COMPLETED)
        if begun.done():
            self._open[run_id] = (made, step)
            return
        kept = step.result()
        if kept is not None:
            data.output = _read(kept)

    async def end(self, run_id: str, output: Any) -> None:
        """Remember what a run returned; ``None`` for one that failed."""
        made, step = self._open.pop(run_id, (None, None))
        if made is None or step is None:
            return
        if output is None:
            step.cancel()
            return
        kept = _written(output)
        is_short = kept is not None and len(msgspec.json.encode(kept)) <= MAX_KEPT
        made.set_result(kept if is_short else None)
        await step

    def close(self) -> None:
        """Forget the runs that have not ended."""
        for _, step in self._open.values():
            step.cancel()
        self._open.clear()

    def _key(self, asked: list[Any]) -> str:
        digest = hashlib.sha256(msgspec.json.encode(asked, enc_hook=str)).hexdigest()[:24]
        self._times[digest] += 1
        return f"{asked[0]}:{digest}:{self._times[digest]}"


def _asked(instance: Any, given: dict[str, Any]) -> list[Any] | None:
    """Return what identifies a run in each attempt, ``None`` for one that is not remembered."""
    if isinstance(instance, ChatModel):
        messages = written(given.get("input") or [])
        return ["model", WHEN.sub("", msgspec.json.encode(messages).decode())]
    if isinstance(instance, Tool) and not isinstance(instance, FinalAnswerTool):
        if getattr(type(instance), PARLEY, False):
            return None
        said = given.get("input")
        plain = said.model_dump(mode="json") if isinstance(said, BaseModel) else said
        return ["tool", instance.name, plain]
    return None


def _written(output: Any) -> dict[str, Any] | None:
    """Return an output as JSON, ``None`` for one that would not be read as it is."""
    if isinstance(output, ChatModelOutput) and output.output_structured is None:
        return {
            "messages": written(output.output),
            "usage": output.usage.model_dump(),
            "finish_reason": output.finish_reason,
        }
    if type(output) is StringToolOutput:
        return {"text": output.result}
    if type(output) is JSONToolOutput:
        try:
            return {"json": msgspec.json.decode(msgspec.json.encode(output.result))}
        except (TypeError, ValueError):
            return None
    return None


def _read(kept: dict[str, Any]) -> Any:
    if "messages" in kept:
        return ChatModelOutput(
            output=read(kept["messages"]),
            usage=ChatModelUsage(**kept["usage"]),
            finish_reason=kept["finish_reason"],
        )
    return StringToolOutput(kept["text"]) if "text" in kept else JSONToolOutput(kept["json"])
