"""The bytes of files in the proto of version 0.3.

The proto's field holds raw bytes, but the official SDKs for Python, Go and Java send and expect
base64 text there. Both are read; raw bytes are sent, unless the peer is known to expect text.
"""

from __future__ import annotations

import binascii
from typing import Any

from msgspec.structs import replace

from parley.model.operations import ListTasksResponse, SendMessageRequest
from parley.model.parts import Artifact, Message, Part
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent

# User-Agent or Server of what these SDKs are built on: the libraries of their clients, and Python's
# servers. Servers in Go and Java give no name.
_TEXT_PEERS = (
    *("python-httpx", "grpc-python", "uvicorn", "hypercorn", "granian"),
    *("Go-http-client", "grpc-go", "Java-http-client", "grpc-java"),
)


def expects_base64_text(peer: str) -> bool:
    """Return whether a peer of this name (``User-Agent`` or ``Server``) expects base64 text."""
    return peer.startswith(_TEXT_PEERS)


def decode_content(given: bytes, media_type: str) -> bytes:
    """Return the content of a file, from the bytes that were received.

    Valid base64 is decoded, unless it is declared as text and decodes to something else.
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


def with_base64_text(value: Any) -> Any:
    """Return a message, an answer or an event with base64 text for the bytes of its files."""
    match value:
        case Part(raw=bytes() as raw):
            return replace(value, raw=binascii.b2a_base64(raw, newline=False))
        case Message() | Artifact():
            return replace(value, parts=_each(value.parts))
        case TaskStatus(message=Message()):
            return replace(value, message=with_base64_text(value.message))
        case TaskStatusUpdateEvent():
            return replace(value, status=with_base64_text(value.status))
        case TaskArtifactUpdateEvent():
            return replace(value, artifact=with_base64_text(value.artifact))
        case SendMessageRequest():
            return replace(value, message=with_base64_text(value.message))
        case Task():
            return replace(
                value,
                status=with_base64_text(value.status),
                artifacts=_each(value.artifacts),
                history=_each(value.history),
            )
        case ListTasksResponse():
            return replace(value, tasks=_each(value.tasks))
    return value


def _each(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([with_base64_text(value) for value in values])
