"""From what an author's function returns to what the protocol carries."""

from __future__ import annotations

import dataclasses
import mimetypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from parley.engine.serialization import check_metadata
from parley.model.encoding import decode, encode
from parley.model.parts import Artifact, Message, Part

V = TypeVar("V", Part, Message, Artifact)

PLAIN = "a str, a dict, list, dataclass, msgspec or pydantic value, bytes, a Path, or a Part"


class UnusableValue(TypeError):
    """A function gave something that has no form as a part."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"{type(value).__module__}.{type(value).__qualname__} cannot be sent; use {PLAIN}"
        )


def to_part(value: object, *, media_type: str = "", filename: str = "") -> Part:
    """Return ``value`` as one part.

    Text becomes a text part; bytes and a path a file part, with the path's name and the media type
    that its suffix suggests; any other structured value a data part.

    Raises ``UnusableValue`` for anything else, ``OSError`` when a path cannot be read.
    """
    if isinstance(value, str):
        return Part(text=value, media_type=media_type, filename=filename)
    if isinstance(value, Part):
        return checked(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return Part(
            raw=bytes(value),
            media_type=media_type or _guess(filename),
            filename=filename,
        )
    if isinstance(value, Path):
        name = filename or value.name
        return Part(raw=value.read_bytes(), media_type=media_type or _guess(name), filename=name)
    return Part(data=to_data(value), media_type=media_type, filename=filename)


def to_parts(value: object, *, media_type: str = "", filename: str = "") -> tuple[Part, ...]:
    """Return ``value`` as parts: a list made only of parts is that list, else one part."""
    if isinstance(value, list | tuple) and value and all(isinstance(item, Part) for item in value):
        return tuple([checked(part) for part in value])
    if isinstance(value, Message | Artifact):
        return tuple([checked(part) for part in value.parts])
    return (to_part(value, media_type=media_type, filename=filename),)


def to_data(value: object) -> Any:
    """Return ``value`` as plain JSON data.

    Raises ``UnusableValue`` when it has no such form, numbers that JSON lacks included.
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
    _refuse_numbers_that_json_lacks(data)
    return data


def checked(value: V) -> V:
    """Return a value of the data model as the log would read it back.

    Struct fields are not checked when an author makes one, and what cannot be read back must not
    get into a log. Raises ``ValueError``, and ``TypeError`` for metadata that JSON lacks.
    """
    check_metadata(value.metadata)
    for part in [value] if isinstance(value, Part) else getattr(value, "parts", ()):
        check_metadata(part.metadata)
        if part.data is not msgspec.UNSET:
            _refuse_numbers_that_json_lacks(part.data)
    try:
        return decode(encode(value), type(value))
    except (msgspec.MsgspecError, TypeError, RecursionError) as error:
        raise ValueError(f"this {type(value).__name__} cannot be sent: {error}") from error


def _is_structured(value: object) -> bool:
    return value is None or (
        isinstance(value, dict | list | tuple | bool | int | float | msgspec.Struct)
        or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    )


def _refuse_numbers_that_json_lacks(value: object) -> None:
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
"""The kinds of parts, which older cards and callers write where a media type is due."""

_KINDS = {"text": "text/*", "data": "application/json", "file": "*/*", "*": "*/*"}
_PLAIN_TEXT = Part(text="", media_type="text/plain")


def takes(modes: Iterable[str], part: Part) -> bool:
    """Whether one of ``modes`` takes a part.

    A media type takes parts of that type, ``text``, ``file`` and ``data`` all parts of that kind.
    ``text`` and ``data`` also take files that are text or JSON; ``file`` takes nothing but files.
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


def accepts(modes: Iterable[str], media_type: str) -> bool:
    """Whether one of ``modes`` and ``media_type`` have something in common.

    Both may be ranges (``image/*``); parameters (``charset``) and case do not matter.
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
    """Whether something of what is ``offered`` can be given to a caller who accepts ``accepted``.

    Who accepts nothing in particular accepts anything. Data can be given as text.
    """
    if not accepted:
        return True
    forms = [form for mode in offered for form in (mode, *_AS_TEXT.get(_range(mode), ()))]
    return any(accepts(accepted, form) for form in forms)


_AS_TEXT = {"application/json": ("text/plain",)}


def fitted(parts: tuple[Part, ...], accepted: Sequence[str]) -> tuple[tuple[Part, ...], str]:
    """Return parts in a form that is accepted, where they have one, and the type of one that has
    none.

    Data becomes the text of its JSON for those who accept text and no JSON; nothing else has
    another form that says the same.
    """
    made: list[Part] = []
    unwanted = ""
    for part in parts:
        if not takes(accepted, part):
            if part.data is not msgspec.UNSET and takes(accepted, _PLAIN_TEXT):
                part = msgspec.structs.replace(
                    part,
                    data=msgspec.UNSET,
                    text=encode(part.data).decode(),
                    media_type="text/plain",
                )
            else:
                unwanted = media_type_of(part)
        made.append(part)
    changed = any(now is not before for now, before in zip(made, parts, strict=True))
    return (tuple(made) if changed else parts), unwanted


def media_type_of(part: Part) -> str:
    """Return the part's media type: its own, or the one that its kind implies."""
    if part.media_type:
        return part.media_type
    if part.text is not None:
        return "text/plain"
    return "application/octet-stream" if part.is_file else "application/json"
