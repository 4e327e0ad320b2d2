"""What the bindings read in the head of a request, apart from its path."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl

from starlette.types import Scope

from parley.model.service import NO_TRACE, TraceContext
from parley.server.http.media_types import base
from parley.server.trace_headers import read_trace
from parley.wire import versions

_MEDIA_TYPES = frozenset({b"application/json", b"application/a2a+json"})
_EXTENSIONS = frozenset(name.encode() for name in versions.EXTENSIONS_HEADERS)
_LATEST = versions.LATEST.encode()


class HeadFields:
    """The fields of a head, in the form in which bindings need them. Nothing changes them, so that
    requests with the same head may have the same.

    ``is_json``: the body is declared as JSON. ``version`` is the one that the request names (§3.6),
    as it names it; empty if it names none. ``extensions`` are the URIs that it requests.
    ``address`` is that of the agent without a tenant, once it was asked for.
    """

    __slots__ = (
        "address", "extensions", "headers", "is_json", "last_event_id", "trace", "version",
    )  # fmt: skip

    def __init__(self, scope: Scope) -> None:
        listed = scope["headers"]
        headers: dict[bytes, bytes] = dict(listed)
        self.headers = headers
        declared = headers.get(b"content-type", b"")
        self.is_json = declared in _MEDIA_TYPES or base(declared) in _MEDIA_TYPES
        version = headers.get(b"a2a-version", b"")
        self.version = versions.LATEST if version == _LATEST else _named_version(version, scope)
        self.extensions: tuple[str, ...] = ()
        if not _EXTENSIONS.isdisjoint(headers):
            self.extensions = extension_uris(v for name, v in listed if name in _EXTENSIONS)
        last_event_id = headers.get(b"last-event-id")
        self.last_event_id = None if last_event_id is None else last_event_id.decode("latin-1")
        self.trace = _trace_in(listed) if b"traceparent" in headers else NO_TRACE
        self.address: str | None = None


def extension_uris(headers: Iterable[bytes]) -> tuple[str, ...]:
    """Return the URIs in ``A2A-Extensions`` headers, each a list with commas."""
    uris = [uri.strip() for header in headers for uri in header.decode("latin-1").split(",")]
    return tuple(uri for uri in uris if uri)


def _named_version(header: bytes, scope: Scope) -> str:
    """Return the version that a request names; its header counts before its query parameter."""
    named = header.decode("latin-1").strip()
    query: bytes = scope["query_string"]
    if not named and query:
        for name, value in parse_qsl(query.decode("latin-1")):
            if name.lower() == "a2a-version":
                named = value
    return named


def _trace_in(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext:
    """Return the trace that a request belongs to."""
    values: dict[bytes, list[str]] = {b"traceparent": [], b"tracestate": []}
    for name, value in headers:
        if name in values:
            values[name].append(value.decode("latin-1"))
    return read_trace(values[b"traceparent"], values[b"tracestate"])
