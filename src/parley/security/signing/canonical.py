"""Unambiguous JSON, and its canonical form (RFC 8785) for signatures."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from parley.model.cards import AgentCard

# -- strict json ------------------------------------------------------------------------------


class AmbiguousJson(ValueError):
    """The text is not JSON, or parsers could disagree about its value."""


def read_object(text: bytes | str, *, limit: int, what: str) -> dict[str, Any]:
    """Return the members of a JSON object of at most ``limit`` bytes.

    Raises ``AmbiguousJson`` for anything else: duplicate members, invalid UTF-8, numbers outside
    JSON. The error never quotes values.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > limit:
        raise AmbiguousJson(f"{what} has {len(data):,} bytes; at most {limit:,} are read")
    content = read_strict(data, what)
    if not isinstance(content, dict):
        raise AmbiguousJson(f"{what} is not a JSON object")
    return content


def read_strict(data: bytes, what: str) -> Any:
    """Return the value of an unambiguous JSON text. Raises ``AmbiguousJson``."""
    try:
        return json.loads(
            data.decode(),
            object_pairs_hook=lambda pairs: _unique(pairs, what),
            parse_constant=lambda name: _no_number(name, what),
        )
    except AmbiguousJson:
        raise
    except UnicodeDecodeError as error:
        raise AmbiguousJson(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        words = f"{what} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise AmbiguousJson(words) from None
    except RecursionError:
        raise AmbiguousJson(f"{what} is nested too deeply") from None
    except ValueError:
        raise AmbiguousJson(f"{what} has a number that is too long") from None


def _unique(pairs: list[tuple[str, Any]], what: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise AmbiguousJson(f"{what} has the member {name[:60]!r} twice in one object")
            seen.add(name)
    return found


def _no_number(name: str, what: str) -> Any:
    raise AmbiguousJson(f"{what} has {name}, which is not JSON")


# -- canonical --------------------------------------------------------------------------------

CardForm = Literal["exact", "received", "stripped"]

SIGNATURES = "signatures"

_EMPTY: dict[type, Callable[[], Any]] = {str: str, tuple: list, dict: dict}
_TOO_DEEP = "has no canonical form: it is nested too deeply"


class NotCanonical(ValueError):
    """The value has no canonical form: a too large number, half a surrogate pair, or its depth."""


def canonical(value: Any) -> bytes:
    """Return the canonical form (RFC 8785) of a JSON value. Raises ``NotCanonical``."""
    import rfc8785

    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise NotCanonical(f"has no canonical form: {error}") from None
    except UnicodeEncodeError:
        raise NotCanonical("has no canonical form: half of a surrogate pair") from None
    except RecursionError:
        raise NotCanonical(_TOO_DEEP) from None


def received(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return all members of a card except its signatures."""
    return {name: value for name, value in members.items() if name != SIGNATURES}


def exact(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a card that version 1.0 defines, as the specification signs them."""
    found: dict[str, Any] = _projected(received(members), AgentCard, required=True)
    return found


def stripped(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the non-empty members of a card that version 1.0 defines.

    Raises ``NotCanonical`` for a card that is nested too deeply.
    """
    return _stripped(_projected(received(members), AgentCard, required=False))


def stripped_as_received(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the non-empty members of a card of another version.

    Raises ``NotCanonical`` for a card that is nested too deeply.
    """
    return _stripped(received(members))


def has_latest_form(members: Mapping[str, Any]) -> bool:
    """Return whether a card has the members of version 1.0, alone or together with others."""
    return "supportedInterfaces" in members


class _Field(msgspec.Struct, frozen=True):
    """A field of a protocol message. ``of`` is the type of the message in it, if any."""

    name: str
    kind: type
    of: type | None
    is_required: bool
    has_presence: bool


@cache
def _fields(message: type) -> tuple[_Field, ...]:
    found = []
    for field in msgspec.structs.fields(message):
        kind, of, optional = _shape(field.type)
        found.append(_Field(field.encode_name, kind, of, field.required, optional))
    return tuple(found)


def _shape(declared: Any) -> tuple[type, type | None, bool]:
    """Return the type of a field, the message type in it, and whether it distinguishes unset."""
    origin = get_origin(declared)
    if origin in (Union, types.UnionType):
        (inner,) = [each for each in get_args(declared) if each is not type(None)]
        kind, of, _ = _shape(inner)
        return kind, of, True
    if origin is tuple or origin is dict:
        held = get_args(declared)[0 if origin is tuple else 1]
        return origin, held if _is_message(held) else None, False
    if hasattr(declared, "__metadata__"):
        return _shape(declared.__origin__)
    if _is_message(declared):
        return dict, declared, True
    return declared, None, False


def _is_message(declared: Any) -> bool:
    return isinstance(declared, type) and issubclass(declared, msgspec.Struct)


def _projected(given: Any, message: type, *, required: bool) -> Any:
    """Return the members that a message defines; values of other types stay unchanged.

    With ``required``, required members are included even if they are empty.
    """
    if not isinstance(given, dict):
        return given
    found: dict[str, Any] = {}
    for field in _fields(message):
        value = given.get(field.name)
        if value is None:
            if required and field.is_required and field.kind in _EMPTY and not field.has_presence:
                found[field.name] = _EMPTY[field.kind]()
            continue
        if field.of is not None:
            value = _held(value, field, required=required)
        keeps_empty = field.has_presence or (required and field.is_required)
        if keeps_empty or not _is_default(value):
            found[field.name] = value
    return found


def _held(value: Any, field: _Field, *, required: bool) -> Any:
    assert field.of is not None
    if field.kind is tuple and isinstance(value, list):
        return [_projected(each, field.of, required=required) for each in value]
    if field.kind is dict and not field.has_presence and isinstance(value, dict):
        return {name: _projected(each, field.of, required=required) for name, each in value.items()}
    return _projected(value, field.of, required=required)


def _is_default(value: Any) -> bool:
    return value is False or value in ("", [], {})


def _stripped(members: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _without_empty(members) or {}
    except RecursionError:
        raise NotCanonical(_TOO_DEEP) from None


def _without_empty(value: Any) -> Any:
    """Return a value without empty members at any depth; ``None`` if nothing remains."""
    if isinstance(value, dict):
        kept = {name: _without_empty(each) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each is not None} or None
    if isinstance(value, list):
        return [each for each in map(_without_empty, value) if each is not None] or None
    return None if value == "" else value
