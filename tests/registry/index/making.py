"""Entries for the tests of the index."""

from __future__ import annotations

from typing import Any

from parley.registry.index.registry_index import RegistryIndex
from parley.registry.records import (
    Authority,
    Constraint,
    EntryDraft,
    EntrySelection,
    EntryStanding,
    Viewer,
)

A2A = "application/a2a-agent-card+json"
CATALOG = "https://example.com/.well-known/ai-catalog.json"
EVERYBODY = EntrySelection()
OPERATOR = Viewer(sees_all=True)


def identifier(name: str) -> str:
    return f"urn:air:example.com:agents:{name}"


def draft(name: str, text: str = "", **changes: Any) -> EntryDraft:
    """A listed entry with ``text`` as its name and queries."""
    values: dict[str, Any] = {
        "identifier": identifier(name),
        "source": CATALOG,
        "publisher": "example.com",
        "entry": {"identifier": identifier(name), "displayName": changes.pop("title", name)},
        "type": A2A,
        "url": f"https://example.com/{name}.json",
        "authority": Authority.DOMAIN,
        "standing": EntryStanding.LISTED,
        "texts": {"A": text or name},
    }
    return EntryDraft(**{**values, **changes})


def where(field: str, *values: str, operator: str = "eq", negated: bool = False) -> Constraint:
    return Constraint(field=field, values=values, operator=operator, negated=negated)


def short(full: str) -> str:
    return full.rpartition(":")[2]


async def found(index: RegistryIndex, words: str, *constraints: Constraint, **of: Any) -> list[str]:
    """The names of a search's results, the most relevant first."""
    selection = EntrySelection(words=words, constraints=constraints, **of)
    return [short(match.entry.identifier) for match in await index.search(selection, 100, 0)]


async def listed(index: RegistryIndex, *constraints: Constraint, **of: Any) -> set[str]:
    """The names of entries that satisfy constraints; counted in two ways."""
    selection = EntrySelection(constraints=constraints, **of)
    names = [short(each.identifier) for each in await index.browse(selection, (), 1000, 0)]
    assert await index.count(selection) == len(names)
    return set(names)


async def standings(index: RegistryIndex, name: str) -> dict[str, str]:
    """The standings of an identifier's entries, by source."""
    return {each.source: each.standing.value for each in await index.entries_of(identifier(name))}
