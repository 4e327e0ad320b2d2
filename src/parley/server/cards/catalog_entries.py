"""Entries of a catalog, made of the public cards of agents (ARD §4.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest

from parley.model.cards import AgentCard, AgentSkill
from parley.model.catalog.entries import (
    A2A_CARD,
    CATALOG,
    CatalogEntry,
    CatalogHost,
    ProvenanceLink,
    TrustManifest,
)

MIN_QUERIES, MAX_QUERIES = 2, 5
MAX_QUERY = 300
"""The most characters of a query; a longer example is no query that somebody would search by."""

MAX_LABELS = 64
"""The most tags, and the most capabilities, of an entry."""

MAX_DESCRIPTION = 2_000

_SENTENCE = re.compile(r"(.+?[.!?])(?:\s|$)", re.DOTALL)
_SPACES = re.compile(r"\s+")


def agent_entry(
    card: AgentCard, identifier: str, url: str, publisher: str, *, agent_type: str = ""
) -> CatalogEntry:
    """Return the entry of an agent, whose public card is at ``url``. It has no time yet.

    ``agent_type`` is the type that the agent declares, by which messages are routed.
    """
    return CatalogEntry(
        identifier=identifier,
        display_name=card.name,
        type=A2A_CARD,
        url=url,
        description=_cut(card.description, MAX_DESCRIPTION),
        tags=_labels(tag for skill in card.skills for tag in skill.tags),
        capabilities=_labels(skill.id for skill in card.skills),
        representative_queries=queries_of(card.skills),
        version=card.version,
        metadata={"agentType": agent_type} if agent_type else {},
        trust_manifest=manifest_of(identifier, publisher),
        more={"mediaType": A2A_CARD},
    )


def tenant_entry(
    tenant: str, card: AgentCard, identifier: str, url: str, publisher: str
) -> CatalogEntry:
    """Return the entry of the catalog of a tenant, which is at ``url``."""
    return CatalogEntry(
        identifier=identifier,
        display_name=tenant,
        type=CATALOG,
        url=url,
        description=f"The agents of {tenant}: {card.name}.",
        trust_manifest=manifest_of(identifier, publisher),
        more={"mediaType": CATALOG},
    )


def manifest_of(identifier: str, publisher: str) -> TrustManifest:
    """Return the trust manifest of an entry, without a signature.

    ARD wants an identity whose domain is that of the publisher, the AI Catalog one that equals the
    entry's identifier. The identity is the domain, because ARD is what registries search by;
    ``provenance`` names the entry, so that a signature counts for no other one.
    """
    return TrustManifest(
        identity=f"https://{publisher}",
        identity_type="https",
        provenance=(ProvenanceLink(relation="publishedFrom", source_id=identifier),),
    )


def host_of(cards: Iterable[AgentCard], publisher: str) -> CatalogHost:
    """Return who operates the catalog: the provider that all cards name, else the domain."""
    names = {card.provider.organization if card.provider else "" for card in cards}
    name = names.pop() if len(names) == 1 else ""
    return CatalogHost(display_name=name or publisher, identifier=publisher)


def queries_of(skills: Iterable[AgentSkill]) -> tuple[str, ...]:
    """Return two to five queries that the skills answer, none if there are not two.

    Examples come first, one of each skill before the second of any. Where there are not enough,
    the first sentences of descriptions help out, and then names.
    """
    skills = tuple(skills)
    found = _queries(_in_turn(skill.examples for skill in skills))[:MAX_QUERIES]
    for others in ([_first_sentence(s.description) for s in skills], [s.name for s in skills]):
        if len(found) < MIN_QUERIES:
            found = _queries((*found, *others))[:MIN_QUERIES]
    return found if len(found) >= MIN_QUERIES else ()


def _in_turn(lists: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in zip_longest(*lists, fillvalue=""):
        yield from row


def _queries(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts in one line each, without those that are too long, empty or there before."""
    found: dict[str, str] = {}
    for text in texts:
        line = _SPACES.sub(" ", text).strip()
        if 0 < len(line) <= MAX_QUERY:
            found.setdefault(line.casefold(), line)
    return tuple(found.values())


def _first_sentence(text: str) -> str:
    found = _SENTENCE.match(text.strip())
    return found[1] if found else text


def _labels(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in texts if text.strip()))[:MAX_LABELS]


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"
