"""Measures the index of a registry: ``python benchmarks/registry.py [options]``.

    python benchmarks/registry.py                       100,000 entries, SQLite and PostgreSQL
    python benchmarks/registry.py --entries 10000
    python benchmarks/registry.py --engines sqlite --queries 1000

Entries are made from the words in ``registry_words/``, always the same ones: agents of 25 areas
with invented names, descriptions of two to four sentences, skills, tags and cards of 2 KB, from 500
publishers; every twentieth has an audience. Needs are of one word to a sentence, also of words
that are everywhere. What is measured is the call of the index, one at a time; "plain" searches have
no filter, "filtered" ones are restricted by tag, type, publisher or mode.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import re
import tempfile
import time
from bisect import bisect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import machine
import services
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.urls import open_index
from parley.registry.records import (
    Authority,
    Constraint,
    EntryDraft,
    EntrySelection,
    EntryStanding,
    Order,
    Viewer,
)

WORDS = Path(__file__).parent / "registry_words"
BATCH = 1_000
PUBLISHERS = 500
A2A, MCP = "application/a2a-agent-card+json", "application/mcp-server-card+json"
MODES = ("text/plain", "application/json", "image/png", "audio/mpeg")


def lines(name: str) -> list[str]:
    """Return the lines of a file of words."""
    text = (WORDS / f"{name}.txt").read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


class Words:
    """Chooses words, those that stand first more often, always in the same way."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.areas: list[tuple[str, list[str], list[str]]] = []
        for line in lines("areas"):
            name, rest = line.split(":")
            verbs, objects = rest.split("|")
            self.areas.append((name, verbs.split(), objects.split()))
        self.common = " ".join(lines("common")).split()
        self.places = " ".join(lines("places")).split()

    def one_of(self, words: Sequence[str], *, skew: float = 3.0) -> str:
        sums = list(itertools.accumulate([1 / (at + skew) for at in range(len(words))]))
        return words[bisect(sums, self.chance.random() * sums[-1])]

    def name(self) -> str:
        """Return an invented name: most are rare."""
        parts = ("ka", "lo", "mi", "ru", "ten", "vor", "sa", "qui", "bel", "dra", "nex", "phy")
        return "".join([self.chance.choice(parts) for _ in range(self.chance.randint(2, 4))])

    def filled(self, sentence: str, verbs: Sequence[str], objects: Sequence[str]) -> str:
        """Return a sentence with its words chosen."""
        choices: dict[str, Callable[[], str]] = {
            "verb": lambda: self.one_of(verbs),
            "Verb": lambda: self.one_of(verbs).title(),
            "object": lambda: self.one_of(objects),
            "place": lambda: self.one_of(self.places),
            "common": lambda: self.one_of(self.common),
        }
        return re.sub(r"\{(\w+)\}", lambda found: choices[found[1]](), sentence)


def drafts(count: int) -> Iterator[EntryDraft]:
    """Make entries."""
    words, sentences = Words(1), lines("sentences")
    for number in range(count):
        yield draft(number, words, sentences)


def draft(number: int, words: Words, sentences: Sequence[str]) -> EntryDraft:
    chance = words.chance
    area, verbs, objects = words.areas[int(len(words.areas) * chance.random() ** 1.5)]
    verb, thing = words.one_of(verbs), words.one_of(objects)
    name = f"{words.name().title()} {thing} {verb}er"
    text = " ".join(
        [
            words.filled(chance.choice(sentences), verbs, objects)
            for _ in range(chance.randint(2, 4))
        ]
    )
    skills = [
        {
            "id": f"{words.one_of(verbs)}{words.one_of(objects).title()}",
            "name": f"{words.one_of(verbs).title()} {words.one_of(objects)}s",
            "description": words.filled(chance.choice(sentences), verbs, objects),
            "tags": [area, words.one_of(objects)],
        }
        for _ in range(chance.randint(1, 4))
    ]
    publisher = f"{words.one_of([f'publisher{n}' for n in range(PUBLISHERS)])}.example"
    identifier = f"urn:air:{publisher}:{area}:{name.replace(' ', '-').lower()}-{number}"
    kind = A2A if chance.random() < 0.9 else MCP
    queries = [
        f"{verb} {thing}s",
        f"{words.one_of(verbs)} a {thing} in {words.one_of(words.places)}",
    ]
    tags = (area, verb, thing, words.one_of(words.common))
    entry = {
        "identifier": identifier,
        "displayName": name,
        "type": kind,
        "url": f"https://{publisher}/agents/{number}/agent-card.json",
        "description": text,
        "tags": tags,
        "representativeQueries": queries,
        "updatedAt": f"2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}T12:00:00Z",
    }
    card = {
        "name": name,
        "description": text,
        "version": f"{chance.randint(0, 5)}.{chance.randint(0, 20)}.0",
        "skills": skills,
        "supportedInterfaces": [{"url": f"https://{publisher}/a2a", "protocolBinding": "JSONRPC"}],
        "more": "x" * 800,
    }
    modes = tuple(mode for mode in MODES if chance.random() < 0.4)
    return EntryDraft(
        identifier=identifier,
        source=f"https://{publisher}/.well-known/ai-catalog.json",
        publisher=publisher,
        entry=entry,
        version=str(card["version"]),
        type=kind,
        url=str(entry["url"]),
        authority=Authority.DOMAIN,
        standing=EntryStanding.LISTED,
        card=json.dumps(card).encode() if kind == A2A else None,
        fields={
            "tags": tags,
            "updatedAt": (str(entry["updatedAt"]),),
            "card.skills.id": tuple(str(skill["id"]) for skill in skills),
            "card.skills.tags": tuple(str(tag) for skill in skills for tag in skill["tags"]),
            "card.modes": modes,
            "card.bindings": ("JSONRPC",),
            "card.versions": ("1.0",) if chance.random() < 0.6 else ("1.0", "0.3"),
            "metadata.region": (words.one_of(words.places),),
        },
        texts={
            "A": " ".join([name, *queries]),
            "B": " ".join([f"{skill['id']} {skill['name']}" for skill in skills] + list(tags)),
            "C": " ".join([text] + [str(skill["description"]) for skill in skills]),
            "D": publisher,
        },
        audience=("team",) if number % 20 == 0 else (),
    )


