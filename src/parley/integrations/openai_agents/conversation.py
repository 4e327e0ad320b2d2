"""The conversation of a context: the input items of its turns, kept in the context."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.integrations.conversations import replaced

KEY = "urn:parley:openai-agents:messages"

MAX_BYTES = 500_000
"""How many bytes of JSON a conversation keeps; its oldest turns are dropped above that, or else
the files of the newest."""


def short(items: list[Any]) -> list[Any]:
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
    kind = str(value.get("type"))
    if kind not in ("input_image", "input_file", "input_audio"):
        return None
    return {"type": "input_text", "text": f"(there was a file: {kind.removeprefix('input_')})"}
