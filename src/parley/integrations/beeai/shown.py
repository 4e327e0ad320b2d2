"""What the events of a run show in its turn."""

from __future__ import annotations

from typing import Any

from beeai_framework.agents.requirement.utils._tool import FinalAnswerTool
from beeai_framework.backend import ChatModel, ChatModelOutput
from beeai_framework.backend.message import MessageReasoningContent
from beeai_framework.context import RunContext
from beeai_framework.emitter import Emitter, EmitterOptions
from beeai_framework.tools import Tool
from beeai_framework.workflows import Workflow

from parley.integrations.beeai.replay import RunReplay
from parley.llm.model_usage import ModelUsage
from parley.llm.run_output import RunOutput

NESTED = EmitterOptions(is_blocking=True, persistent=True, match_nested=True)


class EmittedEvents:
    """Shows the events of a run and remembers its parts; listen with ``Run.observe(shown.listen)``.

    ``is_quiet`` says that tokens of the model are not the answer: those of ReAct, or of a schema.
    """

    def __init__(self, output: RunOutput, replay: RunReplay, *, is_quiet: bool) -> None:
        self.said = ""
        self._output = output
        self._replay = replay
        self._is_quiet = is_quiet

    def listen(self, emitter: Emitter) -> None:
        """Listen to a run, and to all that it runs."""
        emitter.on(lambda event: True, self._event, NESTED)

    async def finish(self, text: str) -> None:
        """Show the text of the result, if it is not what was streamed."""
        if not text or self.said.strip() == text.strip():
            return
        await self._output.new_message()
        await self._output.text(text)

    async def _event(self, data: Any, meta: Any) -> None:
        creator = meta.creator
        if isinstance(creator, RunContext):
            await self._run(creator, data, meta)
        elif isinstance(creator, ChatModel) and meta.name == "new_token":
            await self._token(data.value)
        elif meta.name == "final_answer" and hasattr(data, "delta"):
            await self._final(data)
        elif meta.name == "partial_update" and hasattr(data, "update"):
            await self._partial(data.update)
        elif isinstance(creator, Workflow) and meta.name == "start":
            await self._output.step(str(data.step))

    async def _run(self, run: Any, data: Any, meta: Any) -> None:
        instance = run.instance
        is_tool = isinstance(instance, Tool) and not isinstance(instance, FinalAnswerTool)
        if meta.name == "start":
            if isinstance(instance, ChatModel):
                self.said = ""
                await self._output.new_message()
            elif is_tool:
                self.said = ""
                await self._output.tool_called(instance.name, _plain(data.input.get("input")))
            await self._replay.begin(run.run_id, instance, data)
        elif meta.name == "success":
            await self._replay.end(run.run_id, data.output)
            if is_tool:
                await self._output.tool_returned(instance.name, str(data.output))
            elif isinstance(data.output, ChatModelOutput):
                self._output.used(usage_of(data.output))
        elif meta.name == "error":
            await self._replay.end(run.run_id, None)
            if is_tool:
                await self._output.tool_returned(instance.name, "it failed", is_error=True)

    async def _token(self, chunk: Any) -> None:
        for message in chunk.output:
            for part in message.get_by_type(MessageReasoningContent):
                await self._output.thinking(part.text)
        if not self._is_quiet:
            await self._say(chunk.get_text_content())

    async def _final(self, data: Any) -> None:
        """Show what the model says as the arguments of the tool that ends a run."""
        if not self._is_quiet and data.output.strip() != self.said.strip():
            await self._say(data.delta)

    async def _partial(self, update: Any) -> None:
        if update.key == "final_answer":
            await self._say(str(update.value))
        elif update.key == "thought":
            await self._output.thinking(str(update.value))

    async def _say(self, text: str) -> None:
        if text:
            self.said += text
            await self._output.text(text)


def usage_of(output: Any) -> ModelUsage:
    """Return the usage of one request to a model."""
    cost = getattr(output.cost, "total_cost_usd", 0.0) or 0.0
    return ModelUsage(
        input_tokens=output.usage.prompt_tokens,
        output_tokens=output.usage.completion_tokens,
        cost=float(cost),
        requests=1,
    )


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
