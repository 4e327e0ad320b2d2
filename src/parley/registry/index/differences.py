"""The difference of two JSON values: what to add, remove and replace (RFC 6902)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

MAX_OPERATIONS = 200
"""A difference with more operations is written as one that replaces everything."""

MAX_DEPTH = 64
"""Below this depth, a value that differs is replaced as a whole."""

Operation = Mapping[str, Any]


def difference(before: Any, after: Any) -> tuple[Operation, ...]:
    """Return the operations that make ``before`` into ``after``, in the order to apply them."""
    operations: list[Operation] = []
    for operation in _compare("", before, after, 0):
        operations.append(operation)
        if len(operations) > MAX_OPERATIONS:
            return ({"op": "replace", "path": "", "value": after},)
    return tuple(operations)


def card_difference(before: bytes, after: bytes) -> tuple[Operation, ...]:
    """Return the difference of two cards; what is no JSON, or too deep, counts as null."""
    try:
        return difference(_read(before), _read(after))
    except RecursionError:
        return ({"op": "replace", "path": "", "value": None},)


def _read(card: bytes) -> Any:
    try:
        return msgspec.json.decode(card)
    except (msgspec.DecodeError, RecursionError):
        return None


def _compare(path: str, before: Any, after: Any, depth: int) -> Iterator[Operation]:
    if _is_same(before, after):
        return
    if depth < MAX_DEPTH and isinstance(before, dict) and isinstance(after, dict):
        yield from _compare_members(path, before, after, depth)
    elif depth < MAX_DEPTH and isinstance(before, list) and isinstance(after, list):
        yield from _compare_items(path, before, after, depth)
    else:
        yield {"op": "replace", "path": path, "value": after}


def _compare_members(
    path: str, before: dict[str, Any], after: dict[str, Any], depth: int
) -> Iterator[Operation]:
    for name, value in before.items():
        if name not in after:
            yield {"op": "remove", "path": f"{path}/{_escaped(name)}"}
        else:
            yield from _compare(f"{path}/{_escaped(name)}", value, after[name], depth + 1)
    for name, value in after.items():
        if name not in before:
            yield {"op": "add", "path": f"{path}/{_escaped(name)}", "value": value}


def _compare_items(
    path: str, before: Sequence[Any], after: Sequence[Any], depth: int
) -> Iterator[Operation]:
    """Compare what stands between the items that begin and end both lists alike.

    Items that have the same ``id`` or ``name`` stand for each other, in the same order.
    """
    start = 0
    while start < min(len(before), len(after)) and _is_same(before[start], after[start]):
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and _is_same(
        before[-1 - end], after[-1 - end]
    ):
        end += 1
    old, new = list(before[start : len(before) - end]), list(after[start : len(after) - end])
    known = {_identity(item) for item in new}
    for at in reversed(range(len(old))):
        if _identity(old[at]) is not None and _identity(old[at]) not in known:
            yield {"op": "remove", "path": f"{path}/{start + at}"}
            del old[at]
    for at, item in enumerate(new):
        where = f"{path}/{start + at}"
        if at >= len(old):
            yield {"op": "add", "path": where, "value": item}
        elif _identity(old[at]) == _identity(item):
            yield from _compare(where, old[at], item, depth + 1)
        elif _identity(item) is not None and len(new) > len(old):
            yield {"op": "add", "path": where, "value": item}
            old.insert(at, item)
        else:
            yield {"op": "replace", "path": where, "value": item}
    for at in reversed(range(len(new), len(old))):
        yield {"op": "remove", "path": f"{path}/{start + at}"}


def _identity(item: Any) -> str | None:
    if isinstance(item, dict):
        for name in ("id", "name", "uri", "url"):
            if isinstance(item.get(name), str):
                return f"{name} {item[name]}"
    return None


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same in JSON, where 1 is not true."""
    if type(one) is not type(other):
        numbers = (int, float)
        return type(one) in numbers and type(other) in numbers and bool(one == other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
