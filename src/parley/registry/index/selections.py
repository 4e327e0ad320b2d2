"""Which entries a caller asks for, and how they are found: searches, counts, facets and lists."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from parley.registry.client.local_catalog import MISSPELLED_FROM, is_misspelling
from parley.registry.index.prepared import (
    MAX_ASKED,
    MAX_FIELD,
    asked_words,
    clean,
    instant_in,
    is_beginning,
    normalized,
    number_in,
    term_id,
)
from parley.registry.index.session import Row, Session, WordGroup
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
TIMES = {"registry.createdAt": "is_created", "registry.updatedAt": "is_updated"}
"""Times that the index itself has of entries, and the pieces that compare them."""

OPERATORS = ("eq", "contains", *COMPARISONS)

MAX_TERMS = 2_000
"""A constraint that more values fulfil is checked for each entry."""

SINGLE_LOOKUPS = 4
"""So many values are looked for one by one, which is faster than a list of them."""

FEW = 20_000
"""With fewer entries, a search begins with the entries that fulfil a constraint."""


class Conditions(msgspec.Struct):
    """The demands of a statement on entries.

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
    elif len(terms) <= SINGLE_LOOKUPS:
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
    """Add a comparison with times of the index; no entry fulfils a value that is no time."""
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


# Searches, counts, facets and lists.

MATCHES = 1_000
"""How many entries a need matches at most."""

ENOUGH = 100
"""With fewer matches, a search that was narrowed is widened, and none is cut off."""

CUTOFF = 0.1
"""Of more matches, those with less than this part of the best relevance are cut off."""

BEGINNINGS = 4
"""How many words of a need may stand for those that begin with them."""

EXPANDED = 20
"""How many words a beginning stands for: the most frequent."""

NEIGHBOURS, CORRECTIONS = 1_000, 3
"""Among how many words, the most frequent that begin with the same two letters, one is looked for
that may be meant by a word that no entry has; and how many are taken.
"""

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

Ranked = list[tuple[int, float]]
"""Keys of entries, and their relevances."""


def check_order(order: Sequence[Order]) -> None:
    """Raise ``ValueError`` for a field that lists cannot be ordered by."""
    for each in order:
        if each.field not in ORDERS:
            raise ValueError(
                f"lists are ordered by {', '.join(ORDERS)}, not by {each.field[:80]!r}"
            )


def matches(session: Session, selection: EntrySelection) -> Ranked:
    """Return the entries that match the words of a selection, the most relevant first."""
    conditions = conditions_of(session, selection, apart=True)
    groups = _groups(session, selection.words) if conditions is not None else []
    if conditions is None or not groups:
        return []
    if conditions.few is not None:
        conditions.demands[conditions.few] = session.pieces["is_one_of_few"]
    found: Ranked = []
    for query in _queries(session, groups, are_few=conditions.few is not None):
        rows = session.matches(query, groups, conditions.text, conditions.values, MATCHES)
        found = [(int(key), float(relevance)) for key, relevance in rows]
        if len(found) >= ENOUGH:
            break
    if len(found) <= ENOUGH:
        return found
    least = found[0][1] * CUTOFF
    likely = [(key, relevance) for key, relevance in found if relevance >= least]
    return likely if len(likely) > ENOUGH else found[:ENOUGH]


def search(session: Session, selection: EntrySelection, limit: int, offset: int) -> Ranked:
    """Return some of the entries that match, the most relevant first, then by key."""
    if selection.words:
        return matches(session, selection)[offset : offset + limit]
    return [(key, 0.0) for key in browse(session, selection, (), limit, offset)]


def count(session: Session, selection: EntrySelection) -> int:
    """Return how many entries a selection has."""
    if selection.words:
        return len(matches(session, selection))
    conditions = conditions_of(session, selection)
    if conditions is None:
        return 0
    [(number,)] = session.ask(_filled(session, "count", conditions), conditions.values)
    return int(number)


def browse(
    session: Session, selection: EntrySelection, order: Sequence[Order], limit: int, offset: int
) -> list[int]:
    """Return the keys of some entries in an order."""
    conditions = _with_words(session, selection)
    if conditions is None:
        return []
    parts = [f"e.{ORDERS[each.field]}{' DESC' if each.descending else ''}" for each in order]
    # In the direction of the last field, so that an index has the whole order.
    parts.append(f"e.key{' DESC' if order and order[-1].descending else ''}")
    statement = _filled(session, "browse", conditions).replace("{order}", ", ".join(parts))
    values = {**conditions.values, "limit": limit, "offset": offset}
    return [int(key) for (key,) in session.ask(statement, values)]


