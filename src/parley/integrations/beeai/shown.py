"""What the events of a run show in its turn."""

from __future__ import annotations

from typing import Any

from beeai_framework.agents.requirement.utils._tool import FinalAnswerTool
from beeai_framework.backend import ChatModel
from beeai_framework.backend.message import MessageReasoningContent
from beeai_framework.context import RunContext
from beeai_framework.emitter import Emitter, EmitterOptions
from beeai_framework.tools import Tool
from beeai_framework.workflows import Workflow

from parley.integrations.beeai.messages import plain
from parley.integrations.beeai.replay import RunReplay
from parley.integrations.beeai.requests import RunRequests, watch
from parley.llm.run_output import RunOutput

NESTED = EmitterOptions(is_blocking=True, persistent=True, match_nested=True)


class EmittedEvents:
    """Shows the events of a run and remembers its parts; listen with ``Run.observe(shown.listen)``.

    ``speaks`` says that tokens of the model are the answer: not those of ReAct, or of a schema.
    Models that tools and nested agents ask say nothing.
    """

    def __init__(self, output: RunOutput, *, speaks: bool) -> None:
        self._output = output
        self._replay = RunReplay(output.turn, output.requests)
        self._speaks = speaks
        self._root = ""
        self._said = ""
        self._text = ""
        self._is_protocol = False
        self.requests = RunRequests(output.requests, self._request)

    def listen(self, emitter: Emitter) -> None:
        """Listen to a run, and to all that it runs."""
        emitter.on(lambda event: True, self._event, NESTED)

    async def show(self, whole: str) -> None:
        """Let a text be the answer, whatever of it was streamed."""
        if whole.strip() in ("", self._said.strip()):
            return
        if not whole.startswith(self._said):
            await self._begin()
        delta, self._said = whole[len(self._said) :], whole
        await self._output.text(delta)

    async def _begin(self) -> None:
        self._said = self._text = ""
        await self._output.new_message()

    async def _request(self, run: Any) -> None:
        """Let the reply to a request replace what was said, also where the framework retries."""
        if self._root in (run.run_id, run.parent_id):
            await self._begin()

    async def _event(self, data: Any, meta: Any) -> None:
        creator, trace = meta.creator, meta.trace
        is_own = trace is not None and trace.run_id == self._root
        if isinstance(creator, RunContext):
            await self._run(creator, data, meta)
        elif isinstance(creator, ChatModel) and meta.name == "start":
            data.input.stream = True  # so that its requests are counted
            self._is_protocol = data.input.response_format is not None
        elif isinstance(creator, ChatModel) and meta.name == "new_token":
            if is_own or trace.parent_run_id == self._root:
                await self._token(data.value)
        elif meta.name == "final_answer" and is_own and self._speaks:
            await self.show(data.output)
        elif meta.name == "partial_update" and hasattr(data, "update") and is_own:
            await self._partial(data.update)
        elif isinstance(creator, Workflow) and meta.name == "start":
            await self._output.step(str(data.step))

    async def _run(self, run: Any, data: Any, meta: Any) -> None:
        instance = run.instance
        is_tool = isinstance(instance, Tool) and not isinstance(instance, FinalAnswerTool)
        if meta.name == "start":
            if self._root:  # events reach the run around theirs, and no other
                run.emitter.on(lambda e: e.trace.parent_run_id == run.run_id, self._event, NESTED)
            self._root = self._root or run.run_id
            if isinstance(instance, ChatModel):
                watch(instance)
            elif is_tool:
                await self._begin()
                await self._output.tool_called(instance.name, plain(data.input.get("input")))
            self._replay.begin(run.run_id, instance, data)
        elif meta.name == "success":
            await self._replay.end(run.run_id, data.output)
            if is_tool:
                await self._output.tool_returned(instance.name, str(data.output))
        elif meta.name == "error" and is_tool:
            await self._output.tool_returned(instance.name, "it failed", is_error=True)

    async def _token(self, chunk: Any) -> None:
        for message in chunk.output:
            for part in message.get_by_type(MessageReasoningContent):
                await self._output.thinking(part.text)
        if self._speaks and not self._is_protocol:
            self._text += chunk.get_text_content()
            # What follows a brace may be the arguments of a call, which the framework reads.
            await self.show(self._text.partition("{")[0])

    async def _partial(self, update: Any) -> None:
        if update.key == "final_answer":
            await self.show(self._said + str(update.value))
        elif update.key == "thought":
            await self._output.thinking(str(update.value))
