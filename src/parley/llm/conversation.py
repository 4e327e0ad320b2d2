"""What a context remembers of its conversation with a model: whole exchanges, within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parley.agent.turn import Turn
from parley.llm.message_content import without_files
from parley.llm.token_budget import estimated

MAX_RESULT = 2000
"""How many characters of a tool's result are remembered."""

MAX_SAID = 8000
"""How many characters of one message are remembered of an exchange that is too long."""

Messages = list[dict[str, Any]]


class ModelConversation:
    """The earlier exchanges of a context.

    An exchange is all of one task: what its caller said, the tool calls, the answer. It is added as
    a whole when the task's run has ended, so tasks that run at the same time mix nothing; the
    oldest exchanges are dropped when all have more than ``most`` tokens.
    """

    def __init__(self, turn: Turn, key: str, most: int) -> None:
        self._turn = turn
        self._key = f"{key}:conversation"
        self._most = most

    async def earlier(self) -> Messages:
        """Return the messages of the earlier exchanges."""
        if not self._most:
            return []
        kept = await self._turn.recall(self._key, [])
        return [
            message
            for each in kept
            if each["task"] != self._turn.task_id
            for message in each["messages"]
        ]

    async def add(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Add the exchange of this task; a further attempt replaces it."""
        if not self._most:
            return
        task_id = self._turn.task_id
        added = {"task": task_id, "messages": _fitted(messages, self._most)}

        def with_added(kept: list[dict[str, Any]]) -> list[dict[str, Any]]:
            others = [each for each in kept if each["task"] != task_id]
            left, chosen = self._most - estimated(added), [added]
            for each in reversed(others):
                left -= estimated(each)
                if left < 0:
                    break
                chosen.insert(0, each)
            return chosen

        await self._turn.update(self._key, with_added, [])


def _fitted(messages: Sequence[Mapping[str, Any]], most: int) -> Messages:
    """Return an exchange as it is remembered: without files and thinking, with short results.

    Of one that is still too long only what was said first and last is left.
    """
    whole: Messages = []
    for message in messages:
        content = without_files(message.get("content"))
        if message.get("role") == "tool" and isinstance(content, str):
            content = shortened(content, MAX_RESULT)
        kept = {key: value for key, value in message.items() if key != "reasoning_content"}
        whole.append({**kept, "content": content})
    if estimated(whole) <= most:
        return whole
    ends = [whole[0], *([whole[-1]] if len(whole) > 1 else [])]
    room = min(MAX_SAID, max(100, most))  # in characters, where a token is about four
    return [
        {"role": each["role"], "content": shortened(str(each.get("content") or ""), room)}
        for each in ends
    ]


def shortened(text: str, most: int) -> str:
    """Return a text, or its beginning and how much was left out."""
    if len(text) <= most:
        return text
    return f"{text[:most]}\n[{len(text) - most:,} more characters are left out]"
