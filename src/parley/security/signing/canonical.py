"""Canonical JSON (RFC 8785), and the three forms of a card that signatures are made of.

Signers disagree about which members of a card are signed (specification §8.4.1). All work from the
members of the JSON, never from an object of the model:

- ``exact``: the members that version 1.0 has. REQUIRED ones are there, empty or not, and optional
  ones if they were set; others are not.
- ``received``: every member, as it was written.
- ``stripped``: the members that version 1.0 has, without what is empty at any depth. The official
  SDKs for Python and JavaScript sign and verify this form.

``signatures`` is in none of them.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from parley.model.cards import AgentCard

CardForm = Literal["exact", "received", "stripped"]

SIGNATURES = "signatures"

_EMPTY: dict[type, Callable[[], Any]] = {str: str, tuple: list, dict: dict}
_TOO_DEEP = "has no canonical form: it is nested too deeply"


class NotCanonical(ValueError):
    """The value has no canonical form: a number that is too large, half a surrogate pair, depth."""


def canonical(value: Any) -> bytes:
    """Return a JSON value as RFC 8785 writes it. Raises ``NotCanonical``."""
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
    """Return all members of a card but its signatures."""
    return {name: value for name, value in members.items() if name != SIGNATURES}


def exact(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a card that version 1.0 has, as the specification signs them."""
    found: dict[str, Any] = _projected(received(members), AgentCard, required=True)
    return found


def stripped(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a card that version 1.0 has and that are not empty.

    Raises ``NotCanonical`` for a card that is nested too deeply.
    """
    return _stripped(_projected(received(members), AgentCard, required=False))


def stripped_as_received(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a card of another version that are not empty.

    Raises ``NotCanonical`` for a card that is nested too deeply.
    """
    return _stripped(received(members))


def has_latest_form(members: Mapping[str, Any]) -> bool:
    """Return whether a card has the members of version 1.0, alone or beside others."""
    return "supportedInterfaces" in members


class _Field(msgspec.Struct, frozen=True):
    """A member that a message of the protocol has. ``of`` is the message in it, if any."""

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
    """Return the kind of a type, the message in it, and whether it tells empty from unset."""
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
    """Return the members of a message; values of other kinds than theirs stay as they are.

    With ``required`` those that must be there are, even if empty.
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
    """Return a value without what is empty in it, at any depth; ``None`` if nothing is left."""
    if isinstance(value, dict):
        kept = {name: _without_empty(each) for name, each in value.items()}
        return {name: each for name, each in kept.items() if each is not None} or None
    if isinstance(value, list):
        return [each for each in map(_without_empty, value) if each is not None] or None
    return None if value == "" else value
