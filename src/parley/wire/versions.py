"""The supported versions of the protocol, and their dialects (specification §3.6).

No other module lists the versions. A version's codecs are imported on first use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import quote

import msgspec

from parley.model.cards import AgentCard
from parley.model.errors import A2AError, FieldViolation, VersionNotSupportedError
from parley.model.operations import Operation
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct, encode
from parley.model.tasks import Event, Task, TaskState
from parley.wire.json import protojson
from parley.wire.json.problems import logging_problems
from parley.wire.json.protojson import refuse
from parley.wire.json.syntax import Bytes

Answer = Any
"""The return value of a method of ``A2AService``: a task, a direct message, a page, a card, ..."""


class Codec(Protocol):
    """Requests, answers and events of one version, as the bytes of one binding.

    Reading a request raises ``A2AError`` with the wrong fields, in the caller's names; reading an
    answer or an event raises ``InvalidAgentResponseError``.

    ``takes_json``: tasks are written in the store's JSON. An answer or an event may then be the
    ``msgspec.Raw`` of a task, and a page may contain such tasks.
    """

    takes_json: bool

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
    """The parameters and results of JSON-RPC; ``wire.jsonrpc`` is the envelope around them.

    ``methods`` are all accepted names, including aliases; ``names`` has the name that a client
    sends for each operation of the version, and ``state_names`` the names of states in its
    specification.
    """

    methods: Mapping[str, Operation]
    names: Mapping[str, str]
    state_names: Mapping[TaskState, str]

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
        """Read a whole response and its result in one step, if both are canonical.

        Returns ``None`` for any other response, and for an error: use ``read_result`` then.
        """
        ...

    def read_event_answer(self, body: Bytes, id: int | None) -> Event | None:
        """Read a whole response of a stream and its event in one step, as ``read_answer`` does."""
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

    Bodies are sent as ``media_type``. ``versionless_routes`` are routes of this version at paths of
    another one, for requests that name no version.
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
    operation.
    """

    service: str
    methods: Mapping[str, Operation]
    names: Mapping[str, str]

    def for_peer(self, peer: str) -> GrpcCodec:
        """Return the codec for a peer, by its ``User-Agent`` or ``Server``: some need their own."""
        ...

    def read_request(
        self, operation: Operation, data: Bytes, *, max_depth: int = 100, max_parts: int = 1000
    ) -> Any:
        """Read the message of a request, within the limits that ``wire.json.syntax`` describes."""
        ...

    def write_request(self, operation: Operation, request: A2AStruct) -> bytes:
        """Write the message of a request."""
        ...

    def with_wire_names(self, error: A2AError) -> A2AError:
        """Return an error with the names of fields that callers of this version know."""
        ...


def _module(version: str, name: str) -> Any:
    return import_module(f"parley.wire.v{version.replace('.', '_')}.{name}")


@dataclass(frozen=True, eq=False)
class Dialect:
    """One version of the protocol, as ``Major.Minor``. Its codecs are imported on first use.

    ``extensions_header`` is the name, in lower case, of the header that names extensions. With
    ``pushes_tasks`` a webhook gets the current task instead of each event; with ``repeats_cancel``
    CancelTask on a canceled task returns it.
    """

    version: str
    extensions_header: str
    pushes_tasks: bool
    repeats_cancel: bool

    @cached_property
    def jsonrpc(self) -> JsonRpcCodec:
        """The codec for JSON-RPC."""
        return cast("JsonRpcCodec", _module(self.version, "json").JsonRpc())

    @cached_property
    def http_json(self) -> HttpJsonCodec:
        """The codec for HTTP+JSON."""
        return cast("HttpJsonCodec", _module(self.version, "http_json").HttpJson())

    def grpc(self) -> GrpcCodec:
        """Return the codec for gRPC. Raises ``ImportError`` if the extra is not installed."""
        return self._grpc

    @cached_property
    def _grpc(self) -> GrpcCodec:
        return cast("GrpcCodec", _module(self.version, "grpc").Grpc())

    def state_name(self, state: TaskState) -> str:
        """Return the name of a state in texts of this version."""
        return self.jsonrpc.state_names[state]

    def write_push(self, event: Event, task: Task | None, json: bytes | None = None) -> bytes:
        """Write the body of a push notification about an event.

        ``json`` is the event's canonical JSON, if known. With ``pushes_tasks``, ``task`` is the
        task after the event, or ``None`` for a message without a task. Otherwise it is ``None``.
        """
        return self.jsonrpc.write_event(StreamItem(event if task is None else task, json=json))


