"""Maps a verb and a path to an operation of HTTP+JSON (specification §11.3). Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from parley.model.errors import InvalidParamsError, MethodNotFoundError
from parley.wire.versions import Route

MAX_PATH = 8 * 1024
"""The longest path that is accepted, in bytes."""

TENANT = "tenant"

TENANT_NAME = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]{0,127}")
OWN_SEGMENTS = frozenset(
    (
        "a2a",
        "agent",
        "callbacks",
        "card",
        "docs",
        "envelope",
        "extendedagentcard",
        "files",
        "health",
        "message",
        "openapi.json",
        "tasks",
        "v1",
    )
)
"""The segments of the protocol's own paths, which are forbidden as names of tenants."""

_FIELD = re.compile(r"\{(\w+)\}(?::(\w+))?")
_NO_VALUES = frozenset(("", ".", ".."))


class NoSuchPath(MethodNotFoundError):
    """The path does not exist. ``tenant`` is the tenant that it may name, for JSON-RPC."""

    grpc_status = "NOT_FOUND"
    tenant = ""


class WrongVerb(MethodNotFoundError):
    """The path exists for other verbs, which are ``allowed``."""

    http_status = 405

    def __init__(self, message: str, allowed: Sequence[str]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)


class PathTooLong(InvalidParamsError):
    """The path is longer than any valid one."""

    http_status = 414


class PathTarget(msgspec.Struct, frozen=True):
    """The route of a path and a verb, and the names of the path's fields in order.

    ``unnamed`` replaces it for a request that names no version.
    """

    version: str
    route: Route
    fields: tuple[str, ...]
    unnamed: PathTarget | None = None


class Found(NamedTuple):
    """The target of a path, and the values of its fields."""

    target: PathTarget
    fields: dict[str, str]


class Paths:
    """All paths below one agent's address, of all versions, with or without a leading tenant.

    They form a tree of segments, built once: a search needs a few look-ups, independent of the
    number and length of paths. Literals take precedence over fields, and ``{id}:cancel`` over
    ``{id}``. A trailing slash is ignored. An empty segment, ``.`` and ``..`` match no field:
    ``//tasks`` is not ``/tasks``.

    ``unnamed`` are routes for requests that name no version, at paths that ``routes`` have too.
    """

    def __init__(
        self, routes: Iterable[tuple[str, Route]], unnamed: Iterable[tuple[str, Route]] = ()
    ) -> None:
        self._root = _Node()
        self._depth = 0
        self._literals: dict[tuple[str, str], PathTarget] = {}
        without_version = {(route.verb, route.path): (version, route) for version, route in unnamed}
        for version, route in routes:
            other = without_version.get((route.verb, route.path))
            if "{" not in route.path:
                target = _target(version, route, (), other)
                self._literals.setdefault((route.verb, route.path), target)
            segments = route.path.strip("/").split("/")
            for path in (segments, [f"{{{TENANT}}}", *segments]):
                self._depth = max(self._depth, len(path))
                self._root.add(path, version, route, other)

    def find_literal(self, verb: str, path: str) -> Found | None:
        """Return the target of a path without fields, which most requests have."""
        target = self._literals.get((verb, path))
        return None if target is None else Found(target, {})

    def find(self, verb: str, path: Sequence[str]) -> Found:
        """Return the target of a path, given as segments.

        Raises ``NoSuchPath``, ``WrongVerb``.
        """
        allowed: set[str] = set()
        if len(path) <= self._depth:
            for node, values in self._root.walk(path, 0, ()):
                target = node.targets.get(verb)
                if target is not None:
                    return Found(target, dict(zip(target.fields, values, strict=True)))
                allowed.update(node.targets)
        shown = "/".join(path)[:200]
        if allowed:
            verbs = sorted(allowed)
            raise WrongVerb(f"/{shown} needs {' or '.join(verbs)}, not {verb}", verbs)
        error = NoSuchPath(
            f"nothing is at /{shown} of this agent; messages go to /message:send and tasks are at "
            "/tasks, in version 0.3 to /v1/message:send and at /v1/tasks"
        )
        is_name = len(path) == 1 and TENANT_NAME.fullmatch(path[0])
        if verb == "POST" and is_name and path[0].lower() not in OWN_SEGMENTS:
            error.tenant = path[0]
        raise error


