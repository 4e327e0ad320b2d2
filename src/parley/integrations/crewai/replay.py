"""Replies of the model and results of tools as steps of the task, for runs in threads.

A turn runs from the top for every answer and after a crash. A further attempt reads these from the
log, so the model is not asked twice and no tool that returned is called twice.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from parley.integrations.crewai.calling import CrewRemoteTool
from parley.integrations.crewai.threaded_run import ThreadedRun
from parley.integrations.remembered_calls import CallKeys, json_value, remembered
from parley.llm.run_output import ModelRequests


class ThreadedReplay:
    """Remembers calls in the task of a run."""

    def __init__(self, run: ThreadedRun, requests: ModelRequests) -> None:
        self._run = run
        self._requests = requests
        self._keys = CallKeys()

    # -- what an agent of the framework uses ---------------------------------------------------

    def prepare(self, agent: Any) -> None:
        """Let the model and the tools of an agent, which this run alone uses, be remembered."""
        agent.tools = [self.tool(tool) for tool in agent.tools or ()]
        if hasattr(agent.llm, "call"):
            agent.llm = self.model(agent.llm)

    def model(self, llm: Any) -> Any:
        """Return a model whose replies are remembered, streamed if it can."""
        copied = llm.model_copy() if hasattr(llm, "model_copy") else llm
        inner = copied.call

        @functools.wraps(inner)
        def call(messages: Any, *args: Any, **options: Any) -> Any:
            kind = options.get("response_model") or (args[5] if len(args) > 5 else None)
            asked = [_plain(messages), getattr(kind, "__name__", "")]

            def ask() -> tuple[Any, Any]:
                reply = inner(messages, *args, **options)
                return reply, _written(reply, self._requests.ending)

            kept, reply = self._once("model", asked, ask)
            if kept is None:
                return reply
            self._requests.end_as(kept["ending"])
            return _read(kept, kind)

        copied.__dict__["call"] = call
        if "stream" in type(copied).model_fields:
            copied.stream = True
        return copied

    def tool(self, tool: Any) -> Any:
        """Return a tool whose results are remembered; its coroutines run in Parley's event loop."""
        if not hasattr(tool, "model_copy"):
            return tool
        if is_remote := isinstance(tool, CrewRemoteTool):
            tool = tool.in_turn()  # the turn remembers its calls by itself
        copied = tool.model_copy()
        name = "func" if callable(getattr(tool, "func", None)) else "_run"
        inner = getattr(tool, name)

        @functools.wraps(inner)
        def call(*args: Any, **arguments: Any) -> Any:
            def use() -> tuple[Any, Any]:
                result = inner(*args, **arguments)
                if inspect.iscoroutine(result):
                    result = self._run.wait(result)
                return result, json_value(result)

            if is_remote:
                return use()[0]
            kept, result = self._once("tool", [tool.name, _plain([args, arguments])], use)
            return result if kept is None else kept["value"]

        copied.__dict__[name] = call
        return copied

    def _once(
        self, kind: str, asked: object, function: Callable[[], tuple[Any, Any]]
    ) -> tuple[dict[str, Any] | None, Any]:
        """Return what is remembered of a call, or make it now in this thread, and remember it.

        The second value is what a call that was made now returned.
        """
        key, attempt = self._keys.key(kind, asked), self._run.turn._attempt

        async def recall() -> Any:
            return attempt.step_result(key)

        recalled = self._run.wait(recall())
        kept = None if recalled is None else msgspec.json.decode(recalled)
        if kept is not None:
            return kept, None
        value, written = function()
        if recalled is None:
            self._run.wait(attempt.keep_result(key, msgspec.json.encode(remembered(written))))
        return None, value


def _written(reply: Any, ending: str) -> dict[str, Any] | None:
    """Return the reply of a model as JSON, ``None`` if it has no such form."""
    if isinstance(reply, str):
        return {"text": reply, "ending": ending}
    if hasattr(reply, "model_dump"):
        return {"model": reply.model_dump(mode="json"), "ending": ending}
    if isinstance(reply, list):
        calls = [_call(each) for each in reply]
        if all(calls):
            return {"calls": calls, "ending": ending}
    return None


def _call(call: Any) -> dict[str, Any] | None:
    """Return a tool call in the shape of the chat completions API."""
    if isinstance(call, dict) and "function" in call:
        return dict(call)
    function = getattr(call, "function", None)
    if function is None:
        return None
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": function.name, "arguments": function.arguments},
    }


def _read(kept: dict[str, Any], kind: Any) -> Any:
    if "model" in kept:
        return kind.model_validate(kept["model"]) if kind is not None else kept["model"]
    return kept["calls"] if "calls" in kept else kept["text"]


def _plain(value: Any) -> bytes:
    """Return a value as JSON, with the text of what has no such form left out."""
    return msgspec.json.encode(value, enc_hook=lambda other: type(other).__name__)
