"""Hypothesis strategies for every message of the data model: ``value_of(Task)`` and so on.

They are derived from the structs, with bounded sizes; further rules of a type (exactly one member,
a role that is set) are added at the end.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from msgspec import inspect

from parley.model import cards, operations, parts, tasks
from parley.model.struct import A2AStruct, Timestamp

MODULES = (parts, tasks, operations, cards)
MESSAGES: dict[str, type[A2AStruct]] = {
    name: kind
    for module in MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, A2AStruct) and kind is not A2AStruct
}
"""Every message type by its name in the specification."""

_SURROGATES = ("Cs",)

texts = st.text(st.characters(exclude_categories=_SURROGATES), max_size=12)
names = st.text(st.characters(exclude_categories=_SURROGATES), min_size=1, max_size=12)
timestamps = st.integers(-62135596800000, 253402300799999).map(Timestamp.from_milliseconds)
"""From 0001-01-01 to 9999-12-31, as in protobuf."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)
"""Any JSON, with the numbers on which all JSON readers agree."""

ONE_OF = {
    parts.Part: ("text", "raw", "url", "data"),
    operations.SendMessageResponse: ("task", "message"),
    operations.StreamResponse: ("task", "message", "status_update", "artifact_update"),
    cards.SecurityScheme: tuple(cards.SecurityScheme.__struct_fields__),
    cards.OAuthFlows: tuple(cards.OAuthFlows.__struct_fields__),
}


@cache
def value_of(kind: type[A2AStruct]) -> st.SearchStrategy[Any]:
    """Return a strategy for values of one message type."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    required = {f.name: _of(f.type) for f in info.fields if f.required}
    one_of = ONE_OF.get(kind, ())
    optional = {f.name: _of(f.type) for f in info.fields if not f.required and f.name not in one_of}
    if kind is parts.Message:
        required["role"] = st.sampled_from([parts.Role.USER, parts.Role.AGENT])
    fields = st.fixed_dictionaries(required, optional=optional)
    if not one_of:
        return fields.map(lambda given: kind(**given))
    members = {f.name: _of(f.type) for f in info.fields if f.name in one_of}
    member = st.sampled_from(one_of).flatmap(
        lambda name: members[name].map(lambda value: {name: value})
    )
    return st.tuples(fields, member).map(lambda given: kind(**given[0], **given[1]))


def _of(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType(cls=cls):
            return st.deferred(lambda: value_of(cls))
        case inspect.UnionType(types=types):
            (one,) = [case for case in types if not isinstance(case, inspect.NoneType)]
            return _of(one)
        case inspect.VarTupleType(item_type=item, min_length=least):
            return st.lists(_of(item), min_size=least or 0, max_size=3).map(tuple)
        case inspect.DictType(value_type=inspect.AnyType()):
            return json_objects
        case inspect.DictType(value_type=item):
            return st.dictionaries(names, _of(item), max_size=2)
        case inspect.EnumType(cls=cls):
            return st.sampled_from(cls)
        case inspect.StrType(min_length=least):
            return names if least else texts
        case inspect.IntType(ge=lowest, le=highest):
            low, high = (-(2**31), 2**31 - 1) if lowest is None else (lowest, highest)
            return st.integers(low, high)
        case inspect.FloatType():
            return st.floats(0, 1)
        case inspect.BoolType():
            return st.booleans()
        case inspect.BytesType():
            return st.binary(max_size=12)
        case inspect.CustomType(cls=cls) if cls is Timestamp:
            return timestamps
        case inspect.AnyType():
            return json_values
    raise NotImplementedError(info)


def any_message() -> st.SearchStrategy[Any]:
    """Return a strategy for values of every message type."""
    return st.sampled_from(sorted(MESSAGES)).flatmap(lambda name: value_of(MESSAGES[name]))


def abort(members: dict[str, Any], draw: Any) -> None:
    """Replace one value of a JSON object, at any depth, by another."""
    places: list[tuple[Any, Any]] = []
    pending: list[Any] = [members]
    while pending:
        holder = pending.pop()
        for key, item in holder.items() if isinstance(holder, dict) else enumerate(holder):
            places.append((holder, key))
            if isinstance(item, dict | list):
                pending.append(item)
    if places:
        holder, key = draw(st.sampled_from(places))
        holder[key] = draw(json_values | timestamps.map(str) | st.sampled_from(["YQ", "1", 1.0, 2]))
