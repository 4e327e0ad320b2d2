"""Streams that resume after an interruption (``docs/reference/extensions/resumable-streams.md``).

``store.follow`` replays events by number. This module declares the extension, and writes the number
of an event into its metadata for bindings without event ids.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec.structs import replace

from parley.model.errors import InvalidParamsError
from parley.model.extensions import RESUMABLE_STREAMS, Carrier, Extension
from parley.model.parts import Message
from parley.model.service import StreamItem
from parley.model.tasks import Event


class StreamPosition(msgspec.Struct, frozen=True):
    """The position of an event: ``generation`` is its number in the task's log, from 1."""

    generation: Annotated[int, msgspec.Meta(ge=0)]


class ResumableStreams(Extension):
    """Every event of a task has a number, and a stream can resume after any of them."""

    uri = RESUMABLE_STREAMS
    description = (
        "Every event of a stream has a number (SSE id); SubscribeToTask with Last-Event-ID "
        "continues after it, also on a task that has ended."
    )
    data = StreamPosition


def numbered(item: StreamItem) -> Event:
    """Return an event with its number in its metadata; a direct message has no number.

    Only for the wire: the log stores the number separately from the event.
    """
    event = item.event
    if item.seq is None or isinstance(event, Message):
        return event
    return replace(
        event, metadata={**(event.metadata or {}), RESUMABLE_STREAMS: {"generation": item.seq}}
    )


def number_of(event: Carrier) -> int | None:
    """Return the number in the metadata of an event, if any."""
    try:
        position: StreamPosition | None = ResumableStreams.of(event)
    except InvalidParamsError:
        return None
    return position.generation if position is not None else None
