"""The search of an index, in the process: by words, filters, facets and orders, the same for every
database.

A database of SQLite in a temporary file holds what searches look at; nobody else sees it, and it is
gone with the process. The index puts entries as they change, before each question.

An entry is found by a word of a need, and by its synonyms; for a word that no entry has, by words
that begin with it, else by those it may be a misspelling of. Entries are ranked by how much of the
need they cover, and by how rare, frequent and well placed the words are (BM25).
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
"""Times that the index itself has of entries, and the pieces that compare them."""

MAX_TERMS = 2_000
"""A constraint that more values fulfil is checked for each entry."""

SINGLE_LOOKUPS = 4
"""So many values are looked for one by one, which is faster than a list of them."""

FEW = 20_000
"""With fewer entries, a search begins with the entries that fulfil a constraint."""

BUDGET = 10_000
"""How many entries a search compares: about 10 ms."""

MATCHES = 1_000
"""How many entries a need matches at most."""

RANKED = 150
"""How many of them are ranked by what they cover; the others follow in the order of BM25."""

ENOUGH = 100
"""With fewer matches, a search that was narrowed is widened, and none is cut off."""

CUTOFF = 0.1
"""Of more matches, those with less than this part of the best one are cut off."""

BEGINNINGS = 4
"""How many words of a need may stand for those that begin with them."""

EXPANDED = 20
"""How many words a beginning stands for: the most frequent."""

NEIGHBOURS, CORRECTIONS = 1_000, 3
"""Among how many words, the most frequent that begin with the same two letters, one is looked for
that may be meant by a word that no entry has; and how many are taken.
"""

WEIGHTS = ("A", "B", "C", "D")
COVERS = {"A": 1.0, "B": 1.0, "C": 0.9, "D": 0.75}
"""How much of a word of a need an entry covers, by the strongest text with it."""

BEGINNING, MISSPELLED, SYNONYM = 0.8, 0.7, 0.6
"""How much a word counts that stands for one of the need."""

LEAST = 0.3
"""How much of a need an entry must cover that has synonyms of its words alone."""

COUNTS = {"A": 1.0, "B": 1.0, "C": 0.9, "D": 0.5}
"""How much an occurrence of a word counts, by its text."""

SATURATION, LENGTH = 1.2, 0.3
"""How soon more occurrences of a word count no more (k1 of BM25), and how much the length of an
entry's texts does (b).
"""

SPREAD = 0.7
"""How much of a match is by the rank relative to the best one; the rest is by what is covered."""

T = TypeVar("T")

Ranked = list[tuple[int, float]]
"""Keys of entries, and how well they match: between 0 and 1."""


class ChangedEntry(msgspec.Struct, frozen=True):
    """An entry as it changed, under the number of the change."""

    change: int
    key: int
    standing: str
    created_at: int
    updated_at: int
    draft: EntryDraft
    health: str
    liveness: str


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


class AskedWord(msgspec.Struct, frozen=True):
    """A word of a need: its weight, which is larger for rarer ones, and the words of entries that
    stand for it, each with how much it counts and its own weight.
    """

    weight: float
    meant: Mapping[str, tuple[float, float]]
    entries: int
    synonyms: frozenset[str] = frozenset()


class EntrySearch:
    """The entries that searches look at. ``change`` is the last change that was put.

    Its work runs in a thread of its own, one piece after the other.
    """

    def __init__(self) -> None:
        self.change = 0
        self._thread: ThreadPoolExecutor | None = None
        self._tables: SearchTables | None = None

    async def run(self, work: Callable[[SearchTables], T]) -> T:
        """Do work with the tables; return its result."""
        return await self._in_thread(lambda: work(self._made()))

    async def put(self, changed: Sequence[ChangedEntry]) -> None:
        """Put entries in the order of their changes."""
        await self.run(lambda tables: tables.put(changed))
        self.change = changed[-1].change

    async def forget(self) -> None:
        """Remove all entries: they are put anew."""
        await self._in_thread(self._close)
        self.change = 0

    async def close(self) -> None:
        """Finish the running work, and forget everything. Idempotent."""
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
    """The tables of a search, for the thread that has them."""

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
        """Return the rows of a statement that was put together."""
        return self.connection.execute(statement, dict(values)).fetchall()

    def _many(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.connection.executemany(self._sql[name], rows)

    # What changed

    def put(self, changed: Sequence[ChangedEntry]) -> None:
        """Put entries, each in the place of the one of its key."""
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
        """Remove entries that the database does not have any more."""
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
        # In the direction of the last field, so that an index has the whole order.
        parts.append(f"e.key{' DESC' if order and order[-1].descending else ''}")
        statement = self._filled("browse", conditions).replace("{order}", ", ".join(parts))
        values = {**conditions.values, "limit": limit, "offset": offset}
        return [int(key) for (key,) in self.ask(statement, values)]

    def facet(
        self, selection: EntrySelection, field: str, limit: int, min_count: int
    ) -> tuple[list[tuple[str, int]], int]:
        """Return values of a field with their counts, and how many entries have others."""
        conditions = self._with_words(selection)
        if conditions is None:
            return [], 0
        is_of_few = conditions.few is not None or "keys" in conditions.values
        values = {**conditions.values, "field": clean(field[:MAX_FIELD])}
        # One more row than needed: with a limit of 0, the sum is told too.
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
            values = {**conditions.values, "query": query, "budget": BUDGET, "limit": MATCHES}
            found = [(int(key), float(rank)) for key, rank in self.ask(statement, values)]
            if len(found) >= ENOUGH:
                break
        missing = sum([not word.meant for word in asked])
        return _cut(self._ranked(known[:MAX_ASKED], missing, found))

    def _ranked(self, known: Sequence[AskedWord], missing: int, found: Ranked) -> Ranked:
        """Return entries by how well they match: the first ones by what they cover, the others by
        their BM25 relative to the last of those.
        """
        first = {key: rank for key, rank in found[:RANKED]}
        rows = self._rows("words_of_entries", keys=_json(list(first)))
        ranked = rank_all(known, {key: texts for key, *texts in rows}, missing)
        ordered = sorted(ranked.items(), key=lambda each: (-each[1], each[0]))
        if len(found) > RANKED and ordered:
            least, last = ordered[-1][1], found[RANKED - 1][1] or 1.0
            ordered += [(key, least * min(1.0, rank / last)) for key, rank in found[RANKED:]]
        return ordered

    # Conditions

    def _with_words(self, selection: EntrySelection) -> Conditions | None:
        """Return the conditions of a selection, its words among them as the entries that match."""
        if not selection.words:
            return self._conditions(selection)
        keys = [key for key, _ in self.matches(selection)]
        if not keys:
            return None
        return Conditions([self._pieces["is_key"]], {"keys": _json(keys)})

    def _filled(self, piece: str, conditions: Conditions) -> str:
        """Return a statement with its conditions, beginning with what has the fewest entries."""
        source = self._pieces["from_entries"]
        if "keys" in conditions.values:
            source = self._pieces["from_keys"]
        elif conditions.few is not None:
            source = self._pieces["from_terms"]
        statement = self._pieces[piece].replace("{source}", source)
        return statement.replace("{conditions}", conditions.text)

    def _conditions(self, selection: EntrySelection) -> Conditions | None:
        """Return the conditions of a selection but its words, ``None`` if nothing fulfils them."""
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
        fewest = FEW
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
        """Add a constraint, whose ids of values or whose condition are known."""
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
        """Add a comparison with times of the index; no entry fulfils a value that is no time."""
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
        """Return the values that fulfil a constraint with their numbers of entries; if there are
        too many, a condition.
        """
        field = clean(constraint.field[:MAX_FIELD])
        if constraint.operator == "eq":
            ids = sorted({term_id(field, normalized(value)) for value in constraint.values})
            return dict(self._rows("known_terms", ids=_json(ids), enough=FEW))
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

        limited = {**values, "limit": MAX_TERMS + 1, "enough": FEW}
        rows = self.ask(statement("terms_of_field"), limited)
        if len(rows) <= MAX_TERMS:
            return dict(rows)
        return statement("has_value"), values

    # Words

    def _asked(self, need: str) -> list[AskedWord]:
        """Return the words of a need, with the words of entries that stand for each."""
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
            if beginnings < BEGINNINGS and is_beginning(word, known.get(word, 0)):
                beginnings += 1
                meant = self._beginning_with(word, EXPANDED)
                counts |= {each: BEGINNING for each, _ in meant if each != word}
                if not meant and not near[word]:
                    meant = self._misspelled(word)
                    counts |= {each: MISSPELLED for each, _ in meant}
                known |= dict(meant)
            others = {each: SYNONYM for each in near[word] if each in known and each not in counts}
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
        """Return the words that a word may be instead, the most frequent first."""
        if len(word) < MISSPELLED_FROM:
            return []
        near = self._beginning_with(word[:2], NEIGHBOURS)
        return [row for row in near if is_misspelling(word, row[0])][:CORRECTIONS]


def asked_of(need: str) -> list[AskedWord]:
    """Return the words of a need for entries that no index has: all weigh the same."""
    return [
        AskedWord(
            1.0,
            {word: (1.0, 1.0)} | {each: (SYNONYM, 1.0) for each in synonyms().get(word, ())},
            0,
            frozenset(synonyms().get(word, ())),
        )
        for word in asked_words(need)[:MAX_ASKED]
    ]


def rank_all(
    asked: Sequence[AskedWord], entries: Mapping[int, Sequence[str]], missing: int = 0
) -> dict[int, float]:
    """Return how well entries match a need, between 0 and 1, from their words by weight.

    ``missing`` is how many words the need has besides, which no entry has. Entries that have
    synonyms alone, and cover little with them, are left out.
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
        if rank and (is_literal or cover >= LEAST):
            ranks[key], covered[key] = rank, cover
    best = max(ranks.values(), default=1.0)
    return {key: covered[key] * (1 - SPREAD + SPREAD * rank / best) for key, rank in ranks.items()}


