"""Who says what is passed on: the name of a part, in the message's metadata and before its text."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from parley.model.parts import Message

SPEAKER = "urn:parley:part"
"""The metadata key with the names of the parts that a message comes from, the outermost first."""


def said_by(name: str, message: Message, metadata: dict[str, Any] | None) -> Message:
    """Return a message that says who says it; the same message without a name.

    ``metadata`` is that of the message as it came: it may have come through other parts.
    """
    if not name:
        return message
    inner = (metadata or {}).get(SPEAKER)
    names = [name, *(str(each) for each in inner)] if isinstance(inner, list) else [name]
    parts = list(message.parts)
    for index, part in enumerate(parts):
        if part.text is not None:
            parts[index] = replace(part, text=f"{name}: {part.text}")
            break
    return replace(
        message, parts=tuple(parts), metadata={**(message.metadata or {}), SPEAKER: names[:16]}
    )
