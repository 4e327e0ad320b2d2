"""Convert the values of an author's function to parts, and match parts with media types."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import mimetypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from parley.engine.serialization import check_metadata
from parley.extensions.in_task_authorization import AUTH_MEDIA_TYPE
from parley.extensions.typed_questions import SCHEMA_MEDIA_TYPE
from parley.model.encoding import decode, encode, valid_text
from parley.model.errors import A2AError
from parley.model.parts import Artifact, Message, Part

log = logging.getLogger("parley.engine")

S = TypeVar("S")
V = TypeVar("V", Part, Message, Artifact)

USABLE = "a str, a dict, list, dataclass, msgspec or pydantic value, bytes, a Path, or a Part"

_OF_QUESTIONS = (SCHEMA_MEDIA_TYPE, AUTH_MEDIA_TYPE)


class UnusableValue(TypeError):
    """A value that cannot be a part."""

    def __init__(self, value: object) -> None:
        forgotten = "; it was not awaited" if inspect.iscoroutine(value) else ""
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        super().__init__(f"{kind} cannot be sent{forgotten}; use {USABLE}")


class UnwritableOutput(A2AError):
    """What the agent made has no JSON form."""


def writable(value: S, *, repairs: bool = True) -> tuple[S, bytes]:
    """Return a value as it can be written, and its JSON: the same value, or with valid text.

    It ``repairs`` text: half of a surrogate pair becomes U+FFFD. Raises ``UnwritableOutput``.
    """
    try:
        try:
            return value, encode(value)
        except UnicodeEncodeError:
            if not repairs:
                raise
            value = valid_text(value)
            return value, encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = "The agent made something that cannot be written as JSON."
        log.error("%s", reason, exc_info=error)
        raise UnwritableOutput(reason) from error


def check_text(**given: object) -> None:
    """Raise ``TypeError`` for an argument that is no text: nobody could read it back."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is a str, not a {type(value).__name__}")


def to_part(value: object, *, media_type: str = "", filename: str = "") -> Part:
    """Return ``value`` as one part.

    A str becomes a text part, any other structured value a data part. Bytes and a path become a
    file part, with the name of the path and the media type of its suffix.

    Raises ``UnusableValue`` for anything else, ``OSError`` when a path cannot be read.
    """
    if isinstance(value, str):
        return Part(text=value, media_type=media_type, filename=filename)
    if isinstance(value, Part):
        return checked(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return Part(raw=bytes(value), media_type=media_type or _guess(filename), filename=filename)
    if isinstance(value, Path):
        name = filename or value.name
        return Part(raw=value.read_bytes(), media_type=media_type or _guess(name), filename=name)
    return Part(data=to_data(value), media_type=media_type, filename=filename)


def to_parts(value: object, *, media_type: str = "", filename: str = "") -> tuple[Part, ...]:
    """Return ``value`` as parts: the parts of a list, message or artifact, else one part."""
    if isinstance(value, list | tuple) and value and all(isinstance(item, Part) for item in value):
        return tuple([checked(part) for part in value])
    if isinstance(value, Message | Artifact):
        return tuple([checked(part) for part in value.parts])
    return (to_part(value, media_type=media_type, filename=filename),)


def to_data(value: object) -> Any:
    """Return ``value`` as plain JSON data.

    Raises ``UnusableValue`` for a value that is not structured, ``ValueError`` for NaN or infinity.
    """
    dump = getattr(value, "model_dump", None)
    if dump is not None and not isinstance(value, type):
        value = dump(mode="json")
    if not _is_structured(value):
        raise UnusableValue(value)
    try:
        data = msgspec.to_builtins(value, str_keys=True)
    except (TypeError, RecursionError) as error:
        raise UnusableValue(value) from error
    refuse_non_finite(data)
    return data


def checked(value: V) -> V:
    """Return a part, message or artifact as the log will read it back.

    An author's structs are unchecked, and the log must be readable. Raises ``ValueError``, and
    ``TypeError`` for metadata that is not JSON.
    """
    # A file of a turn is a part with methods; what is sent is the part.
    kind: type[Any] = Part if isinstance(value, Part) else type(value)
    check_metadata(value.metadata)
    try:
        sendable: V = decode(encode(value), kind)
    except UnicodeEncodeError:  # the writer makes its text valid
        sendable = msgspec.convert(msgspec.to_builtins(value), kind)
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        raise ValueError(f"this {type(value).__name__} cannot be sent: {error}") from error
    for part in [value] if isinstance(value, Part) else getattr(value, "parts", ()):
        check_metadata(part.metadata)
        if part.has_data:
            refuse_non_finite(part.data)
    return sendable


def _is_structured(value: object) -> bool:
    return value is None or (
        isinstance(value, dict | list | tuple | bool | int | float | msgspec.Struct)
        or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    )


def refuse_non_finite(value: object) -> None:
    """Raise ``ValueError`` for data with a number that JSON does not have."""
    pending: list[object] = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float) and (item != item or item in (float("inf"), float("-inf"))):
            raise ValueError(f"JSON has no {item}; send a string or null instead")
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list | tuple):
            pending.extend(item)


