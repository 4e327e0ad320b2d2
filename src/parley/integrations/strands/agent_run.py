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
from parley.integrations.strands.contents import prompt_of
from parley.integrations.strands.current import CurrentRun, running
from parley.integrations.strands.event_display import StrandsDisplay
from parley.integrations.strands.failures import check_end, failed
from parley.integrations.strands.interrupts import Interrupts, unanswered
from parley.llm.model_usage import ModelUsage
from parley.llm.run_output import RunOutput

STEP = "strands"
KEY = "urn:parley:strands:conversation"

CHECKPOINT_BYTES = 500_000
"""A larger snapshot is kept only at an interrupt; a crash then repeats rounds of tool calls."""

MAX_BYTES = 1_000_000
"""How many bytes of JSON a conversation keeps: files go first, then the oldest messages."""


class AgentOver(Exception):
    """A run came to its end, with this result."""

    def __init__(self, result: AgentResult) -> None:
        self.result = result
        super().__init__("the run is over")


class AgentRun:
    """Runs an agent for one turn. The agent is this turn's own."""

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
        self._has_session = thing._session_manager is not None
        thing._checkpointing = not self._has_session

    async def run(self) -> None:
        """Run until the agent has answered, and show it."""
        prompt: Any = await prompt_of(self._turn, self._turn.message)
        begun = 0
        if self._has_session:
            begun = await self._turn.step(f"{STEP}:begun", self._length)
        number = 0
        with running(CurrentRun(self._interrupts)):
            while True:
                number += 1
                try:
                    self._kept = await self._turn.step(f"{STEP}:{number}", self._go, prompt, begun)
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

    async def _go(self, prompt: Any, begun: int) -> dict[str, Any]:
        """Run until the state is to be kept, and return it. Raises ``AgentOver`` at the end."""
        if not self._is_live:
            self._is_live = True
            if self._has_session:
                prompt = self._taken_up(prompt, begun)
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
            snapshot = None if self._has_session else self._snapshot()
            is_kept = interrupts or (
                checkpoint is not None
                and checkpoint["position"] == "after_tools"
                and len(msgspec.json.encode(snapshot)) <= CHECKPOINT_BYTES
            )
            if is_kept:
                return {
                    "snapshot": snapshot,
                    "checkpoint": checkpoint,
                    "interrupts": interrupts,
                    "usage": usage,
                }
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
        return encode_bytes_values(self._agent.take_snapshot(preset="session").to_dict())

    async def _restore(self) -> None:
        """Load the newest snapshot of this task, or else that of the conversation."""
        kept = await self._turn.recall(KEY) if self._kept is None else self._kept["snapshot"]
        if kept is not None:
            self._agent.load_snapshot(Snapshot.from_dict(decode_bytes_values(kept)))

    def _length(self) -> int:
        return len(self._agent.messages)

    def _taken_up(self, prompt: Any, begun: int) -> Any:
        """Return how an attempt continues what a session manager kept of an earlier one."""
        state = self._agent._interrupt_state
        if isinstance(prompt, list) and prompt and "interruptResponse" in prompt[0]:
            return prompt if state.activated else None
        has_begun = len(self._agent.messages) > begun
        if has_begun and state.activated:
            waiting = [each for each in state.interrupts.values() if each.response is None]
            return {"interrupts": unanswered(waiting), "usage": {}, "checkpoint": None}
        if state.activated:  # a task that was canceled left it
            state.deactivate()
        return None if has_begun else prompt

    # -- the end -------------------------------------------------------------------------------

    async def _finish(self, result: AgentResult) -> None:
        text = "".join(block.get("text", "") for block in result.message.get("content", []))
        check_end(self._turn, result.stop_reason, text)
        if not self._has_session:
            kept = self._snapshot()
            kept["data"].pop("interrupt_state", None)
            kept["data"]["messages"] = _bounded(kept["data"].get("messages", []))
            await self._turn.remember(KEY, msgspec.json.decode(msgspec.json.encode(kept)))
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


def _bounded(messages: list[Any]) -> list[Any]:
    """Return messages without files, then without the oldest, if they are too large."""
    if len(msgspec.json.encode(messages)) > MAX_BYTES:
        messages = [_without_files(each) for each in messages]
    while len(messages) > 1 and len(msgspec.json.encode(messages)) > MAX_BYTES:
        later = [n for n in range(1, len(messages)) if _begins_a_turn(messages[n])]
        if not later:
            break
        messages = messages[later[0] :]
    return messages


def _begins_a_turn(message: Any) -> bool:
    blocks = message.get("content", [])
    return message.get("role") == "user" and not any("toolResult" in each for each in blocks)


def _without_files(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_files(each) for each in value]
    if isinstance(value, dict):
        for kind in ("image", "document", "video"):
            if isinstance(value.get(kind), dict) and "source" in value[kind]:
                return {"text": f"(there was a file: {kind})"}
        return {name: _without_files(each) for name, each in value.items()}
    return value
