"""The base class of protocol extensions, for agents and clients (specification §4.6).

An extension may declare data on the card, check and enrich messages (a profile), and add methods.
It adds no fields to the types of the specification and no values to its enums: its data is in
metadata, under its URI.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from parley.model.cards import AgentCard, AgentExtension
from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.operations import BY_NAME, Operation, SendMessageRequest
from parley.model.parts import Artifact, Message, Part
from parley.model.service import A2AService, CallContext
from parley.model.struct import A2AStruct
from parley.model.tasks import Replied, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

RESUMABLE_STREAMS = "urn:parley:resumable-streams:v1"
IDEMPOTENT_SEND = "urn:parley:idempotent-send:v1"
CALL_CHAIN = "urn:parley:call-chain:v1"
FILE_TRANSFER = "urn:parley:file-transfer:v1"
PUSH_DELIVERY = "urn:parley:push-delivery:v1"
SKILL_SCHEMAS = "urn:parley:skill-schemas:v1"
ENVELOPE_CARD = "urn:parley:envelope-card:v1"

E = TypeVar("E", Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)
Q = TypeVar("Q", bound=A2AStruct)
A = TypeVar("A", bound=A2AStruct)

Carrier = (
    Message
    | Artifact
    | Part
    | Task
    | TaskStatusUpdateEvent
    | TaskArtifactUpdateEvent
    | SendMessageRequest
)
"""The objects with metadata, which can carry the data of an extension."""

C = TypeVar("C", bound=Carrier)


class ExtensionMethod(msgspec.Struct, Generic[Q, A], frozen=True):
    """A method that an extension adds. Make it with ``method``.

    Callers that activate the extension call it like core methods, with the same authentication,
    validation and errors.
    ``operation.name`` is its JSON-RPC name, and ``operation.extension`` the URI. ``handle`` gets
    the agent's service (which authorizes), the request and its context.
    """

    operation: Operation
    handle: Callable[[A2AService, Q, CallContext], Awaitable[A]]


def method(
    uri: str,
    name: str,
    request: type[Q],
    response: type[A],
    handle: Callable[[A2AService, Q, CallContext], Awaitable[A]],
    *,
    path: str,
    verb: Literal["GET", "POST", "DELETE"] = "POST",
    safe: bool = False,
) -> ExtensionMethod[Q, A]:
    """Return a method of the extension ``uri``.

    ``name`` is its name over JSON-RPC. Over HTTP+JSON it has ``verb`` and ``path``, relative to the
    agent's address, with fields of the request in braces. A ``safe`` method changes nothing, so
    clients may repeat it. A request with a field ``tenant`` can be sent to a tenant of an agent.

    Raises ``ValueError`` for a name or a path of the specification, and ``TypeError`` for a
    ``handle`` that is not an ``async def``, since it runs on the event loop.
    """
    if not _is_async(handle):
        raise TypeError(
            f"{name} needs an async def, which is called on the event loop and awaits slow work, "
            f"not {handle!r}"
        )
    if name in BY_NAME:
        raise ValueError(f"{name} is an operation of the specification; choose another name")
    if any((verb, path) == (known.verb, known.path) for known in BY_NAME.values()):
        raise ValueError(f"{verb} {path} is taken by the specification; choose another path")
    if not path.startswith("/"):
        raise ValueError(f"a path begins with a slash, such as /{path}")
    operation = Operation(
        name=name,
        method="",
        request=request,
        response=response,
        verb=verb,
        path=path,
        safe=safe,
        extension=uri,
    )
    return ExtensionMethod(operation, handle)


class Extension:
    """An extension, for an agent or a client. Subclass it for behaviour.

    The version is part of ``uri``: another version is another extension, without fallback.
    ``depends_on`` are URIs of extensions that callers must activate too. ``params`` are written to
    the card. ``data`` is the type of its data in metadata; data of another type is rejected.
    """

    uri: str = ""
    description: str = ""
    depends_on: tuple[str, ...] = ()
    methods: tuple[ExtensionMethod[Any, Any], ...] = ()
    data: Any = Any

    def __init__(self, *, required: bool = False, params: Mapping[str, Any] | None = None) -> None:
        self.required = required
        self.params = dict(params) if params is not None else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    @property
    def is_declaration_only(self) -> bool:
        """True if the extension is only data on the card, without behaviour."""
        kind = type(self)
        acts = kind.receive is not Extension.receive or kind.send is not Extension.send
        return not acts and not self.methods and kind.data is Any

    def declared(self) -> AgentExtension:
        """Return the declaration for the card."""
        return AgentExtension(
            uri=self.uri, description=self.description, required=self.required, params=self.params
        )

    # -- data in metadata ----------------------------------------------------------------------

    @classmethod
    def of(cls, carrier: Carrier | Replied) -> Any:
        """Return the data under the URI in the metadata of ``carrier``, ``None`` if there is none.

        Raises ``InvalidParamsError`` if the data does not have the type ``data``.
        """
        value = cls.value_in(carrier)
        if value is None or cls.data is Any:
            return value
        try:
            return msgspec.convert(value, cls.data)
        except msgspec.ValidationError as error:
            description = str(error)
            raise InvalidParamsError(
                f"metadata of {cls.uri}: {description}",
                violations=(FieldViolation(f"metadata.{cls.uri}", description),),
            ) from None

    @classmethod
    def value_in(cls, carrier: Carrier | Replied) -> Any:
        """Return the metadata of a carrier under the URI, unchecked, ``None`` if there is none."""
        of = carrier if isinstance(carrier, A2AStruct) else carrier.reply
        return (of.metadata or {}).get(cls.uri)

    @classmethod
    def says(cls, data: Any) -> dict[str, Any]:
        """Return ``data`` as metadata under the URI."""
        return {cls.uri: msgspec.to_builtins(data, str_keys=True)}

    @classmethod
    def put(cls, carrier: C, data: Any) -> C:
        """Return ``carrier`` with ``data`` in its metadata, under the URI."""
        metadata = {**(carrier.metadata or {}), **cls.says(data)}
        return msgspec.structs.replace(carrier, metadata=metadata)

    # -- hooks of an agent, called where the extension is active -------------------------------

    def receive(
        self, request: SendMessageRequest, context: CallContext
    ) -> SendMessageRequest | Awaitable[SendMessageRequest]:
        """Check an incoming message, and return it in the form that the agent gets.

        May be an ``async def``; a plain ``def`` runs in a thread. It is called before anything is
        stored. Raises ``A2AError`` for a message that the extension does not allow.
        """
        return request

    def send(self, event: E) -> E:
        """Enrich an event of the agent: a direct message, a status, or an artifact update.

        Called before the event is stored, so that stream, task and push notifications agree. Ids
        and states must not change. It is a plain ``def`` that the event loop calls for every event
        and chunk, so it must return at once: slow work belongs in ``receive`` or in the skill.
        Raises ``A2AError`` for an event that the extension does not allow.
        """
        return event

    # -- hooks of a client ---------------------------------------------------------------------

    def for_agent(self, card: AgentCard) -> Extension:
        """Return the extension for calls of the agent with this card, by default itself.

        Called once per connection, also if the card does not declare the extension. It may return
        an object that knows the card's declaration (``declared_on``), and raise an ``A2AError`` or
        a ``ValueError`` for an agent that must not be called.
        """
        return self

    @classmethod
    def declared_on(cls, card: AgentCard) -> AgentExtension | None:
        """Return the declaration of this extension on a card, ``None`` if there is none."""
        declared = card.capabilities.extensions
        return next((extension for extension in declared if extension.uri == cls.uri), None)

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Enrich an outgoing message. Called once per message.

        It is a plain ``def`` that the event loop calls, so it must return at once.
        """
        return request


