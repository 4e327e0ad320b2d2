"""The conversation of a context: the input items of its turns, kept in the context."""

from __future__ import annotations

from typing import Any

import msgspec
from agents.items import RunItem, ToolApprovalItem

from parley.agent.turn import Turn
from parley.integrations.conversations import ContextConversation, replaced

KEY = "urn:parley:openai-agents:messages"

MAX_BYTES = 500_000
"""How many bytes of JSON a conversation keeps; its oldest turns are dropped above that, or else
the files of the newest."""

_FILES = {
    "input_image": "(an image)",
    "input_file": "(a file)",
    "input_audio": "(an audio recording)",
}


def kept_conversation(turn: Turn) -> ContextConversation:
    """Return the conversation of a turn's context."""
    return ContextConversation(turn, KEY, max_bytes=MAX_BYTES, shorten=_short)


def items_of(item: dict[str, Any], new_items: list[RunItem]) -> list[Any]:
    """Return a message and what the run made of it."""
    made = [each.to_input_item() for each in new_items if not isinstance(each, ToolApprovalItem)]
    return [item, *made]


def _short(items: list[Any]) -> list[Any]:
    """Return items without files; if that is not enough, their messages alone."""
    items = [replaced(each, _without_file) for each in items]
    if len(msgspec.json.encode(items)) <= MAX_BYTES:
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
