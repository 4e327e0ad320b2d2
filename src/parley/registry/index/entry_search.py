"""The in-process search of an index: words, filters, facets and orders, the same for every
database.

A SQLite database in a temporary file holds the searched data; it is private to the process and
removed with it. The index adds changed entries to it before each search.

An entry is found by a word of a need and by its synonyms; a word that no entry has also finds words
that begin with it, else words that it may be a misspelling of. Entries are ranked by how much of
the need they cover, and by the rarity, frequency and position of the words (BM25).
"""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import msgspec

from parley.database.sqlite.file import undone_on_error
from parley.registry.index.prepared import (
    HEALTH_FIELD,
    LIVENESS_FIELD,
    MAX_FIELD,
    Term,
    clean,
    instant_in,
    list_columns,
    normalized,
    number_in,
    term,
    term_id,
    terms_of,
)
from parley.registry.index.words import (
    MAX_ASKED,
    MISSPELLED_FROM,
    asked_words,
    is_beginning,
    is_misspelling,
    synonyms,
    words_of,
)
from parley.registry.records import (
    COMPARISONS,
    ORDERS,
    Constraint,
    EntryDraft,
    EntrySelection,
    EntryStanding,
    Order,
)
from parley.registry.sql import SQL_FILES

TIMES = {"registry.createdAt": "is_created", "registry.updatedAt": "is_updated"}
"""The index's own times of entries, and the SQL pieces that compare them."""

MAX_TERMS = 2_000
"""A constraint that matches more values is checked for each entry."""

SINGLE_LOOKUPS = 4
"""Up to this number, values are looked up one by one, which is faster than a list."""

SMALL_SELECTION = 20_000
"""If a constraint matches fewer entries, a search begins with those entries."""

MAX_COMPARED = 10_000
"""The number of entries a search compares: about 10 ms."""

MAX_MATCHES = 1_000
"""The most entries that a need matches."""

MAX_RANKED = 150
"""The number of matches ranked by coverage; the others follow in the order of BM25."""

MIN_MATCHES = 100
"""With fewer matches, a narrowed search is widened, and no match is cut off."""

CUTOFF = 0.1
"""With more matches, matches below this fraction of the best are cut off."""

MAX_PREFIX_WORDS = 4
"""The number of words of a need that may match as prefixes."""

MAX_PREFIX_MATCHES = 20
"""The number of words a prefix matches: the most frequent."""

MAX_CORRECTION_CANDIDATES, MAX_CORRECTIONS = 1_000, 3
"""The number of frequent words with the same first two letters that are considered as corrections
of a word that no entry has; and the number of corrections used.
"""

WEIGHTS = ("A", "B", "C", "D")
COVERAGE = {"A": 1.0, "B": 1.0, "C": 0.9, "D": 0.75}
"""How much of a word of a need an entry covers, by the strongest text with the word."""

PREFIX_WEIGHT, CORRECTION_WEIGHT, SYNONYM_WEIGHT = 0.8, 0.7, 0.6
"""How much a match counts by prefix, by correction, and by synonym."""

MIN_SYNONYM_COVERAGE = 0.3
"""How much of a need an entry must cover if it matches by synonyms only."""

OCCURRENCE_WEIGHTS = {"A": 1.0, "B": 1.0, "C": 0.9, "D": 0.5}
"""How much an occurrence of a word counts, by the weight of its text."""

SATURATION, LENGTH = 1.2, 0.3
"""The parameters of BM25: the saturation of repeated words (k1), and the influence of the length of
an entry's texts (b).
"""

RELATIVE_SHARE = 0.7
"""The fraction of a score that depends on the rank relative to the best match; the rest is
coverage.
"""

T = TypeVar("T")

Ranked = list[tuple[int, float]]
"""Keys of entries with their scores between 0 and 1."""


class ChangedEntry(msgspec.Struct, frozen=True):
    """A changed entry, with the number of the change."""

    change: int
    key: int
    standing: str
    created_at: int
    updated_at: int
    draft: EntryDraft
    health: str
    liveness: str


