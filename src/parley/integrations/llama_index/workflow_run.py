"""One turn of a workflow or an agent: from a question to the next, until it has a result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
from llama_index.core.agent.workflow import (
    AgentInput,
    AgentOutput,
    AgentStream,
    AgentWorkflow,
    ToolCall,
    ToolCallResult,
)
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.workflow import Context, Event, InputRequiredEvent, StopEvent, Workflow
from pydantic import BaseModel, TypeAdapter
from workflows.events import InternalDispatchEvent, StepState, WorkflowIdleEvent
from workflows.handler import WorkflowHandler

from parley.agent.turn import Turn
from parley.integrations.conversations import ContextConversation, ContextState
from parley.integrations.llama_index.inputs import chat_message, start_event
from parley.integrations.llama_index.model_replies import REPLIES
from parley.integrations.llama_index.questions import Questions, agents_of, described, waiting_in
from parley.integrations.llama_index.serializing import (
    ContextSerializer,
    Kept,
    parts_of,
    without_files,
    written_state,
)
from parley.integrations.task_values import CHECKPOINT_BYTES, TaskValue
from parley.integrations.threads import thread_id
from parley.llm.run_output import RunOutput

STEP = "llama-index"
MESSAGES = "urn:parley:llama-index:messages"
STATE = "urn:parley:llama-index:state"
CHECKPOINT = "urn:parley:llama-index:checkpoint"


QUIET_SECONDS = 0.05
"""For how long no event comes of a workflow that stands still, and waits for none in a step."""


class WorkflowOver(Exception):
    """A run came to its end, with this result."""

    def __init__(self, result: Any) -> None:
        self.result = result
        super().__init__("the run is over")


class WorkflowRun:
    """Runs a workflow for one turn.

    Its context at a question is a step of the task. Its context after each step is kept until the
    task ends, so a crash repeats the steps that had not ended. When it has ended, what it added to
    the memory and changed in the store is added to what the context has by then.
    """

    def __init__(
        self,
        workflow: Workflow,
        turn: Turn,
        output: RunOutput,
        memory: Callable[[str], Any] | None,
        schema: dict[str, Any] | None,
    ) -> None:
        self._workflow = workflow
        self._turn = turn
        self._output = output
        self._schema = schema
        self._display = _Display(output)
        self._questions = Questions(turn, workflow)
        self._memory = None if memory is None else memory(thread_id(turn))
        self._is_agent = isinstance(workflow, AgentWorkflow | BaseWorkflowAgent)
        self._serializer = ContextSerializer(
            getattr(agents_of(workflow)[0], "llm", None), self._memory
        )
        self._checkpoints = TaskValue(turn, CHECKPOINT)
        self._conversation = ContextConversation(turn, MESSAGES, shorten=without_files)
        self._store = ContextState(turn, STATE)
        self._before: dict[str, Any] = {}
        self._answers: list[Any] = []
        self._is_live = False
        self._context: Any = None

    async def run(self) -> str | None:
        """Run until there is a result, and show it. Returns what else to say."""
        kept: Any = None
        number = 0
        while True:
            number += 1
            try:
                kept = await self._turn.step(f"{STEP}:{number}", self._go, kept, number)
            except WorkflowOver as over:
                return await self._finish(over.result)
            self._answers = await self._questions.answers(kept["questions"], number)

    # -- from one question to the next ---------------------------------------------------------

    async def _go(self, kept: dict[str, Any] | None, number: int) -> dict[str, Any]:
        """Run until the workflow asks, and return its context. Raises ``WorkflowOver``."""
        if not self._is_live:
            self._is_live = True
            newest = await self._checkpoints.read()
            if newest is not None and newest["number"] == number:
                kept = newest
                if not waiting_in(kept["context"]):
                    self._answers = []  # the checkpoint has had them
            self._output.requests.end_as(kept["ending"] if kept else "")
        handler = await self._started(kept)
        pending: list[InputRequiredEvent] = []
        events = handler.stream_events(expose_internal=True)
        upcoming: asyncio.Task[Any] | None = None
        try:
            if kept is None or not waiting_in(kept["context"]):
                self._send()
            while True:
                upcoming = upcoming or asyncio.ensure_future(anext(events, None))
                if (pending or self._answers) and self._is_still():
                    # Steps that wait without requirements do not run again.
                    done, _ = await asyncio.wait({upcoming}, timeout=QUIET_SECONDS)
                    if not done and not self._send():
                        return self._asked(pending)
                event, upcoming = await upcoming, None
                REPLIES.get().check()
                if event is None or isinstance(event, StopEvent):
                    break
                if isinstance(event, InputRequiredEvent):
                    pending.append(event)
                elif isinstance(event, WorkflowIdleEvent):
                    # The steps that wait have run up to where they wait.
                    if not self._send() and pending:
                        return self._asked(pending)
                else:
                    await self._display.show(event)
                    state = getattr(event, "step_state", None)
                    if state is StepState.NOT_RUNNING and not self._answers:
                        await self._checkpoint(number)
            raise WorkflowOver(await handler)
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.wait({upcoming})
            await events.aclose()
            if not handler.is_done():
                await handler.cancel_run()

    async def _started(self, kept: dict[str, Any] | None) -> WorkflowHandler:
        workflow: Any = self._workflow
        if kept is not None:
            if self._memory is None:
                self._conversation.resume(kept["conversation"], parts_of(kept["context"]).messages)
                self._before = kept["before"]
            self._context = self._read(kept["context"])
            return workflow.run(ctx=self._context)
        self._context = await self._first_context()
        if not self._is_agent:
            event = await start_event(self._turn, workflow.start_event_class)
            return workflow.run(ctx=self._context, start_event=event)
        message = await chat_message(self._turn)
        more = {} if self._memory is None else {"memory": self._memory}
        return workflow.run(user_msg=message, ctx=self._context, **more)

    async def _first_context(self) -> Context:
        """Return a context with what tasks that ended have left."""
        self._context = new = Context(self._workflow)
        if self._memory is not None:
            return new
        messages = await self._conversation.earlier()
        self._before = await self._store.read()
        if not messages and not self._before:
            return new
        state = self._state()
        state["state"] = written_state(Kept(messages, self._before), state["state"])
        return self._read(state)

    def _send(self) -> bool:
        """Send the answers that the workflow has not had, and return whether there were any."""
        answers, self._answers = self._answers, []
        for each in answers:
            self._context.send_event(each)
        return bool(answers)

    # -- the state -----------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(json.dumps(self._context.to_dict(self._serializer)))
        return state

    def _read(self, state: dict[str, Any]) -> Context:
        return Context.from_dict(self._workflow, state, self._serializer)

    def _is_still(self) -> bool:
        """Return whether no step runs, and none is about to."""
        state = self._state()
        workers = state["workers"].values()
        return (
            bool(state["is_running"])
            and not state.get("deliveries")
            and not any(each["queue"] or each["in_progress"] for each in workers)
        )

    def _asked(self, pending: list[InputRequiredEvent]) -> dict[str, Any]:
        state = self._state()
        questions = [described(each, self._workflow, state) for each in pending]
        return {**self._kept(state), "questions": questions}

    async def _checkpoint(self, number: int) -> None:
        state = self._state()
        if state["is_running"] and len(msgspec.json.encode(state)) <= CHECKPOINT_BYTES:
            kept = {**self._kept(state), "number": number}
            await self._checkpoints.write(kept)

    def _kept(self, state: dict[str, Any]) -> dict[str, Any]:
        kept = {"context": state, "ending": self._output.requests.ending}
        if self._memory is None:
            kept["conversation"] = self._conversation.mark(parts_of(state).messages)
            kept["before"] = self._before
        return kept

    # -- the end -------------------------------------------------------------------------------

    async def _finish(self, result: Any) -> str | None:
        if self._memory is None:
            kept = parts_of(self._state())
            await self._conversation.finish(kept.messages)
            await self._store.write(self._before, kept.state)
        text, data, schema = _result_of(result)
        if data is None and self._is_agent and self._schema is not None:
            self._turn.fail("The reply of the model could not be used.")
        if data is not None:
            await self._output.data(data, schema=self._schema or schema)
        elif text and not self._display.said:
            await self._output.text(text)
        elif not self._is_agent and not self._output.requests.has_said:
            return "The workflow ended without a result."
        return None


def _result_of(result: Any) -> tuple[str, Any, dict[str, Any] | None]:
    """Return the text of a result, its data (``None`` without), and the schema of the data."""
    if isinstance(result, AgentOutput):
        return result.response.content or "", result.structured_response, None
    if isinstance(result, ChatMessage):
        result = result.content
    if isinstance(getattr(result, "source_nodes", None), list):
        result = str(result)
    if result is None or isinstance(result, str):
        return result or "", None, None
    if isinstance(result, BaseModel):
        schema = None if type(result) is StopEvent else type(result).model_json_schema()
        return "", result.model_dump(mode="json"), schema
    if isinstance(result, dict | list | int | float | bool):
        return "", TypeAdapter(Any).dump_python(result, mode="json", fallback=str), None
    return str(result), None, None


class _Display:
    """Shows events: tokens, tool calls, agents that take over, events of the author's own.

    ``said`` is the newest message as far as it was shown.
    """

    def __init__(self, output: RunOutput) -> None:
        self.said = ""
        self._output = output
        self._agent = ""

    async def show(self, event: Event) -> None:
        """Show an event, or nothing of it."""
        name = getattr(event, "current_agent_name", None)
        if isinstance(name, str) and name and name != self._agent:
            if self._agent:
                await self._begin_message()
                await self._output.step(name)
            self._agent = name
        if isinstance(event, AgentStream):
            if event.thinking_delta:
                await self._output.thinking(event.thinking_delta)
            self.said += event.delta
            await self._output.text(event.delta)
        elif isinstance(event, AgentInput):  # the model is asked, perhaps again
            await self._begin_message()
        elif isinstance(event, ToolCall):
            self.said = ""
            await self._output.tool_called(
                event.tool_name, event.tool_kwargs, call_id=event.tool_id
            )
        elif isinstance(event, ToolCallResult):
            result = event.tool_output
            await self._output.tool_returned(
                event.tool_name, result.content, call_id=event.tool_id, is_error=result.is_error
            )
        elif _is_own(event):
            await self._output.step(type(event).__name__, event.model_dump(mode="json"))

    async def _begin_message(self) -> None:
        self.said = ""
        await self._output.new_message()


def _is_own(event: Event) -> bool:
    """Return whether an event is of the author's own: not one of the framework."""
    if isinstance(event, InternalDispatchEvent | StopEvent | InputRequiredEvent):
        return False
    return not type(event).__module__.startswith(("llama_index.", "workflows."))
