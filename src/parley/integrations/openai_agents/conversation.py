"""The conversation of a context: the input items of its turns, kept in the context."""

from __future__ import annotations

from typing import Any

import msgspec
from agents.items import RunItem, ToolApprovalItem

from parley.agent.turn import Turn

KEY = "urn:parley:openai-agents:conversation"

MAX_BYTES = 500_000
"""How many bytes of JSON a conversation keeps; its oldest turns are dropped above that."""

MAX_TURN_BYTES = 200_000
"""Above this, the files of a turn are not kept, only that they were there."""

_FILES = {
    "input_image": "(an image)",
    "input_file": "(a file)",
    "input_audio": "(an audio recording)",
}


async def conversation(turn: Turn) -> list[Any]:
    """Return the items of earlier turns of this context, the oldest first."""
    said = await turn.recall(KEY, [])
    return [item for each in said if each["task"] != turn.task_id for item in each["items"]]


async def remember(turn: Turn, item: dict[str, Any], new_items: list[RunItem]) -> None:
    """Add the message and what the run made of it. Idempotent for a task."""
    items: list[Any] = [item]
    items += [each.to_input_item() for each in new_items if not isinstance(each, ToolApprovalItem)]
    if len(msgspec.json.encode(items)) > MAX_TURN_BYTES:
        items = [_without_files(each) for each in items]
    entry = {"task": turn.task_id, "items": msgspec.json.decode(msgspec.json.encode(items))}

    def added(said: list[Any]) -> list[Any]:
        kept = [each for each in said if each["task"] != turn.task_id] + [entry]
        sizes = [len(msgspec.json.encode(each)) for each in kept]
        while len(kept) > 1 and sum(sizes) > MAX_BYTES:
            del kept[0], sizes[0]
        return kept

    await turn.update(KEY, added, [])


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


def _without_files(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_files(each) for each in value]
    if isinstance(value, dict):
        if (kind := value.get("type")) in _FILES:
            return {"type": "input_text", "text": _FILES[kind]}
        return {name: _without_files(each) for name, each in value.items()}
    return value
