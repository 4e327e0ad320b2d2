"""Which entries a caller asks for, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from parley.registry.records import EntryStanding

PUBLIC: tuple[str, ...] = ()
"""The tokens of a viewer that proved nothing: sees entries without an audience."""


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks: entries without an audience, or with one of the ``tokens``; all of them for an
    operator (``sees_all``), who sees other standings than ``LISTED`` too.
    """

    tokens: tuple[str, ...] = PUBLIC
    sees_all: bool = False


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on the values of a field path: one of ``values``, by ``operator``.

    ``eq`` compares without regard to case; ``contains`` looks for a part; ``gt``, ``ge``, ``lt``
    and ``le`` compare numbers with numbers, times (ISO 8601) with times, and texts with texts.
    ``negated`` entries have no such value. ``registry.createdAt`` and ``registry.updatedAt`` are
    when the index got the entry, and when it last changed there; they can be compared only.
    """

    field: str
    values: tuple[str, ...]
    operator: str = "eq"
    negated: bool = False


class EntrySelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries: all constraints hold, and the viewer may see them."""

    viewer: Viewer = Viewer()
    constraints: tuple[Constraint, ...] = ()
    standings: tuple[EntryStanding, ...] = (EntryStanding.LISTED,)
    words: str = ""
    """A need in natural language; empty selects whatever it says."""
    keys: tuple[int, ...] | None = None
    """Only entries of these keys, which another index found; ``None`` for any."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A field to order by: ``displayName``, ``identifier``, ``publisher``, ``type``, ``version``,
    ``createdAt``, ``updatedAt``.
    """

    field: str
    descending: bool = False


COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
OPERATORS = ("eq", "contains", *COMPARISONS)

ORDERS = {
    "displayName": "name",
    "identifier": "identifier",
    "publisher": "publisher",
    "type": "type",
    "version": "version",
    "createdAt": "created_at",
    "updatedAt": "updated_at",
}
"""What lists can be ordered by, and the columns."""


def check_selection(selection: EntrySelection) -> None:
    """Raise ``ValueError`` for an operator that there is not."""
    for constraint in selection.constraints:
        if constraint.operator not in OPERATORS:
            raise ValueError(
                f"there is no operator {constraint.operator!r} for {constraint.field[:80]!r}; use "
                f"{', '.join(OPERATORS)}"
            )


def check_order(order: Sequence[Order]) -> None:
    """Raise ``ValueError`` for a field that lists cannot be ordered by."""
    for each in order:
        if each.field not in ORDERS:
            raise ValueError(
                f"lists are ordered by {', '.join(ORDERS)}, not by {each.field[:80]!r}"
            )
