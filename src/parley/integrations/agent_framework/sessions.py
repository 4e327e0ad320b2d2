"""How much of a session its context keeps."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from parley.integrations.conversations import Messages, replaced


class Bounds(NamedTuple):
    """How many messages, and how many bytes of JSON, the session of a context has at most."""

    max_messages: int
    max_bytes: int

    def shortened(self, session: dict[str, Any]) -> dict[str, Any]:
        """Return a session, as JSON, with the newest messages of its histories.

        They have three quarters of the bytes, and begin with one that the user said. What the user
        said last, and all after it, loses its files if it is larger by itself, and goes if that
        does not help.
        """
        state = session.get("state")
        if not isinstance(state, dict):
            return session
        histories = {
            name: each["messages"]
            for name, each in state.items()
            if isinstance(each, dict) and isinstance(each.get("messages"), list)
        }
        room = self.max_bytes * 3 // 4 // max(1, len(histories))
        kept = {name: _newest(each, self.max_messages, room) for name, each in histories.items()}
        shorter = {name: {**state[name], "messages": messages} for name, messages in kept.items()}
        return {**session, "state": {**state, **shorter}}


def _newest(messages: Messages, most: int, room: int) -> Messages:
    kept = messages[max(0, len(messages) - most) :]
    if len(kept) < len(messages):
        kept = kept[_of_user(kept, 0) :]
    sizes = [len(msgspec.json.encode(each)) for each in kept]
    while kept and sum(sizes) > room:
        later = _of_user(kept, 1)
        if later == len(kept):  # these are the newest: without their files, or not at all
            bare = [replaced(each, _without_file) for each in kept]
            return bare if len(msgspec.json.encode(bare)) <= room else []
        kept, sizes = kept[later:], sizes[later:]
    return kept


def _of_user(messages: Messages, begin: int) -> int:
    """Return the number of the next message of the user, else how many messages there are."""
    for number in range(begin, len(messages)):
        if _is_said(messages[number]):
            return number
    return len(messages)


def _is_said(message: Any) -> bool:
    """Return whether the user says something, rather than approves a call."""
    if not isinstance(message, dict) or message.get("role") != "user":
        return False
    kinds = [each.get("type") for each in message.get("contents") or () if isinstance(each, dict)]
    return bool({"text", "data", "uri"}.intersection(kinds))


def _without_file(value: dict[str, Any]) -> dict[str, Any] | None:
    if value.get("type") not in ("data", "uri") or not str(value.get("uri", "")).startswith(
        "data:"
    ):
        return None
    return {"type": "text", "text": f"(a file of the type {value.get('media_type', 'unknown')})"}