def _target(
    version: str, route: Route, fields: tuple[str, ...], unnamed: tuple[str, Route] | None
) -> PathTarget:
    return PathTarget(version, route, fields, PathTarget(*unnamed, fields) if unnamed else None)


class _Node:
    """A node of the tree: the paths with the same segments up to here."""

    __slots__ = ("actions", "field", "literals", "targets")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.actions: dict[str, _Node] = {}
        self.field: _Node | None = None
        self.targets: dict[str, PathTarget] = {}

    def add(
        self, segments: Sequence[str], version: str, route: Route, unnamed: tuple[str, Route] | None
    ) -> None:
        node, fields = self, []
        for segment in segments:
            match = _FIELD.fullmatch(segment)
            if match is None:
                node = node.literals.setdefault(segment, _Node())
                continue
            name, action = match.groups()
            fields.append(name)
            if action:
                node = node.actions.setdefault(action, _Node())
            else:
                node.field = node.field or _Node()
                node = node.field
        node.targets.setdefault(route.verb, _target(version, route, tuple(fields), unnamed))

    def walk(
        self, path: Sequence[str], index: int, values: tuple[str, ...]
    ) -> Iterator[tuple[_Node, tuple[str, ...]]]:
        """Yield the nodes that a path matches, by precedence, each with its field values."""
        if index == len(path):
            if self.targets:
                yield self, values
            return
        segment = path[index]
        literal = self.literals.get(segment)
        if literal is not None:
            yield from literal.walk(path, index + 1, values)
        before, _, action = segment.rpartition(":")
        node = self.actions.get(action) if before else None
        if node is not None:
            yield from node.walk(path, index + 1, (*values, before))
        elif self.field is not None and segment not in _NO_VALUES:
            yield from self.field.walk(path, index + 1, (*values, segment))


def segments_of(
    scope: Mapping[str, object], mount: str = "", prefix: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the decoded segments of a request's path after ``mount`` and ``prefix``.

    A slash within an id is quoted; only the raw path shows it, which some servers do not provide.
    ``mount`` is a decoded path. The decoded path of the request begins with it and ``prefix``.

    Raises ``PathTooLong``, and ``NoSuchPath`` for a path that is not UTF-8, or whose beginning
    differs once a quoted slash counts as part of its segment.
    """
    path, raw = scope["path"], scope.get("raw_path")
    assert isinstance(path, str)
    if len(path) > MAX_PATH or (isinstance(raw, bytes) and len(raw) > MAX_PATH):
        raise PathTooLong(f"the path is longer than the {MAX_PATH} bytes that are allowed")
    start = len(mount) + sum(len(segment) + 1 for segment in prefix)
    segments = path[start:].split("/")[1:]
    if isinstance(raw, bytes) and b"%" in raw:
        quoted = raw.partition(b"?")[0].split(b"/")
        try:
            decoded = [unquote_to_bytes(segment).decode() for segment in quoted]
        except UnicodeDecodeError:
            raise NoSuchPath("the path is not UTF-8") from None
        # A middleware that changes the path does not change the raw one.
        if "/".join(decoded) == path:
            segments = _segments_after(decoded, mount, prefix)
    if len(segments) > 1 and not segments[-1]:
        segments.pop()
    return tuple(segments)


def _segments_after(segments: list[str], mount: str, prefix: Sequence[str]) -> list[str]:
    """Return the segments after ``mount`` and ``prefix``. Raises ``NoSuchPath``."""
    length, count = -1, 0
    while length < len(mount) and count < len(segments):
        length += len(segments[count]) + 1
        count += 1
    end = count + len(prefix)
    if length != len(mount) or segments[count:end] != list(prefix):
        raise NoSuchPath("nothing is at this path: a quoted slash (%2F) is part of its segment")
    return segments[end:]


def after_quoted_slash(raw_path: bytes) -> int:
    """Return the length of the decoded path from its first segment with a quoted slash on.

    0 if there is no such segment.
    """
    path = raw_path.partition(b"?")[0]
    at = path.lower().find(b"%2f")
    if at < 0:
        return 0
    behind = path[path.rfind(b"/", 0, at) + 1 :]
    return len(unquote_to_bytes(behind).decode("utf-8", "replace"))
