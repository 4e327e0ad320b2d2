"""Problems with a peer's value, and tolerance for them in answers.

A problem is the path to the value and a description of the right one. Readers of JSON and of
protobuf report them in the same words.
"""

from __future__ import annotations

import binascii
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar
from uuid import uuid4

from parley.model.errors import FieldViolation
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.struct import Timestamp

# The logger for warnings of the client.
logger = logging.getLogger("parley.client.answers")

E = TypeVar("E", bound=Enum)

UNNAMED_ARTIFACT = "artifact"
"""The id of an artifact that has none."""

_URL_SAFE_TO_STANDARD = str.maketrans("-_", "+/")

_reported: ContextVar[list[Problem] | None] = ContextVar("reported_problems", default=None)


@contextmanager
def collecting_problems() -> Iterator[list[Problem]]:
    """Yield the list of problems reported while the block reads; nothing is logged."""
    found: list[Problem] = []
    token = _reported.set(found)
    try:
        yield found
    finally:
        _reported.reset(token)


def logging_problems(what: str) -> AbstractContextManager[None]:
    """Log the problems reported while the block reads ``what``, such as the answer to GetTask."""
    return _ProblemLog(what)


class _ProblemLog:
    """A hand-written context manager, for speed: it is used for every event of a stream."""

    __slots__ = ("_found", "_token", "_what")

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._found: list[Problem] = []
        self._token = _reported.set(self._found) if _reported.get() is None else None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._token is None:
            return
        _reported.reset(self._token)
        if kind is None and self._found:
            words = "; ".join(f"{path}: {text}" if path else text for path, text in self._found)
            more = " (and perhaps more)" if len(self._found) == MAX_PROBLEMS else ""
            logger.warning("%s has problems: %.2000s%s", self._what, words, more)


def report(problems: Iterable[Problem]) -> None:
    """Add problems to the problems of the answer that is being read."""
    found = _reported.get()
    if found is not None:
        found += list(problems)[: MAX_PROBLEMS - len(found)]


def read_below(name: str | int, read: Callable[[Any], Any], item: Any) -> Any:
    """Return ``item`` read by ``read``; its problems are reported below ``name``."""
    found = _reported.get()
    before = len(found) if found is not None else 0
    try:
        return read(item)
    finally:
        if found is not None and len(found) > before:
            found[before:] = [problem_under(name, problem) for problem in found[before:]]