def _occurrences(
    texts: Sequence[str], sought: Collection[str]
) -> tuple[dict[str, float], dict[str, float], int]:
    """Return how much the occurrences of words in texts count, how much each word covers, and how
    many words there are.
    """
    often: dict[str, float] = {}
    covers: dict[str, float] = {}
    length = 0
    for text, weight in zip(texts, WEIGHTS, strict=True):
        words = text.split()
        length += len(words)
        for word in [word for word in words if word in sought]:
            often[word] = often.get(word, 0.0) + COUNTS[weight]
            covers.setdefault(word, COVERS[weight])
    return often, covers, length


def _weight(entries: int, total: int) -> float:
    """Return how much finding a word says of an entry, by how many have it."""
    return math.log1p((max(0, total - entries) + 0.5) / (entries + 0.5))


def _queries(known: Sequence[AskedWord], *, are_few: bool) -> Iterator[str]:
    """Yield the queries to try, each if the one before found too little. The words are the rarest
    first.

    Entries with any of the words are found; by the rarest words alone, if all are more than may be
    ranked. If even those are too many, entries with all words go first, then those with one of them
    in what weighs most. Where a constraint leaves few entries, all words count.
    """
    if are_few:
        yield _any_of(known)
        return
    rare: list[AskedWord] = []
    entries = 0
    for word in known:
        entries += word.entries
        if rare and entries > BUDGET:
            break
        rare.append(word)
    if known[0].entries > BUDGET:
        if len(known) > 1:
            yield " AND ".join([f"({_any_of([word])})" for word in known])
        yield f"{{a}} : ({_any_of(known)})"
    others = _any_of(known)
    # The others exclude nothing: they rank what the rare ones find.
    yield others if len(rare) == len(known) else f"({_any_of(rare)}) AND ({others})"


def _any_of(words: Sequence[AskedWord]) -> str:
    return " OR ".join([f'"{each}"' for word in words for each in word.meant])


def _cut(found: Ranked) -> Ranked:
    """Return matches without those that are far worse than the best one."""
    if len(found) <= ENOUGH:
        return found
    least = found[0][1] * CUTOFF
    likely = [each for each in found if each[1] >= least]
    return likely if len(likely) > ENOUGH else found[:ENOUGH]


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
    """Return the words of an entry's texts, those of each weight with spaces between them."""
    return [" ".join(words_of(texts.get(at, ""), all_words=at in "AB")) for at in WEIGHTS]
