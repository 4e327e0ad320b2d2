"""Extensions of the protocol: what one can add, on either side (specification §4.6).

An extension may declare data on the card, check and enrich what is sent (a profile), and add
methods. It never adds fields to the types of the specification, or values to its enums: what it
has to say is in metadata, under its URI.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, Literal, TypeVar

import msgspec

from parley.model.cards import AgentExtension
from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.operations import BY_NAME, Operation
from parley.model.parts import Artifact, Message, Part
from parley.model.requests import SendMessageRequest
from parley.model.service import A2AService, CallContext
from parley.model.struct import A2AStruct
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

RESUMABLE_STREAMS = "urn:parley:resumable-streams:v1"
IDEMPOTENT_SEND = "urn:parley:idempotent-send:v1"

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
"""What has metadata, and so can carry what an extension has to say."""

C = TypeVar("C", bound=Carrier)


class ExtensionMethod(msgspec.Struct, Generic[Q, A], frozen=True):
    """A method that an extension adds. Make it with ``method``.

    It is called as core methods are: with the same authentication, validation and errors, by
    callers that ask for the extension. ``operation.name`` is its JSON-RPC name, and
    ``operation.extension`` the URI. ``handle`` answers, with the agent's service, which keeps
    callers apart, the request and its context.
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

    ``name`` is what it is called over JSON-RPC; ``verb`` and ``path``, relative to the agent's
    address and with fields of the request in braces, what it is over HTTP+JSON. A ``safe`` method
    changes nothing, so that clients may repeat it. A request with a field ``tenant`` can be sent
    to an agent behind a tenant.

    Raises ``ValueError`` for a name or a path that the specification has given away, ``TypeError``
    for a ``handle`` that is no ``async def``: it is called on the event loop, and what it asks the
    service is awaited.
    """
    if not _is_async(handle):
        raise TypeError(
            f"{name} is handled by an async def, which is called on the event loop and awaits what "
            f"takes time, not by {handle!r}"
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
    """One extension, as an agent or a client takes part in it. Subclass it for behaviour.

    The version is part of ``uri``: another version is another extension, and nobody falls back
    from one to the other. ``depends_on`` are URIs of extensions without which it makes no sense:
    it is in force for callers that ask for them too. ``params`` go onto the card. ``data`` is the
    type of what it says in metadata; whatever does not fit is refused when it is read.
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
    def is_data_alone(self) -> bool:
        """Whether an agent does nothing for it: it is data on the card, and no more."""
        kind = type(self)
        acts = kind.receive is not Extension.receive or kind.send is not Extension.send
        return not acts and not self.methods and kind.data is Any

    def declared(self) -> AgentExtension:
        """Return what stands on the card."""
        return AgentExtension(
            uri=self.uri, description=self.description, required=self.required, params=self.params
        )

    # -- what it says in metadata --------------------------------------------------------------

    @classmethod
    def of(cls, carrier: Carrier) -> Any:
        """Return what the metadata of ``carrier`` says under the URI, ``None`` if nothing.

        Raises ``InvalidParamsError`` when it is no ``data``.
        """
        value = (carrier.metadata or {}).get(cls.uri)
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
    def says(cls, data: Any) -> dict[str, Any]:
        """Return ``data`` as metadata under the URI."""
        return {cls.uri: msgspec.to_builtins(data, str_keys=True)}

    @classmethod
    def put(cls, carrier: C, data: Any) -> C:
        """Return ``carrier`` with ``data`` in its metadata, under the URI."""
        metadata = {**(carrier.metadata or {}), **cls.says(data)}
        return msgspec.structs.replace(carrier, metadata=metadata)

    # -- an agent's side: called where the extension is in force -------------------------------

    def receive(
        self, request: SendMessageRequest, context: CallContext
    ) -> SendMessageRequest | Awaitable[SendMessageRequest]:
        """Check a message that comes in, and return it as the agent is to see it.

        It may be an ``async def``, which awaits what takes time; a plain ``def`` runs in a thread.
        It is called before anything is logged.
        Raises ``A2AError`` for a message that the extension does not allow.
        """
        return request

    def send(self, event: E) -> E:
        """Return what the agent says, enriched: a direct message, a status, an artifact update.

        It is called before the event is logged, so stream, task and push agree. Ids, states and
        the order of things are not its to change. It is a plain ``def`` that the event loop calls
        for every event and chunk, so it returns at once: what takes time belongs into ``receive``,
        or into the skill.
        Raises ``A2AError`` for what the extension does not allow the agent to say.
        """
        return event

    # -- a client's side -----------------------------------------------------------------------

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Return a message that goes out, enriched. It is called once for each message.

        It is a plain ``def`` that the event loop calls, so it returns at once.
        """
        return request


class Declared(Extension):
    """An extension that is data on the card and nothing else."""

    def __init__(self, declaration: AgentExtension) -> None:
        super().__init__(required=declaration.required, params=declaration.params)
        self.uri = declaration.uri
        self.description = declaration.description


def _is_async(function: Callable[..., Any]) -> bool:
    """Whether calling a function, or an object that can be called, is to be awaited."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def collected(given: Iterable[Extension | AgentExtension | str]) -> tuple[Extension, ...]:
    """Return extensions as objects, by URI; a later one replaces an earlier of the same URI.

    Raises ``TypeError`` and ``ValueError`` for what is none, has a URI that cannot be sent in a
    header, or has a ``send`` or an ``ask`` that is an ``async def``.
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
                    f"{hook} of {item!r} is a plain def, which returns at once: nobody can await "
                    "it where an event is written; receive may be an async def"
                )
        found.pop(item.uri, None)
        found[item.uri] = item
    return tuple(found.values())
