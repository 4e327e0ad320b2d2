"""Replies of the model and results of tools as steps of the task.

A turn runs from the top for every answer and after a crash. The framework lets whoever listens to
the beginning of a run give its output, so a further attempt takes these from the task's log: the
model is not asked twice, and no tool that returned is called twice.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from beeai_framework.agents.requirement.utils._tool import FinalAnswerTool
from beeai_framework.backend import ChatModel, ChatModelOutput
from beeai_framework.tools import JSONToolOutput, StringToolOutput, Tool

from parley.agent.turn import Turn
from parley.integrations.beeai.calling import BeeRemoteTool
from parley.integrations.beeai.messages import plain, read, written
from parley.integrations.remembered_calls import CallKeys, json_value, remembered
from parley.llm.run_output import ModelRequests

WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:[\d.]+(Z|[+-]\d\d:\d\d)?")
"""A time: prompts of the framework say when a message came, another time in each attempt."""


class RunReplay:
    """Remembers the runs of models and tools in a task."""

    def __init__(self, turn: Turn, requests: ModelRequests) -> None:
        self._turn = turn
        self._requests = requests
        self._keys = CallKeys()
        self._open: dict[str, str] = {}

    def begin(self, run_id: str, instance: Any, data: Any) -> None:
        """Give a run its output if it is remembered, else remember what it returns."""
        asked = _asked(instance, data.input)
        if asked is None:
            return
        key = self._keys.key(*asked)
        recalled = self._turn._attempt.step_result(key)
        if recalled is None:
            self._open[run_id] = key
        elif (kept := msgspec.json.decode(recalled)) is not None:
            data.output = _read(kept)
            if "messages" in kept:
                self._requests.end_as(kept["finish_reason"])

    async def end(self, run_id: str, output: Any) -> None:
        """Remember what a run returned."""
        key = self._open.pop(run_id, None)
        if key is not None:
            kept = msgspec.json.encode(remembered(_written(output)))
            await self._turn._attempt.keep_result(key, kept)


def _asked(instance: Any, given: dict[str, Any]) -> tuple[str, Any] | None:
    """Return the kind of a run and what it is asked, ``None`` for one that is not remembered."""
    if isinstance(instance, ChatModel):
        messages = written(given.get("input") or [])
        return "model", WHEN.sub("", msgspec.json.encode(messages).decode())
    # The turn remembers the calls of remote skills by itself.
    if isinstance(instance, Tool) and not isinstance(instance, FinalAnswerTool | BeeRemoteTool):
        return "tool", [instance.name, plain(given.get("input"))]
    return None


def _written(output: Any) -> dict[str, Any] | None:
    """Return an output as JSON, ``None`` for one that would not be read as it is."""
    if isinstance(output, ChatModelOutput) and output.output_structured is None:
        return {"messages": written(output.output), "finish_reason": output.finish_reason}
    if type(output) is StringToolOutput:
        return {"text": output.result}
    return json_value(output.result) if type(output) is JSONToolOutput else None


def _read(kept: dict[str, Any]) -> Any:
    if "messages" in kept:
        return ChatModelOutput(output=read(kept["messages"]), finish_reason=kept["finish_reason"])
    return StringToolOutput(kept["text"]) if "text" in kept else JSONToolOutput(kept["value"])