def selections(count: int, *, filtered: bool) -> list[EntrySelection]:
    """Make needs."""
    words, needs = Words(2), lines("needs")
    made = []
    for number in range(count):
        area, verbs, objects = words.chance.choice(words.areas)
        constraints = [
            Constraint(field="tags", values=(area,)),
            Constraint(field="type", values=(A2A,)),
            Constraint(field="publisher", values=(f"publisher{number % PUBLISHERS}.example",)),
            Constraint(field="card.modes", values=MODES[:2], negated=True),
        ]
        made.append(
            EntrySelection(
                words=words.filled(needs[number % len(needs)], verbs, objects),
                constraints=(words.chance.choice(constraints),) if filtered else (),
                viewer=Viewer(tokens=("team",)) if number % 3 == 0 else Viewer(),
            )
        )
    return made


async def times(asked: Sequence[Callable[[], Awaitable[object]]]) -> list[float]:
    """Return how long each of some calls takes, in ms, in order of size."""
    took = []
    for ask in asked:
        began = time.perf_counter()
        await ask()
        took.append((time.perf_counter() - began) * 1000)
    return sorted(took)


def show(name: str, took: Sequence[float]) -> None:
    p50, p99 = took[len(took) // 2], took[min(len(took) - 1, int(len(took) * 0.99))]
    print(f"  {name:32} p50 {p50:7.1f} ms   p99 {p99:7.1f} ms   worst {took[-1]:7.1f} ms")


async def measure(index: RegistryIndex, entries: int, queries: int, *, slow: bool) -> None:
    """Fill an index, and measure what it is asked."""
    await index.open()
    made = drafts(entries)
    spent = 0.0
    while batch := list(itertools.islice(made, BATCH)):
        began = time.perf_counter()
        await index.put(batch)
        spent += time.perf_counter() - began
    print(f"  {'put, a thousand at once':32} {entries / spent:,.0f} entries/s")
    again = list(itertools.islice(drafts(entries), BATCH))
    [unchanged] = await times([lambda: index.put(again)])
    print(f"  {'put again, unchanged':32} {len(again) / unchanged * 1000:,.0f} entries/s")
    for name, filtered in (("search, plain", False), ("search, filtered", True)):
        asked = selections(queries, filtered=filtered)
        took = await times([lambda each=each: index.search(each, 10, 0) for each in asked])
        show(name, took)
        if slow:
            for each in asked:
                [one] = await times([lambda each=each: index.search(each, 10, 0)])
                if one > 20:
                    print(f"    {one:6.1f} ms  {each.words!r} {each.constraints}")
    few = EntrySelection(constraints=(Constraint(field="tags", values=("cruise",)),))
    every = EntrySelection()
    by_name = [Order(field="displayName")]
    show("facet of all, by tag", await times([lambda: index.facet(every, "tags", 20, 1)] * 3))
    show(
        "facet of few, by publisher",
        await times([lambda: index.facet(few, "publisher", 20, 1)] * 9),
    )
    needs = selections(50, filtered=False)
    found = [lambda each=each: index.facet(each, "tags", 20, 1) for each in needs]
    show("facet of a search", await times(found))
    show("list, by name", await times([lambda: index.browse(every, by_name, 20, 0)] * 30))
    show("list, page 500", await times([lambda: index.browse(every, by_name, 20, 10_000)] * 9))
    show("list of a tag", await times([lambda: index.browse(few, by_name, 20, 0)] * 30))
    show("count of all", await times([lambda: index.count(every)] * 9))
    await index.close()


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=480)
    parser.add_argument("--engines", default="sqlite,postgres")
    parser.add_argument("--slow", action="store_true", help="show searches of more than 20 ms")
    options = parser.parse_args()
    print(", ".join([f"{name} {value}" for name, value in machine.describe().items()]))
    with (
        tempfile.TemporaryDirectory(prefix="parley-bench-") as folder,
        contextlib.ExitStack() as on,
    ):
        for engine in options.engines.split(","):
            if engine == "sqlite":
                url = f"sqlite:///{folder}/registry.db"
            else:
                url = on.enter_context(services.postgres(Path(folder) / "postgres")).database()
            print(f"{engine}, {options.entries:,} entries")
            asyncio.run(
                measure(open_index(url), options.entries, options.queries, slow=options.slow)
            )


if __name__ == "__main__":
    main()
