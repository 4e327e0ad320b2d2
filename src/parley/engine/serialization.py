"""Serialize an author's values (steps, ``remember``) as JSON that reads back with the same type.

A value that would read back as something else is refused when it is written.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from parley.model.encoding import from_wire, to_wire

PLAIN = "dict with text for keys, list, str, int, float, bool or None"

SURROGATE = "it holds text with half a surrogate pair, which is none"
TOO_DEEP = "it is nested too deeply, or holds itself"

ADVICE = {
    tuple: "a list",
    set: "a list",
    frozenset: "a list",
    bytes: "text, such as its base64",
    bytearray: "text, such as its base64",
}


class LossyValue(TypeError):
    """A value that would not read back as it is."""


def kept(value: object, kind: Any = Any, *, what: str, hint: str = "") -> bytes:
    """Return a value as JSON from which ``read`` makes an equal value of the same type.

    ``kind`` is the type to read back; ``Any`` accepts only plain JSON values. An error begins with
    ``what``, which names the value; ``hint`` ends its advice.

    Raises ``TypeError`` that says where the value would read back as something else.
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
    """Return metadata as JSON carries it: tuples as lists.

    Raises ``TypeError`` that says where a value is not JSON.
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
    except UnicodeEncodeError:  # the writer makes its text valid
        return metadata


_ATOMS = frozenset({str, int, bool, type(None)})


def _is_plain(value: object) -> bool:
    """Return whether ``_check`` would pass. It is faster, as it tracks no path."""
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
    """Raise ``LossyValue`` unless a value is plain JSON throughout."""
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
                    f"the key {key!r}{_at(path)} is no text, and JSON has no other keys; "
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
    """Raise ``LossyValue`` unless a value reads back as it was.

    An ``int`` where a ``float`` is declared is that float.
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
            raise LossyValue(f"the keys{_at(path)} read back as others; declare their type")
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
    return f"what JSON has: {PLAIN}"


def _named(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _member(path: str, name: str) -> str:
    return f"{path}.{name}" if name.isidentifier() else f"{path}[{name!r}]"


def _at(path: str) -> str:
    return f" at {path}" if path else ""
