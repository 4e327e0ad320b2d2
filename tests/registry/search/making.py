"""Entries for the tests of searches."""

from __future__ import annotations

from typing import Any

from parley.registry.catalog.entries import AirUrn
from parley.registry.catalog.reading import read_entry, write_entry
from parley.registry.records import Authority, EntryDraft, EntryStanding
from parley.registry.search.texts import texts_of

A2A = "application/a2a-agent-card+json"
SOURCE = "https://registry.example.com/"


def draft(name: str, display: str = "", *queries: str, **members: Any) -> EntryDraft:
    """A listed entry after examination. Arguments with a leading _ set fields of the draft."""
    of_draft = {key[1:]: members.pop(key) for key in list(members) if key.startswith("_")}
    publisher = members.pop("publisher", "example.com")
    entry = read_entry(
        {
            "identifier": f"urn:air:{publisher}:agents:{name}",
            "displayName": display or name,
            "type": A2A,
            "url": f"https://{publisher}/{name}.json",
            "representativeQueries": list(queries),
            **members,
        }
    )
    values: dict[str, Any] = {
        "identifier": entry.identifier,
        "source": f"https://{publisher}/.well-known/ai-catalog.json",
        "publisher": AirUrn.parse(entry.identifier).publisher,
        "entry": write_entry(entry),
        "type": entry.type,
        "version": entry.version,
        "url": entry.url,
        "authority": Authority.DOMAIN,
        "standing": EntryStanding.LISTED,
        "fields": {"tags": entry.tags, "type": (entry.type,), "publisher": (publisher,)},
        "texts": texts_of(entry),
    }
    return EntryDraft(**{**values, **of_draft})


def names(found: Any) -> list[str]:
    """The last segments of the identifiers of results or items."""
    entries = [getattr(each, "entry", each) for each in found]
    return [entry["identifier"].rpartition(":")[2] for entry in entries]
