"""The values of an author as parts, and as JSON that reads back with the same type.

Parts are matched with media types. A value of a step or of ``remember`` is rejected if it would
read back as a different value.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import mimetypes
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from parley.extensions.questions import AUTH_MEDIA_TYPE, SCHEMA_MEDIA_TYPE
from parley.model.errors import A2AError
from parley.model.parts import Artifact, Message, Part
from parley.model.struct import decode, encode, from_wire, to_wire, valid_text
from parley.model.typed.value_type import refuse_non_finite

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
    """A value of the agent has no JSON form."""


def writable(value: S, *, repairs: bool = True) -> tuple[S, bytes]:
    """Return a value in a writable form, and its JSON: the same value, or one with valid text.

    With ``repairs``, half of a surrogate pair becomes U+FFFD. Raises ``UnwritableOutput``.
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
        reason = "The agent returned a value that cannot be written as JSON."
        log.error("%s", reason, exc_info=error)
        raise UnwritableOutput(reason) from error


def check_text(**given: object) -> None:
    """Raise ``TypeError`` for an argument that is not text and so could not be read back."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is a str, not a {type(value).__name__}")


def to_part(value: object, *, media_type: str = "", filename: str = "") -> Part:
    """Return ``value`` as one part.

    A str becomes a text part, any other structured value a data part. Bytes and a path become a
    file part; a path determines its file name and media type.

    Raises ``UnusableValue`` for any other value, ``OSError`` when a path cannot be read.
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
    """Return ``value`` as parts: the parts of a list, message or artifact, else a single part."""
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
    """Return a part, message or artifact in the form in which the log will return it.

    Structs of an author are unchecked, and the log must stay readable. Raises ``ValueError``, and
    ``TypeError`` for metadata that is not JSON.
    """
    # A file of a turn is a part with methods; only the part is sent.
    kind: type[Any] = Part if isinstance(value, Part) else type(value)
    check_metadata(value.metadata)
    try:
        sendable: V = decode(encode(value), kind)
    except UnicodeEncodeError:  # repaired when it is written
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


def _guess(filename: str) -> str:
    return mimetypes.guess_type(filename)[0] or "application/octet-stream"


KINDS = ("text", "file", "data")
"""The kinds of parts. Older cards and clients use them instead of media types."""

_KINDS = {"text": "text/*", "data": "application/json", "file": "*/*", "*": "*/*"}
_PLAIN_TEXT = Part(text="", media_type="text/plain")


def takes(modes: Iterable[str], part: Part) -> bool:
    """Return whether any of ``modes`` matches a part.

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
    """Return the indexes of parts that input modes do not match; empty modes match all parts."""
    # mediaType is optional (§4.1.6): a file without a type may have any type.
    return [
        index
        for index, part in enumerate(parts if modes else ())
        if (part.media_type or not part.is_file) and not takes(modes, part)
    ]


def accepts(modes: Iterable[str], media_type: str) -> bool:
    """Return whether any of ``modes`` and ``media_type`` overlap.

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
    """Return whether a caller who accepts ``accepted`` accepts any of the ``offered`` modes.

    An empty ``accepted`` accepts everything. Data can be sent as text.
    """
    if not accepted:
        return True
    forms = [form for mode in offered for form in (mode, *_AS_TEXT.get(_range(mode), ()))]
    return any(accepts(accepted, form) for form in forms)


_AS_TEXT = {"application/json": ("text/plain",)}


def fitted(parts: tuple[Part, ...], accepted: Sequence[str]) -> tuple[tuple[Part, ...], str]:
    """Return parts in an accepted form, and the media type of a part without such a form.

    Data becomes JSON text for callers who accept text but not JSON. Other parts, and the data parts
    of questions that programs read, are unchanged.
    """
    converted: list[Part] = []
    unaccepted = ""
    for part in parts:
        if part.media_type in _OF_QUESTIONS and part.has_data:
            pass  # a data part of a question, whose text is another part
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
    """Return the part's own media type, or the default of its kind."""
    if part.media_type:
        return part.media_type
    if part.text is not None:
        return "text/plain"
    return "application/octet-stream" if part.is_file else "application/json"


PLAIN = "dict with text for keys, list, str, int, float, bool or None"

SURROGATE = "it has text with half a surrogate pair, which is invalid"
TOO_DEEP = "it is nested too deeply, or contains itself"

ADVICE = {
    tuple: "a list",
    set: "a list",
    frozenset: "a list",
    bytes: "text, such as its base64",
    bytearray: "text, such as its base64",
}


class LossyValue(TypeError):
    """A value that would change when it is read back."""


