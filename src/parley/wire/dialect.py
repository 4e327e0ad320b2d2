"""The seam between bindings and versions: what a version of the protocol gives to a binding.

A binding asks ``wire.versions`` for the dialect of a version, and has its codec read and write. It
never looks at the version itself, so every binding serves every version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import msgspec

from parley.model.errors import A2AError, FieldViolation
from parley.model.operations import Operation
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event, Task, TaskState
from parley.wire.json.protojson import refuse
from parley.wire.json.syntax import Bytes

Answer = Any
"""What a method of ``A2AService`` returns: a task, a direct message, a page, a card, ..."""


class Codec(Protocol):
    """Requests, answers and events of one version, as the bytes of one binding.

    Reading a request raises ``A2AError`` with the fields that are wrong, in the caller's names;
    reading an answer or an event raises ``InvalidAgentResponseError``.
    """

    def write_result(self, operation: Operation, answer: Answer) -> bytes:
        """Write the answer to an operation."""
        ...

    def read_result(self, operation: Operation, data: Bytes) -> Answer:
        """Read the answer to an operation."""
        ...

    def write_event(self, item: StreamItem) -> bytes:
        """Write one event of a stream."""
        ...

    def read_event(self, data: Bytes) -> Event:
        """Read one event of a stream."""
        ...

    def ends_stream(self, event: Event) -> bool:
        """Return whether a stream of this version ends with this event."""
        ...


class JsonRpcCodec(Codec, Protocol):
    """The parameters and results of JSON-RPC; the envelope around them is ``wire.jsonrpc``.

    ``methods`` are all accepted names, aliases too; ``names`` the one that a client sends for each
    operation of the version.
    """

    @property
    def methods(self) -> Mapping[str, Operation]:
        """The operations by every accepted name."""
        ...

    @property
    def names(self) -> Mapping[str, str]:
        """The name that a client sends for each operation."""
        ...

    def read_request(self, operation: Operation, params: Bytes) -> Any:
        """Read the parameters of a request."""
        ...

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the parameters of a request."""
        ...

    def write_error(self, error: A2AError) -> bytes:
        """Write the error object of a response."""
        ...

    def read_error(self, data: Bytes) -> A2AError:
        """Read the error object of a response."""
        ...

    def read_answer(self, operation: Operation, body: Bytes, id: int | None) -> Any:
        """Read a whole response and the result in it at once, if both are canonical.

        Returns ``None`` for any other, and for an error: ``read_result`` looks closer.
        """
        ...

    def read_event_answer(self, body: Bytes, id: int | None) -> Event | None:
        """Read a whole response of a stream and its event at once, as ``read_answer`` does."""
        ...


class Route(msgspec.Struct, frozen=True):
    """A verb and a path of an operation over HTTP+JSON.

    ``path`` is relative to the agent's address, or to a tenant below it, with names of fields in
    braces. A server accepts an ``alias``; a client never sends it.
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


def path_segment(field: str, value: str) -> str:
    """Return the value of a field, quoted for a path. Raises ``InvalidParamsError``."""
    if value in ("", ".", ".."):
        refuse([FieldViolation(field, f"{value!r} cannot be part of a path")])
    return quote(value, safe="")


class HttpJsonCodec(Codec, Protocol):
    """The bodies, paths and query parameters of HTTP+JSON.

    Bodies are sent as ``media_type``. ``versionless_routes`` are routes of this version at paths
    of another one: they count for requests that name no version.
    """

    media_type: str
    routes: Sequence[Route]
    versionless_routes: Sequence[Route]

    def for_peer(self, peer: str) -> HttpJsonCodec:
        """Return the codec for a peer, by its ``User-Agent`` or ``Server``: some need their own."""
        ...

    def read_request(
        self, route: Route, path: Mapping[str, str], query: Sequence[tuple[str, str]], body: Bytes
    ) -> Any:
        """Read a request from a path's fields, query parameters and a body."""
        ...

    def write_request(self, operation: Operation, request: A2AStruct) -> HttpRequest:
        """Write the request for an operation."""
        ...

    def write_error(self, error: A2AError) -> bytes:
        """Write the body of an error."""
        ...

    def read_error(self, status: int, body: Bytes) -> A2AError:
        """Read the body of an error.

        Raises ``InvalidAgentResponseError`` for a body that no agent writes.
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
        """Return the codec for a peer, by its ``User-Agent`` or ``Server``: some need their own."""
        ...

    def read_request(
        self, operation: Operation, data: Bytes, *, max_depth: int = 100, max_parts: int = 1000
    ) -> Any:
        """Read the message of a request, within the limits that ``wire.json.limits`` describes."""
        ...

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the message of a request."""
        ...

    def with_wire_names(self, error: A2AError) -> A2AError:
        """Return an error with the names of fields that callers of this version know."""
        ...


class Dialect(Protocol):
    """One version of the protocol, as ``Major.Minor``.

    ``extensions_header`` is the name, in lower case, of the header that names extensions. With
    ``pushes_tasks`` a webhook gets the current task instead of each event; with ``repeats_cancel``
    CancelTask on a canceled task returns it.
    """

    version: str
    extensions_header: str
    pushes_tasks: bool
    repeats_cancel: bool

    @property
    def jsonrpc(self) -> JsonRpcCodec:
        """The codec for JSON-RPC."""
        ...

    @property
    def http_json(self) -> HttpJsonCodec:
        """The codec for HTTP+JSON."""
        ...

    def grpc(self) -> GrpcCodec:
        """Return the codec for gRPC. Raises ``ImportError`` where the extra is not installed."""
        ...

    def state_name(self, state: TaskState) -> str:
        """Return the name of a state in texts of this version."""
        ...

    def write_push(self, event: Event, task: Task | None, json: bytes | None = None) -> bytes:
        """Write the body of a push notification about an event.

        ``json`` is the event's canonical JSON, if it is already known. With ``pushes_tasks``,
        ``task`` is the task after the event, or ``None`` for a message without a task. Otherwise
        it is ``None``.
        """
        ...
