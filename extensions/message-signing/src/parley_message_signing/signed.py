"""What is signed: the payload of a message, and of an artifact that grows in chunks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from parley.model.parts import Message, Part
from parley.model.struct import encode
from parley.security.signing.canonical import canonical

URI = "https://github.com/parley-agents/parley/blob/main/extensions/message-signing/v1.md"

START = "0" * 64
"""The digest of no parts."""


class Signature(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What the metadata has under the URI.

    ``jws`` is compact and detached. ``metadata`` names the members of the metadata that are signed
    too. ``issued_at`` is in seconds since 1970. ``audience`` is whom the message is for.
    """

    jws: str
    issued_at: int
    context_id: str = ""
    task_id: str = ""
    audience: str = ""
    metadata: tuple[str, ...] = ()


def message_payload(message: Message, signature: Signature) -> bytes:
    """Return what the signature of a message is over. Raises ``ValueError`` without such a form."""
    metadata = message.metadata or {}
    return canonical(
        {
            "type": "message",
            "messageId": message.message_id,
            "role": message.role.value,
            "parts": [_json(part) for part in message.parts],
            "metadata": {name: metadata.get(name) for name in signature.metadata},
            "referenceTaskIds": list(message.reference_task_ids),
            **_claims(signature),
        }
    )


def artifact_payload(artifact_id: str, digest: str, signature: Signature) -> bytes:
    """Return what the signature of an artifact is over, so far as it has grown."""
    return canonical(
        {"type": "artifact", "artifactId": artifact_id, "digest": digest, **_claims(signature)}
    )


def grown(digest: str, parts: Iterable[Part]) -> str:
    """Return the digest of an artifact after further parts: a chain of SHA-256, one for each."""
    for part in parts:
        of_part = hashlib.sha256(canonical(_json(part))).digest()
        digest = hashlib.sha256(bytes.fromhex(digest) + of_part).hexdigest()
    return digest


def _claims(signature: Signature) -> dict[str, Any]:
    return {
        "issuedAt": signature.issued_at,
        "contextId": signature.context_id,
        "taskId": signature.task_id,
        "audience": signature.audience,
    }


def _json(part: Part) -> Any:
    return msgspec.json.decode(encode(part))