def _guess(filename: str) -> str:
    return mimetypes.guess_type(filename)[0] or "application/octet-stream"


KINDS = ("text", "file", "data")
"""The kinds of parts. Older cards and clients write them instead of media types."""

_KINDS = {"text": "text/*", "data": "application/json", "file": "*/*", "*": "*/*"}
_PLAIN_TEXT = Part(text="", media_type="text/plain")


def takes(modes: Iterable[str], part: Part) -> bool:
    """Return whether one of ``modes`` matches a part.

    A media type matches parts of that type; ``text``, ``file`` and ``data`` match all parts of that
    kind. ``text`` and ``data`` also match files that are text or JSON; ``file`` matches only files.
    """
    kind = "text" if part.text is not None else "file" if part.is_file else "data"
    others = []
    for mode in modes:
        name = _name(mode)
        if name == kind:
            return True
        if name != "file":
            others.append(mode)
    return accepts(others, media_type_of(part))


def not_taken(modes: Sequence[str], parts: Sequence[Part]) -> list[int]:
    """Return the indexes of the parts that input modes do not take; without modes all are taken."""
    # mediaType is optional (§4.1.6): a file of an unknown type may be of any.
    return [
        index
        for index, part in enumerate(parts if modes else ())
        if (part.media_type or not part.is_file) and not takes(modes, part)
    ]


def accepts(modes: Iterable[str], media_type: str) -> bool:
    """Return whether one of ``modes`` and ``media_type`` overlap.

    Both may be ranges (``image/*``). Parameters (``charset``) and case are ignored.
    """
    kind, _, subtype = _range(media_type).partition("/")
    for mode in modes:
        offered_kind, _, offered_subtype = _range(mode).partition("/")
        if "*" in (kind, offered_kind) or (
            kind == offered_kind
            and (subtype == offered_subtype or "*" in (subtype, offered_subtype))
        ):
            return True
    return False


def _range(mode: str) -> str:
    name = _name(mode)
    return _KINDS.get(name, name)


def _name(mode: str) -> str:
    return mode.partition(";")[0].strip().lower()


def gives(offered: Iterable[str], accepted: Sequence[str]) -> bool:
    """Return whether a caller who accepts ``accepted`` accepts one of the ``offered`` modes.

    Without ``accepted``, everything is accepted. Data can be sent as text.
    """
    if not accepted:
        return True
    forms = [form for mode in offered for form in (mode, *_AS_TEXT.get(_range(mode), ()))]
    return any(accepts(accepted, form) for form in forms)


_AS_TEXT = {"application/json": ("text/plain",)}


def fitted(parts: tuple[Part, ...], accepted: Sequence[str]) -> tuple[tuple[Part, ...], str]:
    """Return parts in an accepted form, and the media type of a part that has none.

    Data becomes JSON text for callers who accept text but not JSON. Other parts are unchanged, and
    so is what programs need of a question.
    """
    converted: list[Part] = []
    unaccepted = ""
    for part in parts:
        if part.media_type in _OF_QUESTIONS and part.has_data:
            pass  # it belongs to a question, and its text is another part
        elif not takes(accepted, part):
            if part.has_data and takes(accepted, _PLAIN_TEXT):
                part = msgspec.structs.replace(
                    part,
                    data=msgspec.UNSET,
                    text=encode(part.data).decode(),
                    media_type="text/plain",
                )
            else:
                unaccepted = media_type_of(part)
        converted.append(part)
    changed = any(now is not before for now, before in zip(converted, parts, strict=True))
    return (tuple(converted) if changed else parts), unaccepted


def media_type_of(part: Part) -> str:
    """Return the part's media type: its own, or the default of its kind."""
    if part.media_type:
        return part.media_type
    if part.text is not None:
        return "text/plain"
    return "application/octet-stream" if part.is_file else "application/json"
