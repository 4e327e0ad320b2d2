"""The conversation of a context: the input items of its turns, kept in the context."""

from __future__ import annotations

from typing import Any

import msgspec
from agents.items import RunItem, ToolApprovalItem

from parley.agent.turn import Turn
from parley.integrations.conversations import ContextConversation, replaced

KEY = "urn:parley:openai-agents:messages"

MAX_BYTES = 500_000
"""How many bytes of JSON a conversation keeps; its oldest turns are dropped above that."""

MAX_TURN_BYTES = 200_000
"""Above this, the files of a turn are not kept, only that they were there, and if that is not
enough, only its messages."""

_FILES = {
    "input_image": "(an image)",
    "input_file": "(a file)",
    "input_audio": "(an audio recording)",
}


async def conversation(turn: Turn) -> list[Any]:
    """Return the items of earlier turns of this context, the oldest first."""
    return await _kept(turn).earlier()


async def remember(turn: Turn, item: dict[str, Any], new_items: list[RunItem]) -> None:
    """Add the message and what the run made of it. Idempotent for a task."""
    items: list[Any] = [item]
    items += [each.to_input_item() for each in new_items if not isinstance(each, ToolApprovalItem)]
    await _kept(turn).add(_bounded(msgspec.json.decode(msgspec.json.encode(items))))


def _kept(turn: Turn) -> ContextConversation:
    return ContextConversation(turn, KEY, max_bytes=MAX_BYTES)


def _bounded(items: list[Any]) -> list[Any]:
    if len(msgspec.json.encode(items)) <= MAX_TURN_BYTES:
        return items
    items = [replaced(each, _without_file) for each in items]
    if len(msgspec.json.encode(items)) <= MAX_TURN_BYTES:
        return items
    return [each for each in items if each.get("type", "message") == "message"]


def in_pairs(history: list[Any], new: list[Any]) -> list[Any]:
    """Return the input of a run, each result of a tool right after its call, as models want it.

    Another task of the context may have spoken in the session while a call waited for an answer.
    """
    results = {
        each["call_id"]: each
        for each in history
        if isinstance(each, dict) and each.get("type") == "function_call_output"
    }
    said: list[Any] = []
    for each in history:
        kind = each.get("type") if isinstance(each, dict) else None
        if kind == "function_call_output" and each["call_id"] not in results:
            continue
        said.append(each)
        if kind == "function_call" and each.get("call_id") in results:
            said.append(results.pop(each["call_id"]))
    return [*said, *new]


def _without_file(value: dict[str, Any]) -> dict[str, Any] | None:
    said = _FILES.get(str(value.get("type")))
    return None if said is None else {"type": "input_text", "text": said}
