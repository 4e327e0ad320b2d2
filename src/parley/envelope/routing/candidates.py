"""Agents that a REQUEST may be passed on to, and what goes wrong on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from parley.envelope.messages import Envelope, MessageType, ResponsePayload, Status
from parley.envelope.server.directory import MessageContext

HIDDEN_CODES = frozenset(
    {
        "MESSAGE_OUTDATED",
        "PERMISSION_DENIED",
        "SIGNATURE_INVALID",
        "SIGNATURE_REQUIRED",
        "SOURCE_MISMATCH",
        "TARGET_NOT_FOUND",
        "UNAUTHENTICATED",
        "UNKNOWN_ACTION",
    }
)
"""Errors of agents that a caller may not call: in the answers of several, these are left out, so
that nobody learns who is there.
"""


class NotSent(Exception):
    """A candidate was not asked: another one may be."""


class NotForCaller(Exception):
    """A candidate is not for this caller: for it, there is no such agent."""


class AgentCandidate(Protocol):
    """An agent that may be asked. ``id`` and ``type`` are those of its card."""

    @property
    def id(self) -> str:
        """The id of the agent."""
        ...

    @property
    def in_flight(self) -> int:
        """How many requests were passed on to it, and are not answered."""
        ...

    def ask(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
        """Yield its answers.

        Raises ``NotSent`` and ``NotForCaller`` before the first, and ``A2AError``.
        """
        ...


def is_refused_early(answer: Envelope) -> bool:
    """Return whether an agent refused a request before it began anything."""
    payload = answer.payload
    return (
        isinstance(payload, ResponsePayload)
        and answer.message.type == MessageType.RESPONSE
        and payload.status == Status.ERROR
        and payload.error is not None
        and payload.error.code in ("OVERLOADED", "TOO_MANY_REQUESTS", "MAINTENANCE")
        and not payload.metadata.task_id
    )
