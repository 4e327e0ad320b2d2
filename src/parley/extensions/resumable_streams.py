"""Streams that go on where they were cut (``docs/extensions/resumable-streams.md``).

Numbers and replay are what logs and streams do; this declares them, and says how the number of an
event travels where a binding has no place of its own for it.
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
    """Where an event stands: ``generation`` is its number in the task's log, from 1."""

    generation: Annotated[int, msgspec.Meta(ge=0)]


class ResumableStreams(Extension):
    """Every event of a task has a number, and a stream can go on after any of them."""

    uri = RESUMABLE_STREAMS
    description = (
        "Every event of a stream has a number (SSE id); SubscribeToTask with Last-Event-ID "
        "goes on after it, also on a task that has ended."
    )
    data = StreamPosition


def numbered(item: StreamItem) -> Event:
    """Return an event as it is sent where its number has no other place: with it in metadata.

    For the wire alone: what is logged knows its number. A direct message has none.
    """
    event = item.event
    if item.seq is None or isinstance(event, Message):
        return event
    return replace(
        event,
        metadata={**(event.metadata or {}), RESUMABLE_STREAMS: {"generation": item.seq}},
    )


def number_of(event: Carrier) -> int | None:
    """Return the number that an event carries in its metadata, if any."""
    try:
        place: StreamPosition | None = ResumableStreams.of(event)
    except InvalidParamsError:
        return None
    return place.generation if place is not None else None