class Conditions(msgspec.Struct):
    """The conditions of a statement on entries.

    If one demand leaves few entries, ``few`` is its position, and the value of that name its terms.
    """

    demands: list[str]
    values: dict[str, Any]
    few: int | None = None

    @property
    def text(self) -> str:
        """The conditions as one SQL expression."""
        return " AND ".join(self.demands) or "1 = 1"


class AskedWord(msgspec.Struct, frozen=True):
    """A word of a need: its weight, larger for rarer words, and the matching words of entries, each
    with how much it counts and its own weight.
    """

    weight: float
    meant: Mapping[str, tuple[float, float]]
    entries: int
    synonyms: frozenset[str] = frozenset()


class EntrySearch:
    """The searched entries. ``change`` is the number of the last added change.

    Its functions run in a separate thread, one after another.
    """

    def __init__(self) -> None:
        self.change = 0
        self._thread: ThreadPoolExecutor | None = None
        self._tables: SearchTables | None = None

    async def run(self, work: Callable[[SearchTables], T]) -> T:
        """Run a function on the tables; return its result."""
        return await self._in_thread(lambda: work(self._made()))

    async def put(self, changed: Sequence[ChangedEntry]) -> None:
        """Add entries in the order of their changes."""
        await self.run(lambda tables: tables.put(changed))
        self.change = changed[-1].change

    async def forget(self) -> None:
        """Remove all entries, before they are added anew."""
        await self._in_thread(self._close)
        self.change = 0

    async def close(self) -> None:
        """Finish the running function, and remove the data. Idempotent."""
        if self._thread is not None:
            await self.forget()
            self._thread.shutdown(wait=False)
            self._thread = None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="registry-search")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _made(self) -> SearchTables:
        if self._tables is None:
            self._tables = SearchTables.made()
        return self._tables

    def _close(self) -> None:
        if self._tables is not None:
            self._tables.connection.close()
            self._tables = None


