"""Searches, counts, facets and lists. They read only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from parley.client.registry.word_match import MISSPELLED_FROM, is_misspelling
from parley.registry.index.prepared import MAX_FIELD, clean
from parley.registry.index.selections import Conditions, EntrySelection, Order, conditions_of
from parley.registry.index.session import Row, Session, WordGroup
from parley.registry.index.words import MAX_ASKED, asked_words, is_beginning

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
