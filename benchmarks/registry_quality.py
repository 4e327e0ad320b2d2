"""Measures how good searches of a registry are by words, meaning, and both: nDCG@10, recall@10, and
how often the first entry is right.

    python -m benchmarks.registry_quality [--index memory:] [--each]

The agents and the needs with their graded answers (3: what is asked for, 1: of some help) stand in
tests/data/registry/: queries.json has needs of several kinds, ordinary.json what people ask for in
a sentence, in English and in Chinese. They were written for this benchmark: see
docs/guides/registry/search.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from parley.registry.catalog.entries import AirUrn
from parley.registry.catalog.reading import read_catalog, write_entry
from parley.registry.catalog.searching import QueryModel, SearchRequest
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.urls import open_index
from parley.registry.records import Authority, EntryDraft, EntryStanding
from parley.registry.search.searcher import Searcher
from parley.registry.search.texts import texts_of

DATA = Path(__file__).resolve().parents[1] / "tests" / "data" / "registry"
DEPTH = 10


class Need(msgspec.Struct, frozen=True):
    """A need with the grades of the entries that meet it."""

    text: str
    kind: str
    relevant: Mapping[str, int]


class Quality(msgspec.Struct, frozen=True):
    """How good a ranking is on average: 1 is perfect. ``first`` counts the needs whose first entry
    is right.
    """

    ndcg: float
    recall: float
    first: int


def needs(file: str = "queries.json") -> list[Need]:
    """Return the needs of a file."""
    document = json.loads((DATA / file).read_text(encoding="utf-8"))
    return msgspec.convert(document["queries"], list[Need])


def drafts() -> list[EntryDraft]:
    """Return the agents of the set as a registry keeps them."""
    catalog = read_catalog((DATA / "catalog.json").read_bytes())
    assert not catalog.rejected
    return [
        EntryDraft(
            identifier=entry.identifier,
            source="https://agents.example/.well-known/ai-catalog.json",
            publisher=AirUrn.parse(entry.identifier).publisher,
            entry=write_entry(entry),
            type=entry.type,
            version=entry.version,
            url=entry.url,
            authority=Authority.OPERATOR,
            standing=EntryStanding.LISTED,
            fields={"tags": entry.tags, "capabilities": entry.capabilities},
            texts=texts_of(entry),
        )
        for entry in catalog.catalog.entries
    ]


def ndcg(ranked: Sequence[str], relevant: Mapping[str, int], depth: int = DEPTH) -> float:
    """Return the normalised discounted cumulative gain of a ranking."""

    def gain(grades: Sequence[int]) -> float:
        return sum(
            [(2**grade - 1) / math.log2(place + 2) for place, grade in enumerate(grades[:depth])]
        )

    ideal = gain(sorted(relevant.values(), reverse=True))
    return gain([relevant.get(each, 0) for each in ranked]) / ideal


def recall(ranked: Sequence[str], relevant: Mapping[str, int], depth: int = DEPTH) -> float:
    """Return the part of the entries with a grade of 2 or 3 that a ranking has."""
    wanted = {each for each, grade in relevant.items() if grade > 1}
    return len(wanted & set(ranked[:depth])) / len(wanted)


async def rankings(searcher: Searcher, asked: Sequence[Need]) -> list[list[str]]:
    """Return the identifiers that are found for each need."""
    found = []
    for need in asked:
        request = SearchRequest(query=QueryModel(text=need.text), page_size=DEPTH)
        answer = await searcher.search(request)
        found.append([str(result.entry["identifier"]) for result in answer.results])
    return found


def quality(found: Sequence[Sequence[str]], asked: Sequence[Need]) -> Quality:
    """Return how good rankings are on average."""
    pairs = list(zip(found, asked, strict=True))
    return Quality(
        sum([ndcg(ranked, need.relevant) for ranked, need in pairs]) / len(pairs),
        sum([recall(ranked, need.relevant) for ranked, need in pairs]) / len(pairs),
        sum([need.relevant.get(ranked[0], 0) == 3 for ranked, need in pairs if ranked]),
    )


async def measured(
    index: RegistryIndex, meaning: Any = None, asked: Sequence[Need] = ()
) -> dict[str, list[list[str]]]:
    """Return the rankings of all ways of searching that there are."""
    asked = asked or needs()
    found = {"words": await rankings(Searcher(index, source="https://r.example"), asked)}
    if meaning is not None:
        await meaning.catch_up()
        both = Searcher(index, source="https://r.example", meaning=meaning)
        found["both"] = await rankings(both, asked)
        identifiers = {entry.key: entry.identifier for entry in await index.changes(0, 1_000)}
        found["meaning"] = [
            [identifiers[key] for key, _ in await meaning.nearest(meaning.read(need.text), DEPTH)]
            for need in asked
        ]
    return found


async def filled(url: str) -> RegistryIndex:
    """Return an index with the agents of the set."""
    index = open_index(url)
    await index.open()
    await index.put(drafts())
    return index


async def _main(url: str, shows_each: bool) -> None:
    index = await filled(url)
    try:
        meaning = None
        try:
            from parley.registry.search.meaning import Meaning

            meaning = Meaning.load(index)
        except ValueError as error:
            print(error)
        asked = [*needs(), *needs("ordinary.json")]
        found = await measured(index, meaning, asked)
    finally:
        await index.close()
    kinds = [*dict.fromkeys(need.kind for need in asked)]
    print(f"{len(drafts())} agents, {len(asked)} needs; nDCG@{DEPTH}, recall@{DEPTH}, first right")
    for kind in kinds:
        chosen = [at for at, need in enumerate(asked) if kind == need.kind]
        for way, rankings_ in found.items():
            result = quality([rankings_[at] for at in chosen], [asked[at] for at in chosen])
            print(
                f"{kind:10} {len(chosen):3}  {way:8} "
                f"nDCG {result.ndcg:.3f}  recall {result.recall:.3f}  first {result.first}"
            )
    if shows_each:
        for at, need in enumerate(asked):
            values = "  ".join(
                f"{way} {ndcg(rankings_[at], need.relevant):.2f}"
                for way, rankings_ in found.items()
            )
            print(f"{values}  {need.text}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", default="memory:")
    parser.add_argument("--each", action="store_true")
    options = parser.parse_args()
    asyncio.run(_main(options.index, options.each))