def kept(value: object, kind: Any = Any, *, what: str, hint: str = "") -> bytes:
    """Return a value as JSON from which ``read`` makes an equal value of the same type.

    ``kind`` is the type to read back; ``Any`` accepts only plain JSON values. An error begins with
    ``what``, the name of the value, and ends with ``hint``.

    Raises ``TypeError`` with the position of a part that would change.
    """
    try:
        if kind is Any:
            if not _is_plain(value):
                _check(value, "", hint=hint)
            return msgspec.json.encode(value)
        data = msgspec.json.encode(value, enc_hook=_encode)
        _compare(value, read(data, kind), "")
        return data
    except LossyValue as error:
        raise LossyValue(f"{what}: {error}") from None
    except RecursionError:
        raise LossyValue(f"{what}: {TOO_DEEP}") from None
    except UnicodeEncodeError:
        raise LossyValue(f"{what}: {SURROGATE}") from None
    except (TypeError, ValueError, OverflowError) as error:  # msgspec's own among them
        raise LossyValue(f"{what}: it does not read back as {_named(kind)}: {error}") from None


def read(data: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    """Return the value that ``kept`` serialized; a plain JSON value if ``kind`` is unsupported."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_decode)
    except TypeError:
        return msgspec.json.decode(data)


def check_metadata(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return metadata in its JSON form, with lists for tuples.

    Raises ``TypeError`` with the position of a value that is not JSON.
    """
    if not metadata:
        return metadata
    try:
        _check(metadata, "", tuples=True)
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(metadata))
        return plain
    except LossyValue as error:
        raise LossyValue(f"metadata: {error}") from None
    except RecursionError:
        raise LossyValue(f"metadata: {TOO_DEEP}") from None
    except UnicodeEncodeError:  # repaired when it is written
        return metadata


_ATOMS = frozenset({str, int, bool, type(None)})


def _is_plain(value: object) -> bool:
    """Return whether ``_check`` would pass. Faster, since it tracks no path."""
    kind = type(value)
    if isinstance(value, dict) and kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        items: Iterable[object] = value.values()
    elif isinstance(value, list) and kind is list:
        items = value
    elif isinstance(value, float) and kind is float:
        return math.isfinite(value)
    else:
        return kind in _ATOMS
    return all([type(item) in _ATOMS or _is_plain(item) for item in items])


def _check(value: object, path: str, *, tuples: bool = False, hint: str = "") -> None:
    """Raise ``LossyValue`` unless a value consists of plain JSON only."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return
    if kind is float:
        assert isinstance(value, float)
        if not math.isfinite(value):
            raise LossyValue(f"JSON has no {value}{_at(path)}; use None, or text")
    elif kind is dict:
        assert isinstance(value, dict)
        for key, item in value.items():
            if type(key) is not str:
                raise LossyValue(
                    f"the key {key!r}{_at(path)} is not text, and JSON has no other keys; "
                    f"use {str(key)!r}{hint}"
                )
            _check(item, _member(path, key), tuples=tuples, hint=hint)
    elif kind is list or (tuples and kind is tuple):
        assert isinstance(value, list | tuple)
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", tuples=tuples, hint=hint)
    else:
        raise LossyValue(
            f"the {_named(kind)}{_at(path)} does not read back as one; use {_instead(value)}{hint}"
        )


def _compare(value: Any, back: Any, path: str) -> None:
    """Raise ``LossyValue`` unless a value reads back unchanged.

    An ``int`` for a declared ``float`` counts as that float.
    """
    kind = type(value)
    if kind is int and type(back) is float and value == back:
        return
    if kind is float and not math.isfinite(value):
        raise LossyValue(f"JSON has no {value}{_at(path)}; use None, or text")
    if kind is not type(back):
        raise LossyValue(
            f"the {_named(kind)}{_at(path)} reads back as {_named(type(back))}; "
            f"declare the type that it has, or use {_named(type(back))}"
        )
    if isinstance(value, dict):
        keys = {key: type(key) for key in value}
        if keys != {key: type(key) for key in back}:
            raise LossyValue(
                f"the keys{_at(path)} change when they are read back; declare their type"
            )
        for key, item in value.items():
            _compare(item, back[key], _member(path, str(key)))
    elif isinstance(value, list | tuple) and len(value) == len(back):
        for index, (item, other) in enumerate(zip(value, back, strict=True)):
            _compare(item, other, f"{path}[{index}]")
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            _compare(getattr(value, name), getattr(back, name), _member(path, name))
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _compare(getattr(value, field.name), getattr(back, field.name), f"{path}.{field.name}")
    elif value != back or (
        isinstance(value, set | frozenset)
        and sorted(map(repr, map(type, value))) != sorted(map(repr, map(type, back)))
    ):
        raise LossyValue(f"the {_named(kind)}{_at(path)} reads back as another")


def _encode(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return to_wire(value) if dump is None else dump(mode="json")


def _decode(kind: Any, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    return from_wire(kind, value) if validate is None else validate(value)


def _instead(value: object) -> str:
    """Return the advice for a value that is not JSON."""
    for other, advice in ADVICE.items():
        if type(value) is other:
            return advice
    for plain in (dict, list, str, bool, int, float):
        if isinstance(value, plain):
            return f"a plain {plain.__name__}"
    return f"a JSON value: {PLAIN}"


def _named(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _member(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{name!r}]"


def _at(path: str) -> str:
    return f" at {path}" if path else ""
