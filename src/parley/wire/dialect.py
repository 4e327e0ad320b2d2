"""What a version of the protocol is to a binding: the seam between the two.

A binding asks ``wire.versions`` for the dialect of a version and has it read and write for it. It
never looks at the version itself, so a new binding speaks all versions, and a new version is
spoken over all bindings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from parley.model.errors import A2AError
from parley.model.operations import Operation
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event, Task, TaskState
from parley.wire.json.syntax import Bytes

Answer = Any
"""What a method of ``A2AService`` returns: a task, a direct message, a page, a card, ..."""


class Codec(Protocol):
    """Requests, answers and events of one version, as the bytes of one binding.

    Reading a request raises ``A2AError`` with the fields that are wrong, in the caller's names;
    reading an answer or an event raises ``InvalidAgentResponseError``.
    """

    def write_result(self, operation: Operation, answer: Answer) -> bytes:
        """Return the answer to an operation."""
        ...

    def read_result(self, operation: Operation, data: Bytes) -> Answer:
        """Return what an answer says."""
        ...

    def write_event(self, item: StreamItem) -> bytes:
        """Return one event of a stream."""
        ...

    def read_event(self, data: Bytes) -> Event:
        """Return what an event of a stream says."""
        ...

    def ends_stream(self, event: Event) -> bool:
        """Whether no event may follow this one in a stream of this version."""
        ...


class JsonRpcCodec(Codec, Protocol):
    """The parameters and results of JSON-RPC; the envelope around them is ``wire.jsonrpc``.

    ``methods`` are all names that are understood, aliases too; ``names`` the one to call each
    operation by, of those that the version has.
    """

    @property
    def methods(self) -> Mapping[str, Operation]:
        """Every name that is understood, with what it means."""
        ...

    @property
    def names(self) -> Mapping[str, str]:
        """The name to call each operation by."""
        ...

    def read_request(self, operation: Operation, params: Bytes) -> Any:
        """Return what ``params`` ask for."""
        ...

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Return the parameters of a call."""
        ...

    def write_error(self, error: A2AError) -> bytes:
        """Return the error object of a response."""
        ...

    def read_error(self, data: Bytes) -> A2AError:
        """Return the error that a response's error object means."""
        ...


class Route(msgspec.Struct, frozen=True):
    """A verb and a path at which an operation is asked for over HTTP+JSON.

    ``path`` is relative to the agent's address, or to a tenant below it, with names of fields in
    braces; ``alias`` marks what is understood but not written.
    """

    verb: str
    path: str
    operation: Operation
    alias: bool = False


class HttpRequest(NamedTuple):
    """One HTTP+JSON request: ``path`` is relative and quoted, ``query`` encoded, without ``?``."""

    verb: str
    path: str
    query: str
    body: bytes | None


class HttpJsonCodec(Codec, Protocol):
    """The bodies, paths and query parameters of HTTP+JSON.

    ``media_type`` is what bodies are sent as. ``unnamed`` are routes of another version that are
    understood too, where a request names none.
    """

    media_type: str
    routes: Sequence[Route]
    unnamed: Sequence[Route]

    def for_peer(self, peer: str) -> HttpJsonCodec:
        """Return what speaks to a peer: implementations differ.

        A caller names itself in ``User-Agent``, and who is called in ``Server``.
        """
        ...

    def read_request(
        self,
        route: Route,
        path: Mapping[str, str],
        query: Sequence[tuple[str, str]],
        body: Bytes,
    ) -> Any:
        """Return what is asked for by a path's fields, query parameters and a body."""
        ...

    def write_request(self, operation: Operation, request: A2AStruct) -> HttpRequest:
        """Return the request that asks for an operation."""
        ...

    def write_error(self, error: A2AError) -> bytes:
        """Return the body of a refusal."""
        ...

    def read_error(self, status: int, body: Bytes) -> A2AError:
        """Return the error that a refusal means.

        Raises ``InvalidAgentResponseError`` when it is not in the form of an agent's.
        """
        ...


class GrpcCodec(Codec, Protocol):
    """The messages of gRPC, serialized.

    ``service`` is the full name of the service; ``methods`` its rpcs, ``names`` the rpc of each
    operation. ``pool`` holds the descriptors, for reflection.
    """

    service: str
    methods: Mapping[str, Operation]
    names: Mapping[str, str]
    pool: Any

    def for_peer(self, peer: str) -> GrpcCodec:
        """Return what speaks to a peer: implementations differ, as over HTTP+JSON."""
        ...

    def read_request(
        self, operation: Operation, data: Bytes, *, max_depth: int = 100, max_parts: int = 1000
    ) -> Any:
        """Return what a message asks for, within the limits that ``wire.limits`` has for JSON."""
        ...

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Return the message of a call."""
        ...

    def in_these_names(self, error: A2AError) -> A2AError:
        """Return an error with the fields that are wrong as callers name them."""
        ...


class Dialect(Protocol):
    """One version of the protocol, as ``Major.Minor``.

    ``extensions_header`` is the name, in lower case, of the header that names extensions.
    ``tells_tasks`` says that a webhook is told the task as it stands, and not each of its events;
    ``cancels_again`` that a canceled task may be canceled once more, and is then returned.
    """

    version: str
    extensions_header: str
    tells_tasks: bool
    cancels_again: bool

    @property
    def jsonrpc(self) -> JsonRpcCodec:
        """What speaks JSON-RPC."""
        ...

    @property
    def http_json(self) -> HttpJsonCodec:
        """What speaks HTTP+JSON."""
        ...

    def grpc(self) -> GrpcCodec:
        """Return what speaks gRPC. Raises ``ImportError`` where the extra is not installed."""
        ...

    def state_name(self, state: TaskState) -> str:
        """Return the name of a state, as texts of this version have it."""
        ...

    def write_push(self, event: Event, task: Task | None) -> bytes:
        """Return what a webhook is told.

        Where tasks are told, ``task`` is the task after the event, and ``None`` for a message
        that has none; elsewhere it is ``None``, and the event is all that matters.
        """
        ...
