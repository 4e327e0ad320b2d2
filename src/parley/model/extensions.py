"""Extensions of the protocol: what one can add, on either side (specification §4.6).

An extension may declare data on the card, check and enrich what is sent (a profile), and add
methods. It never adds fields to the types of the specification, or values to its enums: what it
has to say is in metadata, under its URI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec

from parley.model.cards import AgentExtension
from parley.model.operations import Operation
from parley.model.parts import Message
from parley.model.requests import SendMessageRequest
from parley.model.service import A2AService, CallContext
from parley.model.tasks import TaskArtifactUpdateEvent, TaskStatusUpdateEvent

RESUMABLE_STREAMS = "urn:parley:resumable-streams:v1"
IDEMPOTENT_SEND = "urn:parley:idempotent-send:v1"

E = TypeVar("E", Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)

Handler = Callable[[A2AService, Any, CallContext], Awaitable[Any]]
"""Answers an extension's method: with the agent's service, the request and its context."""


class ExtensionMethod(msgspec.Struct, frozen=True):
    """A method that an extension adds. ``operation.name`` is its JSON-RPC name.

    It is called as core methods are: with the same authentication, validation and errors, by
    callers that ask for the extension.
    """

    operation: Operation
    handle: Handler


class Extension:
    """One extension, as an agent or a client takes part in it. Subclass it for behaviour.

    The version is part of ``uri``: another version is another extension, and nobody falls back
    from one to the other. ``depends_on`` are URIs of extensions without which it makes no sense:
    a caller that asks for it asks for them too. ``params`` go onto the card.
    """

    uri: ClassVar[str] = ""
    description: ClassVar[str] = ""
    depends_on: ClassVar[tuple[str, ...]] = ()
    methods: tuple[ExtensionMethod, ...] = ()

    def __init__(self, *, required: bool = False, params: Mapping[str, Any] | None = None) -> None:
        self.required = required
        self.params = dict(params) if params is not None else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def declared(self) -> AgentExtension:
        """Return what stands on the card."""
        return AgentExtension(
            uri=self.uri, description=self.description, required=self.required, params=self.params
        )

    # -- an agent's side: called where the extension is in force -------------------------------

    def receive(self, request: SendMessageRequest, context: CallContext) -> SendMessageRequest:
        """Check a message that comes in, and return it as the agent is to see it.

        Raises ``A2AError`` for a message that the extension does not allow.
        """
        return request

    def send(self, event: E) -> E:
        """Return what the agent says, enriched. It is called before the event is logged."""
        return event

    # -- a client's side -----------------------------------------------------------------------

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Return a message that goes out, enriched."""
        return request