def tuple_reader(read_item: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a reader of the items of a list, without wrong items."""

    def read(items: Any) -> tuple[Any, ...]:
        return tuple([item for _, item in _readable(enumerate(items), read_item)])

    return read


def map_reader(read_item: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """Return a reader of the values of an object, without wrong values."""

    def read(items: Any) -> dict[str, Any]:
        return dict(_readable(((key, items[key]) for key in items), read_item))

    return read


def _readable(
    items: Iterable[tuple[Any, Any]], read_item: Callable[[Any], Any]
) -> Iterator[tuple[Any, Any]]:
    for name, item in items:
        try:
            made = read_below(name, read_item, item)
        except InvalidValue as wrong:
            report(wrong.under(name))
        else:
            if made is not None:  # skip an empty item
                yield name, made


# -- guesses of the likely meaning of a wrong value, None if there is none ------------------------


def guess_text(value: Any) -> str | None:
    """Return the text of a number or a boolean, as JSON writes it."""
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def guess_bool(value: Any) -> bool | None:
    """Return the boolean that a text means."""
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None


def guess_bytes(value: Any) -> bytes | None:
    """Return the bytes of base64 with line breaks or without padding."""
    if not isinstance(value, str):
        return None
    try:
        return decode_base64(re.sub(r"\s+", "", value))
    except ValueError:
        return None


def decode_base64(text: str) -> bytes:
    """Return the bytes of base64 in either alphabet, padded or not. Raises ``ValueError``."""
    text = text.translate(_URL_SAFE_TO_STANDARD).rstrip("=")
    return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)


def guess_timestamp(value: Any) -> Timestamp | None:
    """Return the time that any form of ISO 8601 means; without a zone, in UTC."""
    if not isinstance(value, str) or len(value) > 100:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
        return Timestamp.of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except ValueError:
        return None


def enum_guesser(cls: type[E]) -> Callable[[Any], E | None]:
    """Return a function that reads a member in another version's spelling, such as
    ``input-required``.

    An unknown name is the member UNSPECIFIED, if the enum has one.
    """
    known = {member.name: member for member in cls} | {
        member.value.upper(): member for member in cls if isinstance(member.value, str)
    }
    unspecified = known.get("UNSPECIFIED")

    def guess(value: Any) -> E | None:
        if isinstance(value, str):
            name = value.strip().upper().replace("-", "_").replace(" ", "_")
            name = re.sub(r"^(TASK_STATE|ROLE)_", "", name).replace("CANCELLED", "CANCELED")
            return known.get(name, unspecified)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return unspecified
        return None

    return guess


Repair = Callable[[dict[str, Any]], bool]

_repairs: dict[type, Repair] = {}


def repairs(kind: type) -> Callable[[Repair], Repair]:
    """Register a function that repairs the fields of a ``kind``, and returns whether it could."""

    def register(function: Repair) -> Repair:
        _repairs[kind] = function
        return function

    return register


def repair(kind: type, given: dict[str, Any]) -> bool:
    """Repair the fields ``given`` for a ``kind``; return whether that was possible."""
    function = _repairs.get(kind)
    return function is not None and function(given)


@repairs(Message)
def _message(given: dict[str, Any]) -> bool:
    """Add a missing id, the role of the agent, and an empty text part to a message."""
    if not given.get("message_id"):
        given["message_id"] = uuid4().hex
    if given.get("role") not in (Role.USER, Role.AGENT):
        given["role"] = Role.AGENT
    if not given.get("parts"):
        given["parts"] = (Part(text=""),)
    return True


@repairs(Artifact)
def _artifact(given: dict[str, Any]) -> bool:
    given["artifact_id"] = given.get("artifact_id") or UNNAMED_ARTIFACT
    return True


@repairs(Part)
def _part(given: dict[str, Any]) -> bool:
    """Keep the first non-empty content; a file without content keeps its name."""
    if not given:
        return False
    content = [name for name in ("text", "raw", "url", "data") if name in given]
    says_something = [name for name in content if given[name] not in ("", b"", None)]
    kept = (says_something or content)[:1]
    for name in content:
        if name not in kept:
            del given[name]
    if not kept:
        is_file = given.get("filename") or given.get("media_type")
        given["url" if is_file else "text"] = ""
    return True


Problem = tuple[str, str]

MAX_PROBLEMS = 20
"""The maximum number of problems in an error, so that a bad body cannot cause a huge answer."""


class InvalidValue(Exception):
    """A value that cannot be read, with its problems, as seen from the value."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = list(problems)[:MAX_PROBLEMS]
        super().__init__(self.problems)

    def under(self, name: str | int) -> list[Problem]:
        """Return the problems with paths from the value that contains this one as ``name``."""
        return [problem_under(name, problem) for problem in self.problems]

    @property
    def violations(self) -> list[FieldViolation]:
        """The problems in the form of A2A errors."""
        return [FieldViolation(*problem) for problem in self.problems]


def problem_under(name: str | int, problem: Problem) -> Problem:
    """Return a problem as seen from the object or list that holds the value as ``name``."""
    path, description = problem
    name = f"[{name}]" if isinstance(name, int) else name[:40]
    return (f"{name}{path}" if not path or path[0] == "[" else f"{name}.{path}", description)


def expected(what: str, value: object) -> InvalidValue:
    """Return the complaint that ``value`` is of another kind than ``what``."""
    return InvalidValue([("", f"expected {what}, got {kind_name(value)}")])


def kind_name(value: object) -> str:
    """Return the name of a value's JSON type."""
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")


def read_items(items: Iterable[tuple[Any, Any]], read: Callable[[Any], Any]) -> list[Any]:
    """Return named items read by ``read``. Raises ``InvalidValue`` with all problems."""
    made = []
    problems: list[Problem] = []
    for name, item in items:
        try:
            made.append(read(item))
        except InvalidValue as wrong:
            problems += wrong.under(name)
            if len(problems) >= MAX_PROBLEMS:
                break
    if problems:
        raise InvalidValue(problems)
    return made


def read_members(members: Mapping[str, Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the values of an object or a protobuf map, read by ``read``.

    Raises ``InvalidValue`` with all problems.
    """
    try:
        return {name: read(members[name]) for name in members}
    except InvalidValue:
        items = read_items(((name, members[name]) for name in members), read)
        return dict(zip(members, items, strict=True))
