"""One turn of an agent of Strands, from snapshot to snapshot or in a session of its author."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec
import strands
from strands.agent.agent_result import AgentResult
from strands.interrupt import _InterruptState
from strands.tools._tool_helpers import generate_missing_tool_result_content
from strands.types._snapshot import Snapshot
from strands.types.exceptions import MaxTokensReachedException
from strands.types.session import decode_bytes_values

from parley.agent.turn import Turn
from parley.integrations.conversations import CHECKPOINT_BYTES, ContextConversation, ContextState
from parley.integrations.serving import RunOver
from parley.integrations.strands.contents import StrandsDisplay, prompt_of, without_files, written
from parley.integrations.strands.interrupts import CurrentRun, unanswered
from parley.llm.run_output import RunOutput

STEP = "strands"
MESSAGES = "urn:parley:strands:messages"
STATE = "urn:parley:strands:state"


class AgentRun:
    """Runs an agent for one turn. The agent is this turn's own.

    When it has ended, its new messages and changes of its state are added to the context.
    """

    def __init__(
        self, thing: strands.Agent, turn: Turn, output: RunOutput, state: dict[str, Any]
    ) -> None:
        self._agent = thing
        self._turn = turn
        self._output = output
        self._state = state
        model = thing._default_structured_output_model
        self._display = StrandsDisplay(output, set() if model is None else {model.__name__})
        self._is_live = False
        # A session manager keeps the agent's state by itself, message by message.
        self._session: UserSession | None = None
        if thing._session_manager is not None:
            self._session = UserSession(thing, turn.task_id)
        thing._checkpointing = self._session is None
        first = written(thing.messages)
        self._conversation = ContextConversation(turn, MESSAGES, shorten=without_files, first=first)
        self._store = ContextState(turn, STATE)
        self._before: dict[str, Any] = {}

    async def run(self) -> None:
        """Run until the agent has answered, and show it."""
        prompt: Any = await prompt_of(self._turn)
        if self._session is not None:
            prompt = self._session.prompt(prompt)
        run = CurrentRun(self._turn, self._agent, self._output.requests)
        await self._finish(await run.steps(STEP, self._go, prompt))

    # -- from one snapshot to the next ---------------------------------------------------------

    async def _go(self, prompt: Any, kept: dict[str, Any] | None, _: int) -> dict[str, Any]:
        """Run until the state is to be kept, and return it. Raises ``RunOver`` at the end."""
        if not self._is_live:
            self._is_live = True
            if self._session is not None:
                prompt = await self._session.taken_up(prompt, kept)
            else:
                await self._restore(kept)
        if isinstance(prompt, dict) and "interrupts" in prompt:
            return prompt
        while True:
            result = await self._result(prompt)
            interrupts = unanswered(result.interrupts) if result.stop_reason == "interrupt" else []
            if result.checkpoint is None and not interrupts:
                raise RunOver(result)
            checkpoint = None if result.checkpoint is None else result.checkpoint.to_dict()
            now: dict[str, Any] = {"checkpoint": checkpoint, "interrupts": interrupts}
            snapshot = None if self._session is not None else self._snapshot()
            if interrupts or (
                checkpoint is not None
                and checkpoint["position"] == "after_tools"
                and len(msgspec.json.encode(snapshot)) <= CHECKPOINT_BYTES
            ):
                if snapshot is None:
                    return {**now, "pending": written(self._agent._interrupt_state.to_dict())}
                mark = self._conversation.mark(snapshot["data"]["messages"])
                return {**now, "snapshot": snapshot, "conversation": mark, "before": self._before}
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
        except MaxTokensReachedException:  # the message is as long as it may be
            message = self._agent.messages[-1]
            return AgentResult("max_tokens", message, self._agent.event_loop_metrics, {})
        assert result is not None
        return result

    # -- the state -----------------------------------------------------------------------------

    def _snapshot(self) -> Any:
        return written(self._agent.take_snapshot(preset="session").to_dict())

    async def _restore(self, kept: dict[str, Any] | None) -> None:
        """Load the newest snapshot of this task, or else what the context has of others."""
        if kept is not None:
            snapshot = kept["snapshot"]
            self._conversation.resume(kept["conversation"], snapshot["data"]["messages"])
            self._before = kept["before"]
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
        if result.stop_reason == "guardrail_intervened":
            self._turn.reject(text or "A guardrail refuses this.")
        if result.stop_reason == "cancelled":
            self._turn.fail("The run was cancelled by the agent itself.")
        if self._session is None:
            snapshot = self._snapshot()
            await self._conversation.finish(snapshot["data"]["messages"])
            await self._store.write(self._before, _state_in(snapshot))
        if result.structured_output is not None:
            value = result.structured_output
            await self._output.data(
                value.model_dump(mode="json"), schema=type(value).model_json_schema()
            )
        elif not self._output.said and result.stop_reason != "max_tokens":
            await self._output.text(text)


def _state_in(snapshot: Any) -> dict[str, Any]:
    """Return what tasks of a context share beside the messages."""
    apart = ("messages", "interrupt_state")
    return {name: value for name, value in snapshot["data"].items() if name not in apart}


TASK = "parley-"
"""Begins the tracking ids of prompts; the id of the task follows."""


class UserSession:
    """The place of a task in the session of its thread."""

    def __init__(self, agent: strands.Agent, task_id: str) -> None:
        self._agent = agent
        self._id = f"{TASK}{task_id}"
        self._begins: list[Any] = []

    def prompt(self, blocks: Any) -> list[Any]:
        """Return a prompt as a message that is known as this task's."""
        self._begins = [{"role": "user", "content": blocks, "tracking_id": self._id}]
        return self._begins

    async def taken_up(self, prompt: Any, kept: dict[str, Any] | None) -> Any:
        """Return how an attempt continues what the session has of the task.

        ``prompt`` begins the task, or answers the interrupts that ``kept`` has of its log.
        """
        state = self._agent._interrupt_state
        if kept is not None and "interruptResponse" in prompt[0]:
            return await self._answered(prompt, kept["pending"])
        begun = self._last(self._id)
        if begun is None:
            if state.activated:  # another task waits, or left it; its log has it
                state.deactivate()
            return prompt
        if state.activated and self._waits_after(begun):
            waiting = [each for each in state.interrupts.values() if each.response is None]
            pending = state.to_dict()
            return {"interrupts": unanswered(waiting), "pending": pending}
        if state.activated:
            state.deactivate()
        return None

    async def _answered(self, prompt: Any, pending: Any) -> Any:
        state = self._agent._interrupt_state
        ids = {each["interruptResponse"]["interruptId"] for each in prompt}
        if state.activated and ids <= set(state.interrupts):
            return prompt
        message = (pending.get("pending_tool_execution") or {}).get("assistant_message")
        if message is not None and self._is_settled(message):
            return None  # the answer was taken before a crash
        await self._come_last(None if message is None else decode_bytes_values(message))
        self._agent._interrupt_state = _InterruptState.from_dict(decode_bytes_values(pending))
        return prompt

    async def _come_last(self, message: Any) -> None:
        """Say again what the task waits with, after what other tasks have said meanwhile.

        The same is said in a session that has lost it.
        """
        messages = self._agent.messages
        newest = messages[-1] if messages else {"content": []}
        if message is None or newest.get("tracking_id") == message.get("tracking_id"):
            return
        if waiting := _calls_in(newest):
            results = generate_missing_tool_result_content(waiting)
            await self._agent._append_messages({"role": "user", "content": results})
        begun = self._last(self._id)
        again: Any = self._begins[0]
        if begun is not None:
            again = {"role": "user", "content": messages[begun]["content"]}
        await self._agent._append_messages(again)
        await self._agent._append_messages(message)

    def _is_settled(self, message: Any) -> bool:
        """Return whether calls of tools have results, other than that there are none."""
        at, messages = self._last(message.get("tracking_id")), self._agent.messages
        if at is None or at + 1 >= len(messages):
            return False
        calls = _calls_in(message)
        found = [each for each in messages[at + 1]["content"] if "toolResult" in each]
        ids = {each["toolResult"]["toolUseId"] for each in found}
        return ids == set(calls) and found != generate_missing_tool_result_content(calls)

    def _waits_after(self, begun: int) -> bool:
        """Return whether the interrupt of the session is that of the message at this place."""
        others = self._agent.messages[begun + 1 :]
        return not any(str(each.get("tracking_id", "")).startswith(TASK) for each in others)

    def _last(self, tracking_id: str | None) -> int | None:
        messages = self._agent.messages
        found = [n for n, each in enumerate(messages) if each.get("tracking_id") == tracking_id]
        return found[-1] if found and tracking_id else None


def _calls_in(message: Any) -> list[str]:
    return [each["toolUse"]["toolUseId"] for each in message["content"] if "toolUse" in each]