LATEST = "1.0"
SUPPORTED_VERSIONS = (LATEST, "0.3")
DEFAULT_VERSION = "0.3"
"""The version of a request that names none (§3.6.2)."""

EXTENSIONS_HEADERS = ("a2a-extensions", "x-a2a-extensions")
"""The headers that name extensions, in any version, in lower case."""

# Only Major.Minor counts; a patch number is ignored (§3.6).
_VERSION = re.compile(r"(\d{1,4}\.\d{1,4})(?:\.\S*)?")

_DIALECTS = {
    LATEST: Dialect(LATEST, EXTENSIONS_HEADERS[0], pushes_tasks=False, repeats_cancel=True),
    "0.3": Dialect("0.3", EXTENSIONS_HEADERS[1], pushes_tasks=True, repeats_cancel=False),
}


def dialect(version: str) -> Dialect:
    """Return the dialect of a version in ``SUPPORTED_VERSIONS``. ``KeyError`` for others."""
    return _DIALECTS[version]


def requested(version: str) -> str:
    """Return the version in ``SUPPORTED_VERSIONS`` that a caller requests, or an empty text.

    Raises ``VersionNotSupportedError`` with the supported versions.
    """
    version = version.strip()
    if version in ("", LATEST):
        return version
    match = _VERSION.fullmatch(version)
    if match is not None and match[1] in SUPPORTED_VERSIONS:
        return match[1]
    raise VersionNotSupportedError(
        f"version {version[:40]!r} of the protocol is not supported here; "
        f"send the header A2A-Version with one of {', '.join(SUPPORTED_VERSIONS)}",
        metadata={
            "requestedVersion": version[:40],
            "supportedVersions": ", ".join(SUPPORTED_VERSIONS),
        },
    )


def supported_for(version: str) -> str | None:
    """Return the supported version that fits a ``protocolVersion`` or a version header, if any.

    A later 1.x is served and called as 1.0, of which it is a superset, and 0.2, whose methods have
    the same names and members, as 0.3. Version 0.1 has other names.
    """
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        return LATEST if version.strip() == "1" else None
    if match[1] in SUPPORTED_VERSIONS:
        return match[1]
    if match[1] == "0.2":
        return "0.3"
    return LATEST if match[1].startswith("1.") else None


def write_card(card: AgentCard, version: str = "") -> bytes:
    """Write a card as JSON of a version, or, without one, as one document for all versions."""
    if version == LATEST:
        return encode(card)
    cards = _module("0.3", "cards")
    return cast("bytes", (cards.write_card if version else cards.write_merged_card)(card))


def card_schema(version: str) -> type[A2AStruct]:
    """Return the type with the members of a card of a version."""
    return AgentCard if version == LATEST else cast("type", _module(version, "cards").Card)


def read_card(members: dict[str, Any]) -> AgentCard:
    """Read a card from a JSON object, of any version or of several at once.

    A card must name the agent and its address. Other wrong members are left out, with a warning in
    the log. Raises ``A2AError`` with the problem.
    """
    interfaces = members.get("supportedInterfaces", members.get("supported_interfaces"))
    wrong = []
    if not members.get("name") or not isinstance(members["name"], str):
        wrong.append(FieldViolation("name", "expected the name of the agent"))
    if not isinstance(interfaces, list) and not isinstance(members.get("url"), str):
        name = "url" if interfaces is None else "supportedInterfaces"
        words = "expected the address of the agent" if interfaces is None else "expected a list"
        wrong.append(FieldViolation(name, words))
    if wrong:
        protojson.refuse(wrong)
    is_latest = "supportedInterfaces" in members and "url" not in members
    read = _module(LATEST, "json") if is_latest else _module("0.3", "cards")
    with logging_problems("the agent card"):
        return cast("AgentCard", read.read_card(members))
