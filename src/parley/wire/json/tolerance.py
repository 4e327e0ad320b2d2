"""What answers are forgiven that requests are not: one wrong field does not take the rest with it.

The agent has run when its answer is read, so nothing of the answer is thrown away that can be kept.
A value of another kind is taken for what it is likely to mean; what means nothing is left out, and
noted: the notes on one answer are logged together, as a warning of ``parley.client.answers``.
"""

from __future__ import annotations

import binascii
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar
from uuid import uuid4

from parley.model.parts import Artifact, Message, Part, Role
from parley.model.struct import Timestamp
from parley.wire.json.syntax import Bytes

# Where callers look for what the client has to say.
logger = logging.getLogger("parley.client.answers")

Notes = list[tuple[str, str]]
E = TypeVar("E", bound=Enum)

MOST_NOTES = 20
"""How many notes on one answer are worth logging."""

UNNAMED_ARTIFACT = "artifact"
"""The id of an artifact that has none."""

_notes: ContextVar[Notes | None] = ContextVar("notes", default=None)


@contextmanager
def noting() -> Iterator[Notes]:
    """Give the list of what is noted while the block reads; nothing is logged."""
    notes: Notes = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)


def noted(what: str) -> AbstractContextManager[None]:
    """Log what is noted while the block reads ``what``, such as the answer to an operation."""
    return _Noted(what)


class _Noted:
    """Every event of a stream is read in one, so this is written out."""

    __slots__ = ("_found", "_token", "_what")

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._found: Notes = []
        self._token = _notes.set(self._found) if _notes.get() is None else None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._token is None:
            return
        _notes.reset(self._token)
        if kind is None and self._found:
            words = "; ".join(f"{path}: {text}" if path else text for path, text in self._found)
            more = " (and perhaps more)" if len(self._found) == MOST_NOTES else ""
            logger.warning("%s is not as it should be: %.2000s%s", self._what, words, more)


def is_null(data: Bytes) -> bool:
    """Whether JSON is null, which some say for an empty list."""
    return len(data) < 64 and bytes(data).strip() in (b"null", b"")


def note(problems: Iterable[tuple[str, str]]) -> None:
    """Note problems, as pairs of a path and of what is wrong there."""
    notes = _notes.get()
    if notes is not None:
        notes += list(problems)[: MOST_NOTES - len(notes)]


def below(name: str, read: Callable[[Any], Any], item: Any) -> Any:
    """Return what ``read`` makes of ``item``; what it notes is noted below ``name``."""
    notes = _notes.get()
    before = len(notes) if notes is not None else 0
    try:
        return read(item)
    finally:
        if notes is not None and len(notes) > before:
            notes[before:] = [
                (f"{name}{path}" if not path or path[0] == "[" else f"{name}.{path}", text)
                for path, text in notes[before:]
            ]


# -- what a value of another kind is taken for, None for nothing -----------------------------------


def text_of(value: Any) -> str | None:
    """Return the text of a number or a boolean, as JSON writes it."""
    return json.dumps(value) if isinstance(value, bool | int | float) else None


def bool_of(value: Any) -> bool | None:
    """Return what is meant by a boolean as text."""
    return {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else None


def bytes_of(value: Any) -> bytes | None:
    """Return the bytes of base64 that is broken into lines or not filled up."""
    if not isinstance(value, str):
        return None
    text = re.sub(r"\s+", "", value).translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError:
        return None


def moment_of(value: Any) -> Timestamp | None:
    """Return the moment that a date and time in any form of ISO 8601 means; without a zone, UTC."""
    if not isinstance(value, str) or len(value) > 100:
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
        return Timestamp.of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))
    except ValueError:
        return None


def member_of(cls: type[E]) -> Callable[[Any], E | None]:
    """Return what takes a name of another spelling for a member, and an unknown one for none.

    None is the member UNSPECIFIED, where there is one. Spellings are those of other versions:
    ``input-required``, ``TASK_STATE_CANCELLED``.
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


# -- values that cannot be without what is missing -------------------------------------------------

_amends: dict[type, Callable[[dict[str, Any]], bool]] = {}


def amends(
    kind: type,
) -> Callable[[Callable[[dict[str, Any]], bool]], Callable[[dict[str, Any]], bool]]:
    """Have a function fill the fields of a ``kind`` that cannot be made; whether it helped."""

    def register(function: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], bool]:
        _amends[kind] = function
        return function

    return register


def amend(kind: type, given: dict[str, Any]) -> bool:
    """Fill the fields of a value that cannot be made of what is ``given``; whether that helped."""
    function = _amends.get(kind)
    return function is not None and function(given)


@amends(Message)
def _message(given: dict[str, Any]) -> bool:
    """A message of nobody is the agent's, and one of nothing an empty one."""
    if not given.get("message_id"):
        given["message_id"] = uuid4().hex
    if given.get("role") not in (Role.USER, Role.AGENT):
        given["role"] = Role.AGENT
    if not given.get("parts"):
        given["parts"] = (Part(text=""),)
    return True


@amends(Artifact)
def _artifact(given: dict[str, Any]) -> bool:
    given["artifact_id"] = given.get("artifact_id") or UNNAMED_ARTIFACT
    return True


@amends(Part)
def _part(given: dict[str, Any]) -> bool:
    """A part keeps the first content that is not empty; the name of a file stays without it."""
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
