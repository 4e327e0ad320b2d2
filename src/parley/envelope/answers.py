"""Messages that answer others. Each has an id of its own, and names what it answers."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.envelope.errors import envelope_error
from parley.envelope.messages import (
    VERSION,
    Envelope,
    MessageInfo,
    MessageType,
    Priority,
    RequestPayload,
    ResponseMetadata,
    ResponsePayload,
    Source,
    Status,
    SubType,
    Target,
)
from parley.model.errors import A2AError
from parley.model.ids import new_id
from parley.model.struct import Timestamp, encode

Payload = RequestPayload | ResponsePayload | msgspec.Raw

_NO_METADATA = ResponseMetadata()
_ANYONE = Target()


def response(request: Envelope, payload: ResponsePayload, *, source: Source) -> Envelope:
    """Return the RESPONSE to a request, for its sender."""
    return _answer(MessageType.RESPONSE, request, payload, source)


def event(request: Envelope, payload: ResponsePayload, *, source: Source) -> Envelope:
    """Return an EVENT about a request, for its sender."""
    return _answer(MessageType.EVENT, request, payload, source)


def heartbeat(
    source: Source, *, answered: Envelope | None = None, payload: dict[str, Any] | None = None
) -> Envelope:
    """Return a HEARTBEAT, or the answer to one."""
    content = msgspec.Raw(encode(payload or {}))
    if answered is not None:
        return _answer(MessageType.HEARTBEAT, answered, content, source)
    return message(MessageType.HEARTBEAT, content, source=source)


def error_response(
    request: Envelope | str,
    error: A2AError,
    *,
    source: Source,
    metadata: ResponseMetadata = _NO_METADATA,
) -> Envelope:
    """Return the RESPONSE that a request has failed.

    ``request`` may be the id of a message that could not be read, empty if that could not be read
    either.
    """
    payload = ResponsePayload(status=Status.ERROR, error=envelope_error(error), metadata=metadata)
    if isinstance(request, Envelope):
        return response(request, payload, source=source)
    return message(MessageType.RESPONSE, payload, source=source, correlation_id=request)


def message(
    type: str,
    payload: Payload,
    *,
    source: Source,
    target: Target = _ANYONE,
    sub_type: str = SubType.QUERY,
    priority: str = Priority.NORMAL,
    correlation_id: str = "",
    message_id: str = "",
) -> Envelope:
    """Return a new message of now, with a fresh id if it has none."""
    return Envelope(
        version=VERSION,
        message_id=message_id or new_id(),
        timestamp=Timestamp.now(),
        source=source,
        target=target,
        message=MessageInfo(
            type=type, sub_type=sub_type, correlation_id=correlation_id, priority=priority
        ),
        payload=payload,
    )


def _answer(type: str, request: Envelope, payload: Payload, source: Source) -> Envelope:
    asked, sender = request.message, request.source
    return message(
        type,
        payload,
        source=source,
        target=Target(agent_id=sender.agent_id, agent_type=sender.agent_type),
        sub_type=asked.sub_type,
        priority=asked.priority,
        correlation_id=request.message_id,
    )