def facet(
    session: Session, selection: EntrySelection, field: str, limit: int, min_count: int
) -> tuple[list[tuple[str, int]], int]:
    """Return values of a field with their counts, and how many entries have others."""
    conditions = _with_words(session, selection, apart=True)
    if conditions is None:
        return [], 0
    is_of_few = conditions.few is not None or "keys" in conditions.values
    values = {
        **conditions.values,
        "field": clean(field[:MAX_FIELD]),
        "limit": limit,
        "min_count": min_count,
    }
    # One more row than needed: with a limit of 0, the sum is told too.
    statement = _filled(session, "facet_of_few" if is_of_few else "facet", conditions)
    rows = session.ask(statement, {**values, "limit": max(limit, 1), "min_count": min_count})
    if not rows and min_count > 1:
        rows = session.ask(statement, {**values, "limit": 1, "min_count": 1})
        return [], int(rows[0][2]) if rows else 0
    buckets = [(str(value), int(number)) for value, number, _ in rows[:limit]]
    total = int(rows[0][2]) if rows else 0
    return buckets, total - sum([number for _, number in buckets])


def _with_words(
    session: Session, selection: EntrySelection, *, apart: bool = False
) -> Conditions | None:
    """Return the conditions of a selection, its words among them as the entries that match."""
    if not selection.words:
        return conditions_of(session, selection, apart=apart)
    keys = [key for key, _ in matches(session, selection)]
    if not keys:
        return None
    return Conditions([session.pieces["is_key"]], {"keys": session.keys(keys)})


def _filled(session: Session, piece: str, conditions: Conditions) -> str:
    """Return a statement with its conditions, beginning with what has the fewest entries."""
    pieces = session.pieces
    source = pieces["from_entries"]
    if "keys" in conditions.values:
        source = pieces["from_keys"]
    elif conditions.few is not None:
        source = pieces["from_terms"]
    statement = pieces[piece].replace("{source}", source)
    return statement.replace("{conditions}", conditions.text)


def _groups(session: Session, words: str) -> list[WordGroup]:
    """Return the words of a need that entries have, the rarest first."""
    asked = asked_words(words)
    if not asked:
        return []
    rows = session.rows("known_words", {"words": session.texts(asked)})
    known = {str(word): int(entries) for word, entries in rows}
    groups: list[tuple[tuple[str, ...], int]] = []
    beginnings = 0
    for word in asked:
        entries = known.get(word, 0)
        if beginnings < BEGINNINGS and is_beginning(word, entries):
            beginnings += 1
            found = _beginning_with(session, word, EXPANDED) or _misspelled(session, word)
            if found:
                groups.append((tuple(str(w) for w, _ in found), sum([int(n) for _, n in found])))
        elif entries:
            groups.append(((word,), entries))
    groups.sort(key=lambda group: group[1])
    [(total,)] = session.rows("counter", {"name": "entries"})
    return [
        WordGroup(words, entries, math.log1p((total + 0.5) / (entries + 0.5)))
        for words, entries in groups[:MAX_ASKED]
    ]


def _beginning_with(session: Session, beginning: str, limit: int) -> list[Row]:
    end = f"{beginning}\U0010ffff"
    return session.rows("words_from", {"beginning": beginning, "end": end, "limit": limit})


def _misspelled(session: Session, word: str) -> list[Row]:
    """Return the words that a word may be instead, which no entry has, the most frequent first."""
    if len(word) < MISSPELLED_FROM:
        return []
    near = _beginning_with(session, word[:2], NEIGHBOURS)
    return [row for row in near if is_misspelling(word, str(row[0]))][:CORRECTIONS]


def _queries(session: Session, groups: Sequence[WordGroup], *, are_few: bool) -> Iterator[str]:
    """Yield the queries to try, each if the one before found too little.

    Entries with any of the words are found; by the rarest words alone, if all are more than may be
    ranked. If even those are too many, entries with all words go first, then those with one of them
    in what weighs most. Where a constraint leaves few entries, all words count.
    """
    if are_few:
        yield session.any_of([group.words for group in groups])
        return
    rare: list[Sequence[str]] = []
    entries = 0
    for group in groups:
        entries += group.entries
        if rare and entries > session.budget:
            break
        rare.append(group.words)
    words = [group.words for group in groups]
    if groups[0].entries > session.budget:
        if len(groups) > 1:
            yield session.all_of(words)
        yield session.in_names(session.any_of(words))
    yield session.any_of(rare)
