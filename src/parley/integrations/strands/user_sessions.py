"""Tasks in a session that a session manager of the user's own keeps, message by message.

The session has one interrupt, and the messages of all tasks one after the other. So each task keeps
its own interrupt in its log, and its messages are known by the id that the task's prompt has.
"""

from __future__ import annotations

from typing import Any

import strands
from strands.interrupt import _InterruptState
from strands.tools._tool_helpers import generate_missing_tool_result_content
from strands.types.session import decode_bytes_values

from parley.integrations.strands.interrupts import unanswered

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
