"""Which entries a caller asks for: selections, and the conditions of a statement that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from parley.registry.index.prepared import (
    MAX_FIELD,
    clean,
    instant_in,
    normalized,
    number_in,
    term_id,
)
from parley.registry.index.session import Session
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
    """Only entries of these keys, those that another index found; ``None`` for any."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A field to order by: ``displayName``, ``identifier``, ``publisher``, ``type``, ``version``,
    ``createdAt``, ``updatedAt``.
    """

    field: str
    descending: bool = False


COMPARISONS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
TIMES = {"registry.createdAt": "is_created", "registry.updatedAt": "is_updated"}
"""Times that the index itself has of entries, and the pieces that compare them."""

OPERATORS = ("eq", "contains", *COMPARISONS)

MAX_TERMS = 2_000
"""A constraint that more values fulfil is checked for each entry."""

MAX_NAMED = 4
"""So many values are looked for one by one, which is faster than a list of them."""

FEW = 20_000
"""With fewer entries, a search begins with those that fulfil a constraint."""


class Conditions(msgspec.Struct):
    """What a statement demands of entries.

    If one demand leaves few entries, ``few`` is its place, and the value of that name its terms.
    """

    demands: list[str]
    values: dict[str, Any]
    few: int | None = None

    @property
    def text(self) -> str:
        """The conditions as one."""
        return " AND ".join(self.demands) or "1 = 1"


def check_selection(selection: EntrySelection) -> None:
    """Raise ``ValueError`` for an operator that there is not."""
    for constraint in selection.constraints:
        if constraint.operator not in OPERATORS:
            raise ValueError(
                f"there is no operator {constraint.operator!r} for {constraint.field[:80]!r}; use "
                f"{', '.join(OPERATORS)}"
            )


def conditions_of(
    session: Session, selection: EntrySelection, *, apart: bool = False
) -> Conditions | None:
    """Return the conditions of a selection but its words, ``None`` when nothing fulfils them.

    They are about rows of ``entries``, or ``apart`` about rows that have its keys and who sees it.
    """
    pieces = session.pieces
    found = Conditions([], {})
    standings = sorted({standing.value for standing in selection.standings})
    if not standings:
        return None
    if len(standings) == 1:
        found.demands.append(pieces["has_standing"])
        found.values["standing"] = standings[0]
    else:
        found.demands.append(pieces["has_standings"])
        found.values["standings"] = session.texts(standings)
    viewer = selection.viewer
    if viewer.tokens and not viewer.sees_all:
        found.demands.append(pieces["is_visible"])
        found.values["tokens"] = session.texts([clean(token) for token in viewer.tokens])
    elif not viewer.sees_all:
        found.demands.append(pieces["is_public"])
    if selection.keys is not None:
        if not selection.keys:
            return None
        found.demands.append(pieces["is_key"])
        found.values["keys"] = session.keys(sorted(set(selection.keys)))
    fewest = FEW
    for number, constraint in enumerate(selection.constraints):
        if constraint.field in TIMES and constraint.operator in COMPARISONS:
            _add_times(session, found, constraint, number, apart=apart)
            continue
        terms = _terms(session, constraint, number)
        if not terms and not constraint.negated:
            return None
        if not terms:
            continue
        _add(session, found, terms, number, "NOT " if constraint.negated else "")
        if isinstance(terms, dict) and not constraint.negated and sum(terms.values()) < fewest:
            fewest, found.few = sum(terms.values()), len(found.demands) - 1
            found.values["few"] = session.keys(sorted(terms))
    return found


def _add(
    session: Session,
    found: Conditions,
    terms: dict[int, int] | tuple[str, Mapping[str, Any]],
    number: int,
    negation: str,
) -> None:
    """Add a constraint, whose ids of values or whose condition are known."""
    if isinstance(terms, tuple):
        demand, values = terms
        found.values.update(values)
    elif len(terms) <= MAX_NAMED:
        names = {f"{number}_{count}": id for count, id in enumerate(sorted(terms))}
        found.values.update({f"term_{name}": id for name, id in names.items()})
        each = [session.pieces["has_term"].replace("{n}", name) for name in names]
        demand = f"({' OR '.join(each)})"
    else:
        demand = session.pieces["has_terms"].replace("{n}", str(number))
        found.values[f"terms_{number}"] = session.keys(sorted(terms))
    found.demands.append(negation + demand)


def _add_times(
    session: Session, found: Conditions, constraint: Constraint, number: int, *, apart: bool
) -> None:
    """Add a comparison with times of the index; what is no time is fulfilled by no entry."""
    piece = session.pieces[TIMES[constraint.field] + ("_apart" if apart else "")]
    piece = piece.replace("{operator}", COMPARISONS[constraint.operator])
    comparisons = []
    for count, value in enumerate(constraint.values):
        instant = instant_in(normalized(value))
        if instant is not None:
            name = f"time_{number}_{count}"
            comparisons.append(piece.replace("{value}", name))
            found.values[name] = instant
    negation = "NOT " if constraint.negated else ""
    found.demands.append(f"{negation}({' OR '.join(comparisons) or '1 = 0'})")


def _terms(
    session: Session, constraint: Constraint, number: int
) -> dict[int, int] | tuple[str, Mapping[str, Any]]:
    """Return the values that fulfil a constraint with their numbers of entries; if there are too
    many, a condition.
    """
    field = clean(constraint.field[:MAX_FIELD])
    if constraint.operator == "eq":
        ids = {term_id(field, normalized(value)) for value in constraint.values}
        return dict(_pairs(session.rows("known_terms", {"ids": session.keys(sorted(ids))})))
    values: dict[str, Any] = {f"field_{number}": field}
    comparisons = []
    for count, value in enumerate(constraint.values):
        name = f"value_{number}_{count}"
        kind, values[name] = _compared(value, constraint.operator)
        piece = session.pieces[kind].replace("{value}", name)
        comparisons.append(piece.replace("{operator}", COMPARISONS.get(constraint.operator, "")))
    if not comparisons:
        return {}

    def statement(piece: str) -> str:
        text = session.pieces[piece].replace("{n}", str(number))
        return text.replace("{comparisons}", " OR ".join(comparisons))

    limited = {**values, "limit": MAX_TERMS + 1}
    rows = session.ask(statement("terms_of_field"), limited)
    if len(rows) <= MAX_TERMS:
        return dict(_pairs(rows))
    return statement("has_value"), values


def _pairs(rows: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
    return [(int(id), int(entries)) for id, entries in rows]


def _compared(value: str, operator: str) -> tuple[str, Any]:
    """Return the piece that compares with a value, and what to compare with."""
    normal = normalized(value)
    if operator == "contains":
        return "contains", normal
    number = number_in(normal)
    if number is not None:
        return "number", number
    instant = instant_in(normal)
    return ("text", normal) if instant is None else ("instant", instant)
