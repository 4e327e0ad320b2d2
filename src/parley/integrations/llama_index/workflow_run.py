"""One turn of a workflow or an agent: from a question to the next, until it has a result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
from llama_index.core.agent.workflow import AgentWorkflow
from llama_index.core.agent.workflow.base_agent import BaseWorkflowAgent
from llama_index.core.workflow import Context, InputRequiredEvent, StopEvent, Workflow
from workflows.events import StepState, StepStateChanged, WorkflowIdleEvent
from workflows.handler import WorkflowHandler

from parley.agent.turn import Turn
from parley.integrations.conversations import ContextConversation, ContextState
from parley.integrations.llama_index.event_display import WorkflowDisplay
from parley.integrations.llama_index.failures import failed
from parley.integrations.llama_index.inputs import chat_message, start_values
from parley.integrations.llama_index.outputs import result_of
from parley.integrations.llama_index.questions import Questions, asking, awaited_by, described
from parley.integrations.llama_index.serializing import (
    ContextSerializer,
    Kept,
    parts_of,
    without_files,
    written_state,
)
from parley.integrations.task_values import TaskValue
from parley.integrations.threads import thread_id
from parley.llm.model_usage import ModelUsage
from parley.llm.run_output import RunOutput

STEP = "llama-index"
MESSAGES = "urn:parley:llama-index:messages"
STATE = "urn:parley:llama-index:state"
CHECKPOINT = "urn:parley:llama-index:checkpoint"

CHECKPOINT_BYTES = 500_000
"""A larger context is kept only at a question; a crash then repeats more."""

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
        self._display = WorkflowDisplay(output)
        self._questions = Questions(turn, workflow)
        self._memory = None if memory is None else memory(thread_id(turn))
        self._is_agent = isinstance(workflow, AgentWorkflow | BaseWorkflowAgent)
        self._serializer = ContextSerializer(_llm_of(workflow), self._memory)
        self._checkpoints = TaskValue(turn, CHECKPOINT)
        self._conversation = ContextConversation(turn, MESSAGES, shorten=without_files)
        self._store = ContextState(turn, STATE)
        self._before: dict[str, Any] = {}
        self._is_live = False
        self._context: Context | None = None
        self._handler: WorkflowHandler | None = None

    async def run(self) -> None:
        """Run until there is a result, and show it."""
        kept: dict[str, Any] | None = None
        answers: list[Any] = []
        number = 0
        with asking(self._questions):
            while True:
                number += 1
                try:
                    kept = await self._turn.step(
                        f"{STEP}:{number}", self._go, kept, answers, number
                    )
                except WorkflowOver as over:
                    result = over.result
                    break
                assert kept is not None
                answers = await self._questions.answers(kept["questions"], number)
        await self._finish(result)

    # -- from one question to the next ---------------------------------------------------------

    async def _go(
        self, kept: dict[str, Any] | None, answers: list[Any], number: int
    ) -> dict[str, Any]:
        """Run until the workflow asks, and return its context. Raises ``WorkflowOver``."""
        if not self._is_live:
            self._is_live = True
            newest = await self._checkpoints.read()
            if newest is not None and newest["number"] == number:
                kept, answers = newest, newest_answers(newest, answers)
            self._display.used = _usage(kept)
        handler = self._handler = await self._started(kept)
        pending: list[InputRequiredEvent] = []
        waits = kept is not None and bool(answers) and _has_waiters(kept["context"])
        try:
            if answers and not waits:
                self._send(answers)
                answers = []
            events = handler.stream_events(expose_internal=True)
            upcoming: asyncio.Task[Any] | None = None
            try:
                while True:
                    upcoming = upcoming or asyncio.ensure_future(anext(events, None))
                    if (pending or answers) and self._is_still():
                        done, _ = await asyncio.wait({upcoming}, timeout=QUIET_SECONDS)
                        if not done and not answers:
                            return self._asked(pending)
                        if not done:  # steps that wait without requirements do not run again
                            self._send(answers)
                            answers = []
                    event, upcoming = await upcoming, None
                    if event is None or isinstance(event, StopEvent):
                        break
                    if isinstance(event, InputRequiredEvent):
                        pending.append(event)
                    elif isinstance(event, WorkflowIdleEvent):
                        if answers:  # the steps that wait have run up to where they wait
                            self._send(answers)
                            answers = []
                        elif pending:
                            return self._asked(pending)
                    else:
                        await self._display.show(event)
                        if _has_ended(event) and not answers:
                            await self._checkpoint(number)
            finally:
                if upcoming is not None:
                    upcoming.cancel()
                    await asyncio.wait({upcoming})
                await events.aclose()
            raise WorkflowOver(await self._awaited(handler))
        finally:
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
            values = await start_values(self._turn, workflow, self._turn.message)
            return workflow.run(ctx=self._context, **values)
        message = await chat_message(self._turn, self._turn.message)
        if self._memory is not None:
            return workflow.run(user_msg=message, ctx=self._context, memory=self._memory)
        return workflow.run(user_msg=message, ctx=self._context)

    async def _first_context(self) -> Context:
        """Return a context with what tasks that ended have left."""
        new = Context(self._workflow)
        if self._memory is not None:
            return new
        messages = await self._conversation.earlier()
        self._before = await self._store.read()
        if not messages and not self._before:
            return new
        state: dict[str, Any] = json.loads(json.dumps(new.to_dict(self._serializer)))
        state["state"] = written_state(Kept(messages, self._before), state["state"])
        return self._read(state)

    def _send(self, answers: list[Any]) -> None:
        assert self._context is not None
        for each in answers:
            self._context.send_event(each)

    async def _awaited(self, handler: WorkflowHandler) -> Any:
        try:
            return await handler
        except Exception as error:
            failed(self._turn, error)
            raise

    # -- the state -----------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        assert self._context is not None
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
        waiting = awaited_by(self._workflow, state)
        questions = [described(each, waiting) for each in pending]
        return {**self._kept(state), "questions": questions}

    async def _checkpoint(self, number: int) -> None:
        state = self._state()
        if state["is_running"] and len(msgspec.json.encode(state)) <= CHECKPOINT_BYTES:
            kept = {**self._kept(state), "number": number, "questions": []}
            await self._checkpoints.write(kept)

    def _kept(self, state: dict[str, Any]) -> dict[str, Any]:
        kept = {"context": state, "usage": _said(self._display.used)}
        if self._memory is None:
            kept["conversation"] = self._conversation.mark(parts_of(state).messages)
            kept["before"] = self._before
        return kept

    # -- the end -------------------------------------------------------------------------------

    async def _finish(self, result: Any) -> None:
        if self._memory is None:
            kept = parts_of(self._state())
            await self._conversation.finish(kept.messages)
            await self._store.write(self._before, kept.state)
        self._output.used(self._display.used)
        text, data, schema = result_of(result)
        if data is None and self._is_agent and self._schema is not None:
            self._turn.fail("The reply of the model could not be used.")
        if data is not None:
            await self._output.data(data, schema=self._schema or schema)
        elif text and not self._display.said:
            await self._output.text(text)


def newest_answers(newest: dict[str, Any], answers: list[Any]) -> list[Any]:
    """Return the answers that a checkpoint has not had: those for which steps still wait."""
    return answers if _has_waiters(newest["context"]) else []


def _has_waiters(context: dict[str, Any]) -> bool:
    return any(
        waiter["resolved_event"] is None
        for each in context["workers"].values()
        for waiter in each["collected_waiters"]
    )


def _has_ended(event: Any) -> bool:
    is_change = isinstance(event, StepStateChanged)
    return is_change and event.step_state is StepState.NOT_RUNNING


def _said(usage: ModelUsage) -> dict[str, int]:
    return {"input": usage.input_tokens, "output": usage.output_tokens, "requests": usage.requests}


def _usage(kept: dict[str, Any] | None) -> ModelUsage:
    said = {} if kept is None else kept["usage"]
    return ModelUsage(
        input_tokens=said.get("input", 0),
        output_tokens=said.get("output", 0),
        requests=said.get("requests", 0),
    )


def _llm_of(workflow: Any) -> Any:
    """Return the model of an agent, or of the first one of several, ``None`` for a workflow."""
    agents = getattr(workflow, "agents", None)
    first = next(iter(agents.values()), None) if isinstance(agents, dict) else workflow
    return getattr(first, "llm", None)
