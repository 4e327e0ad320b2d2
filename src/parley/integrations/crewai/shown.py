"""What the events of a run show in its turn."""

from __future__ import annotations

import sys
from typing import Any

from parley.integrations.crewai.replies import ENDED
from parley.integrations.crewai.threaded_run import Show, ThreadedRun
from parley.llm.model import ModelUsage
from parley.llm.run_output import CONTENT_FILTER, LENGTH, RunOutput

MAX_NAME = 120
"""How many characters of a task's description name its step."""


class RunEvents:
    """Shows the events of a run, which come from its threads: a sink of the framework's streams."""

    def __init__(self, run: ThreadedRun, output: RunOutput, *, hidden: bool) -> None:
        self.said = ""
        self._run = run
        self._output = output
        self._requests = output.requests
        self._hidden = hidden

    def __call__(self, source: Any, event: Any) -> None:
        """Show an event, in the order in which events come."""
        made = getattr(self, f"_{event.type}", lambda _: None)(event)
        if made is not None:
            self._run.show(made)

    async def finish(self, text: str) -> None:
        """Show the text of the result, if it is not what was streamed."""
        if not text or self.said.strip() == text.strip():
            return
        await self.new_message()
        await self._output.text(text)

    async def new_message(self) -> None:
        """Let what is said next replace what was said."""
        self.said = ""
        await self._output.new_message()

    def _llm_call_started(self, event: Any) -> Show:
        ENDED.set(self._replied)
        return self.new_message

    def _llm_stream_chunk(self, event: Any) -> Show | None:
        if self._hidden or event.tool_call is not None or not event.chunk:
            return None

        async def text() -> None:
            self.said += event.chunk
            await self._output.text(event.chunk)

        return text

    def _llm_thinking_chunk(self, event: Any) -> Show:
        return lambda: self._output.thinking(event.chunk)

    def _llm_call_completed(self, event: Any) -> None:
        if ENDED.get() is not None:  # a model that calls tools itself has several events
            self._replied(event.usage, event.finish_reason, is_empty=not event.response)

    def _llm_call_failed(self, event: Any) -> None:
        if (error := sys.exception()) is not None:  # the model tells of it where it handles it
            self._requests.failures.append(error)

    def _replied(
        self, used: Any, ending: str | None, refusal: str = "", *, is_empty: bool = False
    ) -> None:
        """Count a request, in a thread. A reply that was cut to nothing ends the task."""
        ENDED.set(None)
        used = dict(used or {})
        usage = ModelUsage(
            input_tokens=used.get("prompt_tokens") or used.get("input_tokens") or 0,
            output_tokens=used.get("completion_tokens") or used.get("output_tokens") or 0,
        )

        async def replied() -> None:
            self._requests.replied(usage, ending=ending, refusal=refusal)
            if is_empty and self._requests.ending in (LENGTH, CONTENT_FILTER):
                self._requests.check_said()  # the framework fails without the reason

        self._run.wait(replied())

    def _tool_usage_started(self, event: Any) -> Show:
        async def called() -> None:
            self.said = ""
            await self._output.tool_called(event.tool_name, event.tool_args)

        return called

    def _tool_usage_finished(self, event: Any) -> Show:
        return lambda: self._output.tool_returned(event.tool_name, event.output)

    def _tool_usage_error(self, event: Any) -> Show:
        return lambda: self._output.tool_returned(event.tool_name, str(event.error), is_error=True)

    def _task_started(self, event: Any) -> Show:
        name = event.task_name or "task"
        return lambda: self._output.step(name[:MAX_NAME])

    def _agent_execution_started(self, event: Any) -> Show:
        role = event.agent.role.strip()
        return lambda: self._output.step(role)

    def _method_execution_started(self, event: Any) -> Show | None:
        if event.flow_name in ("AgentExecutor", "StepExecutor"):
            return None
        return lambda: self._output.step(str(event.method_name))
