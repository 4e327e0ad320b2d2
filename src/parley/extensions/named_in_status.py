"""Names an extension in the status messages that have its data."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from parley.model.tasks import TaskStatusUpdateEvent


def named_in_status(event: Any, uri: str, media_type: str) -> Any:
    """Return an event whose message names an extension if it has a part of a media type.

    Other events, and those whose message names it already, are returned as they are.
    """
    if not isinstance(event, TaskStatusUpdateEvent):
        return event
    message = event.status.message
    if message is None or uri in message.extensions:
        return event
    if not any(part.media_type == media_type for part in message.parts):
        return event
    named = replace(message, extensions=(*message.extensions, uri))
    return replace(event, status=replace(event.status, message=named))