class Declared(Extension):
    """An extension that is only data on the card."""

    def __init__(self, declaration: AgentExtension) -> None:
        super().__init__(required=declaration.required, params=declaration.params)
        self.uri = declaration.uri
        self.description = declaration.description


def _is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function, or the ``__call__`` of an object, is an ``async def``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def collect_extensions(given: Iterable[Extension | AgentExtension | str]) -> tuple[Extension, ...]:
    """Return extensions as objects; a later extension replaces an earlier one with the same URI.

    Raises ``TypeError`` and ``ValueError`` for an object that is not an extension, for a URI that
    cannot be sent in a header, and for an ``async def`` as ``send`` or ``ask``.
    """
    found: dict[str, Extension] = {}
    for item in given:
        if isinstance(item, str):
            item = Declared(AgentExtension(uri=item))
        elif isinstance(item, AgentExtension):
            item = Declared(item)
        elif not isinstance(item, Extension):
            raise TypeError(
                f"an extension is an Extension, an AgentExtension or a URI, not {item!r}"
            )
        if not item.uri or not item.uri.isascii() or any(c in ", \t\r\n" for c in item.uri):
            raise ValueError(f"an extension has a URI without spaces and commas, not {item.uri!r}")
        for hook in ("send", "ask"):
            if _is_async(getattr(item, hook)):
                raise TypeError(
                    f"{hook} of {item!r} must be a plain def, which returns at once: it cannot be "
                    "awaited where an event is written; receive may be an async def"
                )
        found.pop(item.uri, None)
        found[item.uri] = item
    return tuple(found.values())
