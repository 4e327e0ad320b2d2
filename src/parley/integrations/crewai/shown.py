"""What the events of a run show in its turn."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from parley.integrations.crewai.replay import ThreadedReplay
from parley.integrations.crewai.threaded_run import ThreadedRun
from parley.llm.model_usage import ModelUsage
from parley.llm.run_output import RunOutput

MAX_NAME = 120
"""How many characters of a task's description name its step."""


class RunEvents:
    """Shows the events of a run, which come from its threads: a sink of the framework's streams."""

    def __init__(
        self, run: ThreadedRun, output: RunOutput, replay: ThreadedReplay, *, hidden: bool
    ) -> None:
        self.said = ""
        self._run = run
        self._output = output
        self._replay = replay
        self._hidden = hidden

    def __call__(self, source: Any, event: Any) -> None:
        """Show an event, in the order in which events come."""
        show = getattr(self, f"_{event.type}", None)
        if show is not None:
            made = show(event)
            if made is not None:
                self._run.show(made)

    async def finish(self, text: str) -> None:
        """Show the text of the result, if it is not what was streamed."""
        if self._hidden or not text or self.said.strip() == text.strip():
            return
        await self._output.new_message()
        await self._output.text(text)

    async def new_message(self) -> None:
        """Let what is said next replace what was said."""
        self.said = ""
        await self._output.new_message()

    def _llm_call_started(self, event: Any) -> Callable[[], Coroutine[Any, Any, None]]:
        return self.new_message

    def _llm_stream_chunk(self, event: Any) -> Callable[[], Coroutine[Any, Any, None]] | None:
        if self._hidden or event.tool_call is not None or not event.chunk:
            return None

        async def text() -> None:
            self.said += event.chunk
            await self._output.text(event.chunk)

        return text

    def _llm_thinking_chunk(self, event: Any) -> Callable[[], Coroutine[Any, Any, None]]:
        return lambda: self._output.thinking(event.chunk)

    def _llm_call_completed(self, event: Any) -> None:
        usage = usage_of(event.usage or {})
        self._replay.newest_usage = usage
        self._output.used(usage)

    def _tool_usage_started(self, event: Any) -> Callable[[], Coroutine[Any, Any, None]]:
        async def called() -> None:
            self.said = ""
            await self._output.tool_called(event.tool_name, event.tool_args)

        return called

    def _tool_usage_finished(self, event: Any) -> Callable[[], Coroutine[Any, Any, None]]:
        return lambda: self._output.tool_returned(event.tool_name, event.output)

    def _tool_usage_error(self, event: Any) -> Callable[[], Coroutine[Any, Any, None]]:
        return lambda: self._output.tool_returned(event.tool_name, str(event.error), is_error=True)

    def _task_started(self, event: Any) -> Callable[[], Coroutine[Any, Any, None]]:
        name = event.task_name or "task"
        return lambda: self._output.step(name[:MAX_NAME])

    def _agent_execution_started(self, event: Any) -> Callable[[], Coroutine[Any, Any, None]]:
        role = event.agent.role.strip()
        return lambda: self._output.step(role[:MAX_NAME])

    def _method_execution_started(
        self, event: Any
    ) -> Callable[[], Coroutine[Any, Any, None]] | None:
        if event.flow_name in ("AgentExecutor", "StepExecutor"):
            return None
        return lambda: self._output.step(str(event.method_name))


def usage_of(details: Any) -> ModelUsage:
    """Return the usage of one request to a model."""
    return ModelUsage(
        input_tokens=int(details.get("prompt_tokens") or details.get("input_tokens") or 0),
        output_tokens=int(details.get("completion_tokens") or details.get("output_tokens") or 0),
        requests=1,
    )