@cache
def _statements() -> tuple[Mapping[str, str], Mapping[str, str], Mapping[str, str]]:
    return (
        SQL_FILES.queries("search", "schema.sql"),
        SQL_FILES.queries("search", "finding.sql"),
        SQL_FILES.pieces("search", "finding.sql"),
    )


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class SearchTables:
    """The tables of a search, owned by one thread."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        _, self._sql, self._pieces = _statements()

    @classmethod
    def made(cls) -> SearchTables:
        """Return new tables, in a temporary file without a name."""
        connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in _statements()[0].values():
            connection.execute(statement)
        return cls(connection)

    def _rows(self, name: str, **values: Any) -> list[Any]:
        return self.connection.execute(self._sql[name], values).fetchall()

    def ask(self, statement: str, values: Mapping[str, Any]) -> list[Any]:
        """Return the rows of a composed statement."""
        return self.connection.execute(statement, dict(values)).fetchall()

    def _many(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.connection.executemany(self._sql[name], rows)

    # Changes

    def put(self, changed: Sequence[ChangedEntry]) -> None:
        """Add entries, each replacing the entry with its key."""
        last = {each.key: each for each in changed}
        words = [
            {"key": each.key} | dict(zip("abcd", words_by_weight(each.draft.texts), strict=True))
            for each in last.values()
            if each.standing != EntryStanding.WITHDRAWN.value
        ]
        values = {each.key: _values(each) for each in last.values()}
        terms = {id: term for found in values.values() for id, term in found.items()}
        with undone_on_error(self.connection):
            self.connection.execute("BEGIN")
            self._remove(list(last))
            self._many("put_entries", [_columns(each) for each in last.values()])
            self._many(
                "put_audiences",
                [
                    {"key": each.key, "token": token}
                    for each in last.values()
                    for token in each.draft.audience
                ],
            )
            self._many("put_terms", map(msgspec.structs.asdict, terms.values()))
            self._many(
                "put_entry_terms",
                [{"key": key, "term_id": id} for key, found in values.items() for id in found],
            )
            self._many("put_words", words)
            self.connection.execute("COMMIT")

    def remove(self, keys: Iterable[int]) -> None:
        """Remove entries that the database no longer has."""
        self._remove(list(keys))

    def _remove(self, keys: Sequence[int]) -> None:
        removed = {"keys": _json(keys)}
        old = [id for (id,) in self._rows("terms_of_entries", **removed)]
        for name in ("words", "entry_terms", "audiences", "entries"):
            self.connection.execute(self._sql[f"remove_{name}"], removed)
        if old:
            self.connection.execute(self._sql["prune_terms"], {"ids": _json(old)})

    # Searches, counts, facets and lists

    def search(self, selection: EntrySelection, limit: int, offset: int) -> Ranked:
        """Return some of the entries that match, the best first, then by key."""
        if selection.words:
            return self.matches(selection)[offset : offset + limit]
        return [(key, 0.0) for key in self.browse(selection, (), limit, offset)]

    def count(self, selection: EntrySelection) -> int:
        """Return how many entries a selection has."""
        if selection.words:
            return len(self.matches(selection))
        conditions = self._conditions(selection)
        if conditions is None:
            return 0
        [(number,)] = self.ask(self._filled("count", conditions), conditions.values)
        return int(number)

    def browse(
        self, selection: EntrySelection, order: Sequence[Order], limit: int, offset: int
    ) -> list[int]:
        """Return the keys of some entries in an order."""
        conditions = self._with_words(selection)
        if conditions is None:
            return []
        parts = [f"e.{ORDERS[each.field]}{' DESC' if each.descending else ''}" for each in order]
        # The key has the direction of the last field, so that an index covers the whole order.
        parts.append(f"e.key{' DESC' if order and order[-1].descending else ''}")
        statement = self._filled("browse", conditions).replace("{order}", ", ".join(parts))
        values = {**conditions.values, "limit": limit, "offset": offset}
        return [int(key) for (key,) in self.ask(statement, values)]

    def facet(
        self, selection: EntrySelection, field: str, limit: int, min_count: int
    ) -> tuple[list[tuple[str, int]], int]:
        """Return values of a field with their counts, and the number of entries with
        other values.
        """
        conditions = self._with_words(selection)
        if conditions is None:
            return [], 0
        is_of_few = conditions.few is not None or "keys" in conditions.values
        values = {**conditions.values, "field": clean(field[:MAX_FIELD])}
        # One row more than needed: with a limit of 0, it returns the sum as well.
        statement = self._filled("facet_of_few" if is_of_few else "facet", conditions)
        rows = self.ask(statement, {**values, "limit": max(limit, 1), "min_count": min_count})
        if not rows and min_count > 1:
            rows = self.ask(statement, {**values, "limit": 1, "min_count": 1})
            return [], int(rows[0][2]) if rows else 0
        buckets = [(str(value), int(number)) for value, number, _ in rows[:limit]]
        total = int(rows[0][2]) if rows else 0
        return buckets, total - sum([number for _, number in buckets])

    def matches(self, selection: EntrySelection) -> Ranked:
        """Return the entries that match the words of a selection, the best first."""
        conditions = self._conditions(selection)
        asked = self._asked(selection.words) if conditions is not None else []
        known = sorted([word for word in asked if word.meant], key=lambda word: word.entries)
        if conditions is None or not known:
            return []
        if conditions.few is not None:
            conditions.demands[conditions.few] = self._pieces["is_one_of_few"]
        statement = self._pieces["matches"].replace("{conditions}", conditions.text)
        found: Ranked = []
        for query in _queries(known[:MAX_ASKED], are_few=conditions.few is not None):
            values = {
                **conditions.values,
                "query": query,
                "budget": MAX_COMPARED,
                "limit": MAX_MATCHES,
            }
            found = [(int(key), float(rank)) for key, rank in self.ask(statement, values)]
            if len(found) >= MIN_MATCHES:
                break
        missing = sum([not word.meant for word in asked])
        return _cut(self._ranked(known[:MAX_ASKED], missing, found))

    def _ranked(self, known: Sequence[AskedWord], missing: int, found: Ranked) -> Ranked:
        """Return entries with their scores: the first entries by coverage, the others by their BM25
        relative to the last of the first.
        """
        first = {key: rank for key, rank in found[:MAX_RANKED]}
        rows = self._rows("words_of_entries", keys=_json(list(first)))
        ranked = rank_all(known, {key: texts for key, *texts in rows}, missing)
        ordered = sorted(ranked.items(), key=lambda each: (-each[1], each[0]))
        if len(found) > MAX_RANKED and ordered:
            least, last = ordered[-1][1], found[MAX_RANKED - 1][1] or 1.0
            ordered += [(key, least * min(1.0, rank / last)) for key, rank in found[MAX_RANKED:]]
        return ordered

    # Conditions

    def _with_words(self, selection: EntrySelection) -> Conditions | None:
        """Return the conditions of a selection, including the entries that match its words."""
        if not selection.words:
            return self._conditions(selection)
        keys = [key for key, _ in self.matches(selection)]
        if not keys:
            return None
        return Conditions([self._pieces["is_key"]], {"keys": _json(keys)})

    def _filled(self, piece: str, conditions: Conditions) -> str:
        """Return a statement with its conditions, the most selective first."""
        source = self._pieces["from_entries"]
        if "keys" in conditions.values:
            source = self._pieces["from_keys"]
        elif conditions.few is not None:
            source = self._pieces["from_terms"]
        statement = self._pieces[piece].replace("{source}", source)
        return statement.replace("{conditions}", conditions.text)

    def _conditions(self, selection: EntrySelection) -> Conditions | None:
        """Return the conditions of a selection without its words, ``None`` if no entry
        can match.
        """
        pieces = self._pieces
        found = Conditions([], {})
        standings = sorted({standing.value for standing in selection.standings})
        if not standings:
            return None
        if len(standings) == 1:
            found.demands.append(pieces["has_standing"])
            found.values["standing"] = standings[0]
        else:
            found.demands.append(pieces["has_standings"])
            found.values["standings"] = _json(standings)
        viewer = selection.viewer
        if viewer.tokens and not viewer.sees_all:
            found.demands.append(pieces["is_visible"])
            found.values["tokens"] = _json([clean(token) for token in viewer.tokens])
        elif not viewer.sees_all:
            found.demands.append(pieces["is_public"])
        if selection.keys is not None:
            if not selection.keys:
                return None
            found.demands.append(pieces["is_key"])
            found.values["keys"] = _json(sorted(set(selection.keys)))
        fewest = SMALL_SELECTION
        for number, constraint in enumerate(selection.constraints):
            if constraint.field in TIMES and constraint.operator in COMPARISONS:
                self._add_times(found, constraint, number)
                continue
            terms = self._terms(constraint, number)
            if not terms and not constraint.negated:
                return None
            if not terms:
                continue
            self._add(found, terms, number, "NOT " if constraint.negated else "")
            if isinstance(terms, dict) and not constraint.negated and sum(terms.values()) < fewest:
                fewest, found.few = sum(terms.values()), len(found.demands) - 1
                found.values["few"] = _json(sorted(terms))
        return found

    def _add(
        self,
        found: Conditions,
        terms: dict[int, int] | tuple[str, Mapping[str, Any]],
        number: int,
        negation: str,
    ) -> None:
        """Add a constraint with the ids of its values, or with its condition."""
        if isinstance(terms, tuple):
            demand, values = terms
            found.values.update(values)
        elif len(terms) <= SINGLE_LOOKUPS:
            names = {f"{number}_{count}": id for count, id in enumerate(sorted(terms))}
            found.values.update({f"term_{name}": id for name, id in names.items()})
            each = [self._pieces["has_term"].replace("{n}", name) for name in names]
            demand = f"({' OR '.join(each)})"
        else:
            demand = self._pieces["has_terms"].replace("{n}", str(number))
            found.values[f"terms_{number}"] = _json(sorted(terms))
        found.demands.append(negation + demand)

    def _add_times(self, found: Conditions, constraint: Constraint, number: int) -> None:
        """Add a comparison with times of the index; a value that is not a time matches no entry."""
        piece = self._pieces[TIMES[constraint.field]]
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
        self, constraint: Constraint, number: int
    ) -> dict[int, int] | tuple[str, Mapping[str, Any]]:
        """Return the matching values of a constraint with their numbers of entries; for too many
        values, a condition.
        """
        field = clean(constraint.field[:MAX_FIELD])
        if constraint.operator == "eq":
            ids = sorted({term_id(field, normalized(value)) for value in constraint.values})
            return dict(self._rows("known_terms", ids=_json(ids), enough=SMALL_SELECTION))
        values: dict[str, Any] = {f"field_{number}": field}
        comparisons = []
        for count, value in enumerate(constraint.values):
            name = f"value_{number}_{count}"
            kind, values[name] = _compared(value, constraint.operator)
            piece = self._pieces[kind].replace("{value}", name)
            comparisons.append(
                piece.replace("{operator}", COMPARISONS.get(constraint.operator, ""))
            )
        if not comparisons:
            return {}

        def statement(piece: str) -> str:
            text = self._pieces[piece].replace("{n}", str(number))
            text = text.replace("{entries_of_term}", self._pieces["entries_of_term"])
            return text.replace("{comparisons}", " OR ".join(comparisons))

        limited = {**values, "limit": MAX_TERMS + 1, "enough": SMALL_SELECTION}
        rows = self.ask(statement("terms_of_field"), limited)
        if len(rows) <= MAX_TERMS:
            return dict(rows)
        return statement("has_value"), values

    # Words

    def _asked(self, need: str) -> list[AskedWord]:
        """Return the words of a need, each with the matching words of entries."""
        asked = asked_words(need)
        near = {word: synonyms().get(word, ()) for word in asked}
        sought = {*asked, *[each for found in near.values() for each in found]}
        known: dict[str, int] = dict(self._rows("known_words", words=_json(sorted(sought))))
        [(total,)] = self._rows("total")
        found = []
        beginnings = 0
        for word in asked:
            counts: dict[str, float] = {}
            if word in known:
                counts[word] = 1.0
            if beginnings < MAX_PREFIX_WORDS and is_beginning(word, known.get(word, 0)):
                beginnings += 1
                meant = self._beginning_with(word, MAX_PREFIX_MATCHES)
                counts |= {each: PREFIX_WEIGHT for each, _ in meant if each != word}
                if not meant and not near[word]:
                    meant = self._misspelled(word)
                    counts |= {each: CORRECTION_WEIGHT for each, _ in meant}
                known |= dict(meant)
            others = {
                each: SYNONYM_WEIGHT for each in near[word] if each in known and each not in counts
            }
            counts |= others
            weight = _weight(known.get(word, 0), total)
            found.append(
                AskedWord(
                    weight,
                    {
                        each: (part, min(weight, _weight(known[each], total)))
                        for each, part in counts.items()
                    },
                    sum([known[each] for each in counts]),
                    frozenset(others),
                )
            )
        return found

    def _beginning_with(self, beginning: str, limit: int) -> list[tuple[str, int]]:
        end = f"{beginning}\U0010ffff"
        return self._rows("words_from", beginning=beginning, end=end, limit=limit)

    def _misspelled(self, word: str) -> list[tuple[str, int]]:
        """Return the possible corrections of a word, the most frequent first."""
        if len(word) < MISSPELLED_FROM:
            return []
        near = self._beginning_with(word[:2], MAX_CORRECTION_CANDIDATES)
        return [row for row in near if is_misspelling(word, row[0])][:MAX_CORRECTIONS]


def asked_of(need: str) -> list[AskedWord]:
    """Return the words of a need for entries outside an index: all have the same weight."""
    return [
        AskedWord(
            1.0,
            {word: (1.0, 1.0)} | {each: (SYNONYM_WEIGHT, 1.0) for each in synonyms().get(word, ())},
            0,
            frozenset(synonyms().get(word, ())),
        )
        for word in asked_words(need)[:MAX_ASKED]
    ]


def rank_all(
    asked: Sequence[AskedWord], entries: Mapping[int, Sequence[str]], missing: int = 0
) -> dict[int, float]:
    """Return how well entries match a need, between 0 and 1, from their words by weight.

    ``missing`` is the number of further words of the need, which no entry has. Entries that match
    by synonyms only, and cover little, are left out.
    """
    sought = {each for word in asked for each in word.meant}
    found = {key: _occurrences(texts, sought) for key, texts in entries.items()}
    average = sum([length for _, _, length in found.values()]) / max(1, len(found)) or 1
    ranks: dict[int, float] = {}
    covered: dict[int, float] = {}
    for key, (often, covers, length) in found.items():
        ending = SATURATION * (1 - LENGTH + LENGTH * length / average)
        rank = cover = 0.0
        is_literal = False
        for word in asked:
            has = [(each, *word.meant[each]) for each in word.meant if each in often]
            if has:
                rank += max(
                    [
                        part * weight * often[each] / (often[each] + ending)
                        for each, part, weight in has
                    ]
                )
                cover += max([part * covers[each] for each, part, _ in has])
                is_literal = is_literal or any(each not in word.synonyms for each, _, _ in has)
        cover /= max(1, len(asked) + missing)
        if rank and (is_literal or cover >= MIN_SYNONYM_COVERAGE):
            ranks[key], covered[key] = rank, cover
    best = max(ranks.values(), default=1.0)
    return {
        key: covered[key] * (1 - RELATIVE_SHARE + RELATIVE_SHARE * rank / best)
        for key, rank in ranks.items()
    }


def _occurrences(
    texts: Sequence[str], sought: Collection[str]
) -> tuple[dict[str, float], dict[str, float], int]:
    """Return how much the occurrences of each word count, how much each word covers, and the number
    of words in the texts.
    """
    often: dict[str, float] = {}
    covers: dict[str, float] = {}
    length = 0
    for text, weight in zip(texts, WEIGHTS, strict=True):
        words = text.split()
        length += len(words)
        for word in [word for word in words if word in sought]:
            often[word] = often.get(word, 0.0) + OCCURRENCE_WEIGHTS[weight]
            covers.setdefault(word, COVERAGE[weight])
    return often, covers, length


def _weight(entries: int, total: int) -> float:
    """Return the weight of a word by the number of entries that have it."""
    return math.log1p((max(0, total - entries) + 0.5) / (entries + 0.5))


def _queries(known: Sequence[AskedWord], *, are_few: bool) -> Iterator[str]:
    """Yield the queries to try in turn while too few entries are found. The words are the rarest
    first.

    A query finds entries with any of the words; with the rarest words only, if all words match more
    entries than can be ranked. If even those are too many, entries with all words come first, then
    entries with any of the words in the strongest texts. If a constraint leaves few entries, all
    words are used.
    """
    if are_few:
        yield _any_of(known)
        return
    rare: list[AskedWord] = []
    entries = 0
    for word in known:
        entries += word.entries
        if rare and entries > MAX_COMPARED:
            break
        rare.append(word)
    if known[0].entries > MAX_COMPARED:
        if len(known) > 1:
            yield " AND ".join([f"({_any_of([word])})" for word in known])
        yield f"{{a}} : ({_any_of(known)})"
    others = _any_of(known)
    # The other words exclude no entry: they rank the entries that the rare words find.
    yield others if len(rare) == len(known) else f"({_any_of(rare)}) AND ({others})"


def _any_of(words: Sequence[AskedWord]) -> str:
    return " OR ".join([f'"{each}"' for word in words for each in word.meant])


def _cut(found: Ranked) -> Ranked:
    """Return matches without those far worse than the best."""
    if len(found) <= MIN_MATCHES:
        return found
    least = found[0][1] * CUTOFF
    likely = [each for each in found if each[1] >= least]
    return likely if len(likely) > MIN_MATCHES else found[:MIN_MATCHES]


def _compared(value: str, operator: str) -> tuple[str, Any]:
    """Return the SQL piece that compares with a value, and the value to compare with."""
    normal = normalized(value)
    if operator == "contains":
        return "contains", normal
    number = number_in(normal)
    if number is not None:
        return "number", number
    instant = instant_in(normal)
    return ("text", normal) if instant is None else ("instant", instant)


def _columns(changed: ChangedEntry) -> dict[str, Any]:
    return {
        **list_columns(changed.draft),
        "key": changed.key,
        "standing": changed.standing,
        "created_at": changed.created_at,
        "updated_at": changed.updated_at,
    }


def _values(changed: ChangedEntry) -> dict[int, Term]:
    observed = [term(HEALTH_FIELD, changed.health), term(LIVENESS_FIELD, changed.liveness)]
    measured = {each.id: each for each in observed if each.normalized}
    return terms_of(changed.draft) | measured


def words_by_weight(texts: Mapping[str, str]) -> list[str]:
    """Return the words of an entry's texts, one string for each weight."""
    return [" ".join(words_of(texts.get(at, ""), all_words=at in "AB")) for at in WEIGHTS]
