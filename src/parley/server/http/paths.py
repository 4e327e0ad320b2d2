"""Which operation a verb and a path ask for, over HTTP+JSON (specification §11.3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from parley.model.errors import InvalidParamsError, MethodNotFoundError
from parley.wire.dialect import Route

MAX_PATH = 8 * 1024
"""As long as a path may be, in bytes."""

TENANT = "tenant"

_FIELD = re.compile(r"\{(\w+)\}(?::(\w+))?")
_NO_VALUES = frozenset(("", ".", ".."))


class NoSuchPath(MethodNotFoundError):
    """Nothing is at this path."""

    grpc_status = "NOT_FOUND"


class WrongVerb(MethodNotFoundError):
    """Something is at this path, for another verb; ``allowed`` are those that there are."""

    http_status = 405

    def __init__(self, message: str, allowed: Sequence[str]) -> None:
        super().__init__(message)
        self.allowed = tuple(allowed)


class PathTooLong(InvalidParamsError):
    """The path is longer than any that is asked for."""

    http_status = 414


class PathTarget(msgspec.Struct, frozen=True):
    """What is at a path for a verb, and the names of the fields in it, in their order.

    ``unnamed`` is what is there instead for a request that names no version.
    """

    version: str
    route: Route
    fields: tuple[str, ...]
    unnamed: PathTarget | None = None


class Found(NamedTuple):
    """What a path leads to, and the fields that it holds. Without ``target`` it is refused."""

    target: PathTarget
    fields: dict[str, str]


class Paths:
    """All paths below one agent's address, of all versions, with a tenant before them or not.

    They are a tree by segments, made once: finding one costs a few look-ups, however many there
    are, and however long the path is. Words count before fields, and ``{id}:cancel`` before
    ``{id}``; a slash at the end makes no difference. A segment that is empty, or ``.`` or ``..``,
    is no field: ``//tasks`` is not ``/tasks``.

    ``unnamed`` are routes for requests that name no version, at places that ``routes`` lead to.
    """

    def __init__(
        self,
        routes: Iterable[tuple[str, Route]],
        unnamed: Iterable[tuple[str, Route]] = (),
    ) -> None:
        self._root = _Node()
        self._depth = 0
        self._words: dict[tuple[str, str], PathTarget] = {}
        instead = {(route.verb, route.path): (version, route) for version, route in unnamed}
        for version, route in routes:
            other = instead.get((route.verb, route.path))
            if "{" not in route.path:
                target = _target(version, route, (), other)
                self._words.setdefault((route.verb, route.path), target)
            segments = route.path.strip("/").split("/")
            for place in (segments, [f"{{{TENANT}}}", *segments]):
                self._depth = max(self._depth, len(place))
                self._root.add(place, version, route, other)

    def at(self, verb: str, path: str) -> Found | None:
        """Return what a path without fields leads to, which most requests are sent to."""
        target = self._words.get((verb, path))
        return None if target is None else Found(target, {})

    def find(self, verb: str, path: Sequence[str]) -> Found:
        """Return what a path leads to, by its segments.

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
            raise WrongVerb(f"/{shown} is asked for with {' or '.join(verbs)}, not {verb}", verbs)
        raise NoSuchPath(
            f"nothing is at /{shown} of this agent; messages go to /message:send and tasks are at "
            "/tasks, in version 0.3 to /v1/message:send and at /v1/tasks"
        )


def _target(
    version: str, route: Route, fields: tuple[str, ...], unnamed: tuple[str, Route] | None
) -> PathTarget:
    return PathTarget(version, route, fields, PathTarget(*unnamed, fields) if unnamed else None)


class _Node:
    """Where some paths agree so far."""

    __slots__ = ("actions", "field", "targets", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.actions: dict[str, _Node] = {}
        self.field: _Node | None = None
        self.targets: dict[str, PathTarget] = {}

    def add(
        self,
        segments: Sequence[str],
        version: str,
        route: Route,
        unnamed: tuple[str, Route] | None,
    ) -> None:
        node, fields = self, []
        for segment in segments:
            match = _FIELD.fullmatch(segment)
            if match is None:
                node = node.words.setdefault(segment, _Node())
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
        self, path: Sequence[str], place: int, values: tuple[str, ...]
    ) -> Iterator[tuple[_Node, tuple[str, ...]]]:
        """Yield where a path may lead, the likeliest first, with the fields that it then holds."""
        if place == len(path):
            if self.targets:
                yield self, values
            return
        segment = path[place]
        word = self.words.get(segment)
        if word is not None:
            yield from word.walk(path, place + 1, values)
        before, _, action = segment.rpartition(":")
        node = self.actions.get(action) if before else None
        if node is not None:
            yield from node.walk(path, place + 1, (*values, before))
        elif self.field is not None and segment not in _NO_VALUES:
            yield from self.field.walk(path, place + 1, (*values, segment))


def segments_of(
    scope: Mapping[str, object], mount: str = "", prefix: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the segments of a request's path that follow ``mount`` and ``prefix``, decoded.

    A slash within an id is quoted, so it is found in the path as it was sent; where a server does
    not tell that, there is none. ``mount`` is a path, decoded; it and ``prefix`` are known to be
    what the decoded path begins with.

    Raises ``PathTooLong``, and ``NoSuchPath`` for what is not UTF-8, and for a path that begins
    otherwise once a quoted slash counts as part of its segment.
    """
    path, raw = scope["path"], scope.get("raw_path")
    assert isinstance(path, str)
    if len(path) > MAX_PATH or (isinstance(raw, bytes) and len(raw) > MAX_PATH):
        raise PathTooLong(f"the path is longer than the {MAX_PATH} bytes that are taken here")
    start = len(mount) + sum(len(segment) + 1 for segment in prefix)
    segments = path[start:].split("/")[1:]
    if isinstance(raw, bytes) and b"%" in raw:
        quoted = raw.partition(b"?")[0].split(b"/")
        try:
            decoded = [unquote_to_bytes(segment).decode() for segment in quoted]
        except UnicodeDecodeError:
            raise NoSuchPath("the path is not UTF-8") from None
        # A middleware that changed the path did not change what was sent.
        if "/".join(decoded) == path:
            segments = _after(decoded, mount, prefix)
    if len(segments) > 1 and not segments[-1]:
        segments.pop()
    return tuple(segments)


def _after(segments: list[str], mount: str, prefix: Sequence[str]) -> list[str]:
    """Return those of all segments of a path that follow. Raises ``NoSuchPath``."""
    length, count = -1, 0
    while length < len(mount) and count < len(segments):
        length += len(segments[count]) + 1
        count += 1
    end = count + len(prefix)
    if length != len(mount) or segments[count:end] != list(prefix):
        raise NoSuchPath("nothing is at this path: a quoted slash (%2F) is part of its segment")
    return segments[end:]


def has_quoted_slash(sent: bytes) -> bool:
    """Return whether a path, as it was sent, has a slash that is part of a segment."""
    return b"%2f" in sent.partition(b"?")[0].lower()
