"""One turn of an agent of Strands: from a snapshot to the next, until it has answered."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec
import strands
from strands.agent.agent_result import AgentResult
from strands.telemetry.metrics import EventLoopMetrics
from strands.types._snapshot import Snapshot
from strands.types.session import decode_bytes_values, encode_bytes_values

from parley.agent.turn import Turn
from parley.integrations.conversations import ContextConversation, ContextState
from parley.integrations.strands.contents import prompt_of, without_files
from parley.integrations.strands.current import CurrentRun, running
from parley.integrations.strands.event_display import StrandsDisplay
from parley.integrations.strands.failures import check_end, failed
from parley.integrations.strands.interrupts import Interrupts, unanswered
from parley.integrations.strands.user_sessions import UserSession
from parley.llm.model_usage import ModelUsage
from parley.llm.run_output import RunOutput

STEP = "strands"
MESSAGES = "urn:parley:strands:messages"
STATE = "urn:parley:strands:state"

CHECKPOINT_BYTES = 500_000
"""A larger snapshot is kept only at an interrupt; a crash then repeats rounds of tool calls."""


class AgentOver(Exception):
    """A run came to its end, with this result."""

    def __init__(self, result: AgentResult) -> None:
        self.result = result
        super().__init__("the run is over")


class AgentRun:
    """Runs an agent for one turn. The agent is this turn's own.

    When it has ended, what it added to the messages and changed of its state is added to what the
    context has by then.
    """

    def __init__(
        self, thing: strands.Agent, turn: Turn, output: RunOutput, state: dict[str, Any]
    ) -> None:
        self._agent = thing
        self._turn = turn
        self._output = output
        self._state = state
        self._schema_model = thing._default_structured_output_model
        hidden = set() if self._schema_model is None else {self._schema_model.__name__}
        self._display = StrandsDisplay(output, hidden)
        self._interrupts = Interrupts(turn, thing)
        self._is_live = False
        self._kept: dict[str, Any] | None = None
        # A session manager keeps the agent's state by itself, message by message.
        self._session: UserSession | None = None
        if thing._session_manager is not None:
            self._session = UserSession(thing, turn.task_id)
        thing._checkpointing = self._session is None
        first = _written(thing.messages)
        self._conversation = ContextConversation(turn, MESSAGES, shorten=without_files, first=first)
        self._store = ContextState(turn, STATE)
        self._before: dict[str, Any] = {}

    async def run(self) -> None:
        """Run until the agent has answered, and show it."""
        prompt: Any = await prompt_of(self._turn, self._turn.message)
        if self._session is not None:
            prompt = self._session.prompt(prompt)
        number = 0
        with running(CurrentRun(self._interrupts)):
            while True:
                number += 1
                try:
                    self._kept = await self._turn.step(f"{STEP}:{number}", self._go, prompt)
                except AgentOver as over:
                    result = over.result
                    break
                assert self._kept is not None
                self._used(self._kept["usage"])
                if self._kept["interrupts"]:
                    prompt = await self._interrupts.answers(self._kept["interrupts"])
                else:
                    prompt = {"checkpointResume": {"checkpoint": self._kept["checkpoint"]}}
        await self._finish(result)

    # -- from one snapshot to the next ---------------------------------------------------------

    async def _go(self, prompt: Any) -> dict[str, Any]:
        """Run until the state is to be kept, and return it. Raises ``AgentOver`` at the end."""
        if not self._is_live:
            self._is_live = True
            if self._session is not None:
                prompt = await self._session.taken_up(prompt, self._kept)
            else:
                await self._restore()
        if isinstance(prompt, dict) and "interrupts" in prompt:
            return prompt
        while True:
            self._agent.event_loop_metrics = EventLoopMetrics()
            result = await self._result(prompt)
            usage = _usage(self._agent.event_loop_metrics)
            interrupts = unanswered(result.interrupts) if result.stop_reason == "interrupt" else []
            if result.checkpoint is None and not interrupts:
                self._used(usage)
                raise AgentOver(result)
            checkpoint = None if result.checkpoint is None else result.checkpoint.to_dict()
            snapshot = None if self._session is not None else self._snapshot()
            is_kept = interrupts or (
                checkpoint is not None
                and checkpoint["position"] == "after_tools"
                and len(msgspec.json.encode(snapshot)) <= CHECKPOINT_BYTES
            )
            if is_kept:
                kept = {"checkpoint": checkpoint, "interrupts": interrupts, "usage": usage}
                if snapshot is None:
                    return {**kept, "pending": _written(self._agent._interrupt_state.to_dict())}
                mark = self._conversation.mark(snapshot["data"]["messages"])
                return {**kept, "snapshot": snapshot, "conversation": mark, "before": self._before}
            self._used(usage)
            prompt = {"checkpointResume": {"checkpoint": checkpoint}}

    async def _result(self, prompt: Any) -> AgentResult:
        result: AgentResult | None = None
        try:
            events = self._agent.stream_async(prompt, invocation_state=self._state)
            async with aclosing(events) as stream:
                async for event in stream:
                    if isinstance(found := event.get("result"), AgentResult):
                        result = found
                    else:
                        await self._display.show(event)
        except Exception as error:
            failed(self._turn, error)
            raise
        assert result is not None
        return result

    # -- the state -----------------------------------------------------------------------------

    def _snapshot(self) -> Any:
        return _written(self._agent.take_snapshot(preset="session").to_dict())

    async def _restore(self) -> None:
        """Load the newest snapshot of this task, or else what the context has of others."""
        if self._kept is not None:
            snapshot = self._kept["snapshot"]
            self._conversation.resume(self._kept["conversation"], snapshot["data"]["messages"])
            self._before = self._kept["before"]
        else:
            snapshot = self._snapshot()
            state = {**_state_in(snapshot), **await self._store.read()}
            self._before = state
            messages = await self._conversation.earlier()
            snapshot = {**snapshot, "data": {**state, "messages": messages}}
        self._agent.load_snapshot(Snapshot.from_dict(decode_bytes_values(snapshot)))

    # -- the end -------------------------------------------------------------------------------

    async def _finish(self, result: AgentResult) -> None:
        text = "".join(block.get("text", "") for block in result.message.get("content", []))
        check_end(self._turn, result.stop_reason, text)
        if self._session is None:
            snapshot = self._snapshot()
            await self._conversation.finish(snapshot["data"]["messages"])
            await self._store.write(self._before, _state_in(snapshot))
        if result.structured_output is not None:
            value = result.structured_output
            await self._output.data(
                value.model_dump(mode="json"), schema=type(value).model_json_schema()
            )
        elif not self._display.said and text:
            await self._output.text(text)

    def _used(self, usage: dict[str, int]) -> None:
        self._output.used(
            ModelUsage(
                input_tokens=usage.get("input", 0),
                output_tokens=usage.get("output", 0),
                requests=usage.get("requests", 0),
            )
        )


def _usage(metrics: EventLoopMetrics) -> dict[str, int]:
    used = metrics.accumulated_usage
    return {
        "input": used.get("inputTokens", 0),
        "output": used.get("outputTokens", 0),
        "requests": metrics.cycle_count,
    }


def _state_in(snapshot: Any) -> dict[str, Any]:
    """Return what tasks of a context share beside the messages."""
    apart = ("messages", "interrupt_state")
    return {name: value for name, value in snapshot["data"].items() if name not in apart}


def _written(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(encode_bytes_values(value)))
