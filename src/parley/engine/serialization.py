"""What is kept as JSON for an author's function, and read back: the same value, of the same type.

What would come back as something else is refused when it is to be kept, not found out by a later
run, on another day.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from parley.model.encoding import from_wire, to_wire

PLAIN = "dict with text for keys, list, str, int, float, bool or None"

ADVICE = {
    tuple: "a list",
    set: "a list",
    frozenset: "a list",
    bytes: "text, such as its base64",
    bytearray: "text, such as its base64",
}


class Unkept(TypeError):
    """A value that would not read back as what it is."""


def kept(value: object, kind: Any = Any, *, what: str, hint: str = "") -> bytes:
    """Return a value as the JSON that ``read`` makes the same value of, of the same type.

    ``kind`` is the type that it is read back as; without one (``Any``) only what JSON has reads
    back as it was. ``what`` begins the words of an error: who keeps the value; ``hint`` ends those
    that say what JSON has instead.

    Raises ``TypeError`` that says where the value has what would read back as something else.
    """
    try:
        if kind is Any:
            if not _is_plain(value):
                _check(value, "", hint=hint)
            return msgspec.json.encode(value)
        data = msgspec.json.encode(value, enc_hook=_written)
        _compare(value, read(data, kind), "")
        return data
    except Unkept as error:
        raise Unkept(f"{what}: {error}") from None
    except RecursionError:
        raise Unkept(f"{what}: it is nested too deeply, or holds itself") from None
    except UnicodeEncodeError:
        raise Unkept(f"{what}: it holds text with half a surrogate pair, which is none") from None
    except (TypeError, ValueError, OverflowError) as error:  # msgspec's own among them
        raise Unkept(f"{what}: it does not read back as {_named(kind)}: {error}") from None


def read(data: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    """Return the value that ``kept`` made JSON of. What no JSON is read as is read as it comes."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_read)
    except TypeError:
        return msgspec.json.decode(data)


def check_metadata(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return metadata as everybody will read it: tuples as the lists that JSON has.

    Raises ``TypeError`` for what JSON lacks, and says where it is.
    """
    if not metadata:
        return metadata
    try:
        _check(metadata, "", tuples=True)
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(metadata))
        return found
    except Unkept as error:
        raise Unkept(f"metadata: {error}") from None
    except RecursionError:
        raise Unkept("metadata: it is nested too deeply, or holds itself") from None
    except UnicodeEncodeError:
        raise Unkept("metadata: it holds text with half a surrogate pair, which is none") from None


_ATOMS = frozenset({str, int, bool, type(None)})


def _is_plain(value: object) -> bool:
    """Whether ``_check`` would find nothing: without knowing where, which costs less."""
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
    """Raise ``Unkept`` unless a value is what JSON has, throughout."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return
    if kind is float:
        assert isinstance(value, float)
        if not math.isfinite(value):
            raise Unkept(f"JSON has no {value}{_at(path)}; use None, or text")
    elif kind is dict:
        assert isinstance(value, dict)
        for key, item in value.items():
            if type(key) is not str:
                raise Unkept(
                    f"the key {key!r}{_at(path)} is no text, and JSON has no other keys; "
                    f"use {str(key)!r}{hint}"
                )
            _check(item, _member(path, key), tuples=tuples, hint=hint)
    elif kind is list or (tuples and kind is tuple):
        assert isinstance(value, list | tuple)
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", tuples=tuples, hint=hint)
    else:
        raise Unkept(
            f"the {_named(kind)}{_at(path)} does not read back as one; use {_instead(value)}{hint}"
        )


def _compare(value: Any, back: Any, path: str) -> None:
    """Raise ``Unkept`` unless a value was read back as it was.

    An ``int`` where a ``float`` is declared is that float.
    """
    kind = type(value)
    if kind is int and type(back) is float and value == back:
        return
    if kind is float and not math.isfinite(value):
        raise Unkept(f"JSON has no {value}{_at(path)}; use None, or text")
    if kind is not type(back):
        raise Unkept(
            f"the {_named(kind)}{_at(path)} reads back as {_named(type(back))}; "
            f"declare the type that it has, or use {_named(type(back))}"
        )
    if isinstance(value, dict):
        keys = {key: type(key) for key in value}
        if keys != {key: type(key) for key in back}:
            raise Unkept(f"the keys{_at(path)} read back as others; declare their type")
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
        raise Unkept(f"the {_named(kind)}{_at(path)} reads back as another")


def _written(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return to_wire(value) if dump is None else dump(mode="json")


def _read(kind: Any, value: Any) -> Any:
    validate = getattr(kind, "model_validate", None)
    return from_wire(kind, value) if validate is None else validate(value)


def _instead(value: object) -> str:
    """Return what JSON has in the place of a value."""
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
