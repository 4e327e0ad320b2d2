"""The bytes of files in the proto of version 0.3.

Its field holds the bytes. The official SDKs for Python, Go and Java put base64 text there, and
expect it, so that one camp cannot read the other: what comes in is read either way, and what goes
out is as the proto says, unless the peer is known to be of the other camp.
"""

from __future__ import annotations

import binascii
from typing import Any

from msgspec.structs import replace

from parley.model.parts import Artifact, Message, Part
from parley.model.requests import ListTasksResponse, SendMessageRequest
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent

# What the official SDKs that have text there are built on, by the names that it gives itself: the
# libraries of their clients, and the servers of Python. Go's and Java's servers give no name.
_WITH_TEXT = (
    *("python-httpx", "grpc-python", "uvicorn", "hypercorn", "granian"),
    *("Go-http-client", "grpc-go", "Java-http-client", "grpc-java"),
)


def expects_text(peer: str) -> bool:
    """Whether a peer, by the name that it gives itself, is taken for one that expects text."""
    return peer.startswith(_WITH_TEXT)


def content_of(given: bytes, media_type: str) -> bytes:
    """Return the content of a file, of what came in the field.

    What is base64 throughout is taken for base64 text, unless it is said to be text and what it
    stands for is not.
    """
    if not given or len(given) % 4:
        return given
    try:
        content = binascii.a2b_base64(given, strict_mode=True)
    except ValueError:
        return given
    if media_type.lower().startswith("text/"):
        try:
            content.decode()
        except UnicodeDecodeError:
            return given
    return content


def with_text_bytes(value: Any) -> Any:
    """Return a message, an answer or an event with base64 text for the bytes of its files."""
    match value:
        case Part(raw=bytes() as raw):
            return replace(value, raw=binascii.b2a_base64(raw, newline=False))
        case Message() | Artifact():
            return replace(value, parts=_each(value.parts))
        case TaskStatus(message=Message()):
            return replace(value, message=with_text_bytes(value.message))
        case TaskStatusUpdateEvent():
            return replace(value, status=with_text_bytes(value.status))
        case TaskArtifactUpdateEvent():
            return replace(value, artifact=with_text_bytes(value.artifact))
        case SendMessageRequest():
            return replace(value, message=with_text_bytes(value.message))
        case Task():
            return replace(
                value,
                status=with_text_bytes(value.status),
                artifacts=_each(value.artifacts),
                history=_each(value.history),
            )
        case ListTasksResponse():
            return replace(value, tasks=_each(value.tasks))
    return value


def _each(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([with_text_bytes(value) for value in values])
