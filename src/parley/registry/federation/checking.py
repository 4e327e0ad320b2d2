"""Which results of another registry count, and how much: nothing that it says is believed as such.

A result has an entry that is valid, an address that may be called, and matches the filter. What
another registry says of trust, health and marks is left out, and so are its scores. Its order
counts; scores are made here, by the words of the entries.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from parley.client.origin import Origin
from parley.registry.catalog.entries import AirUrn, InvalidUrn
from parley.registry.catalog.reading import write_entry
from parley.registry.catalog.searching import ListedResult
from parley.registry.client.local_catalog import values_at
from parley.registry.client.places import base_of
from parley.registry.federation.upstream import UpstreamPage, UpstreamRegistry
from parley.registry.index.entry_search import asked_of, rank_all, words_by_weight
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.index.selections import Constraint, EntrySelection, Viewer
from parley.registry.records import Authority, EntryStanding, IndexedEntry
from parley.registry.search.searcher import BEST, as_score
from parley.registry.search.searcher import REGISTRY as REGISTRY_MEMBER
from parley.registry.search.texts import marks_of, texts_of
from parley.security.egress import Egress, ForbiddenAddress
from parley.security.networks import is_loopback

MAX_ENTRY = 64 * 1024
MAX_SCORED = 2_000
"""How many characters of each weight of an entry are looked at for its score."""

MAX_CLAIMS = 2_000
"""How many entries of the index are compared with the results of a search, of each standing."""

_UNSEEN = ("card", "host", "registry")
"""Field paths below these are derived by registries: an entry alone does not show them."""

_EVERYTHING = Viewer(sees_all=True)
_KNOWN = ((EntryStanding.LISTED, EntryStanding.HELD), (EntryStanding.REJECTED,))


class CheckedResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result that counts. ``place`` is that of its registry among those asked, 0 for our own."""

    identifier: str
    publisher: str
    entry: Mapping[str, Any]
    score: int
    source: str
    place: int
    texts: Mapping[str, str] = {}

    @property
    def answered(self) -> Mapping[str, Any]:
        """The entry as it is answered: with the marks of its texts, which take time to find."""
        marks = marks_of(self.texts)
        if not marks:
            return self.entry
        known = {**self.entry[REGISTRY_MEMBER], "marks": list(marks)}
        return {**self.entry, REGISTRY_MEMBER: known}


class CheckedPage(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a page that count, in the order of its registry but for those without a word
    of the need, which come last; and refusals by reason.
    """

    results: tuple[CheckedResult, ...] = ()
    refused: Mapping[str, int] = {}


class LocalKnowledge:
    """The knowledge of this registry of entries and publishers, for any viewer.

    It asks the index two questions for each search.
    """

    def __init__(self, index: RegistryIndex) -> None:
        self._index = index

    async def identifiers(self, among: Collection[str]) -> Collection[str]:
        """Return the identifiers that the index lists, holds or rejected, whatever their case.

        A claim that was rejected because its source may not speak for the publisher does not count:
        anybody could make one, and so hide what others list.
        """
        values = tuple(among)
        named = Constraint(field="identifier", values=values)
        found: set[str] = set()
        # Several sources may have one identifier. Claims that anybody makes are read apart, so that
        # many of them leave the others out of no page.
        for standings in _KNOWN:
            selection = EntrySelection(
                viewer=_EVERYTHING, constraints=(named,), standings=standings
            )
            entries = await self._index.browse(selection, (), MAX_CLAIMS, 0)
            found.update(each.identifier.casefold() for each in entries if _counts(each))
        return {each for each in values if each.casefold() in found}

    async def publishers(self, among: Collection[str]) -> Collection[str]:
        """Return the publishers that the index lists entries of."""
        selection = EntrySelection(
            viewer=_EVERYTHING, constraints=(Constraint(field="publisher", values=tuple(among)),)
        )
        found, _ = await self._index.facet(selection, "publisher", len(among), 1)
        return {value.lower() for value, _ in found}


class ResultChecks:
    """Checks results for one search.

    ``own_source`` is the address of this registry, ``others`` those of all that are asked.
    ``egress`` judges the addresses of entries, by name.
    """

    def __init__(
        self,
        need: str,
        constraints: Sequence[Constraint],
        *,
        own_source: str,
        others: Collection[str],
        egress: Egress,
    ) -> None:
        self._need = asked_of(need)
        self._constraints = constraints
        self._own_source = _normal(own_source)
        self._others = frozenset(others)
        self._egress = egress

    def check(self, page: UpstreamPage, upstream: UpstreamRegistry, place: int) -> CheckedPage:
        """Return what of a page counts. It may be called in a thread: texts may be long."""
        refused: Counter[str] = Counter()
        kept: list[CheckedResult] = []
        for each in page.results:
            try:
                kept.append(self._checked(each, upstream, place))
            except _Refused as error:
                refused[str(error)] += 1
        words = {
            number: words_by_weight({at: text[:MAX_SCORED] for at, text in each.texts.items()})
            for number, each in enumerate(kept)
        }
        matches = rank_all(self._need, words)
        found = []
        score = BEST
        for number in sorted(words, key=lambda each: each not in matches):
            score = as_score(matches.get(number, 0.0), score)
            found.append(msgspec.structs.replace(kept[number], score=score))
        return CheckedPage(results=tuple(found), refused=refused)

    def _checked(
        self, given: ListedResult, upstream: UpstreamRegistry, place: int
    ) -> CheckedResult:
        entry = given.entry
        try:
            urn = AirUrn.parse(entry.identifier)
        except InvalidUrn:
            raise _Refused("the identifier is no urn:air") from None
        if entry.url:
            self._check_url(entry.url, upstream)
        own = {name: each for name, each in entry.more.items() if name != REGISTRY_MEMBER}
        entry = msgspec.structs.replace(entry, more=own)
        document = write_entry(entry)
        if len(msgspec.json.encode(document)) > MAX_ENTRY:
            raise _Refused("the entry is too large")
        for constraint in self._constraints:
            if not _fulfils(document, constraint):
                raise _Refused("it does not match the filter")
        known = {
            "trust": "unproved",
            "trustReason": f"{upstream.url} lists it; it was not verified here",
            "via": upstream.url,
        }
        return CheckedResult(
            identifier=str(urn),
            publisher=urn.publisher,
            entry={**document, REGISTRY_MEMBER: known},
            score=0,
            source=self._source(given.source, upstream),
            place=place,
            texts=texts_of(entry),
        )

    def _check_url(self, url: str, upstream: UpstreamRegistry) -> None:
        try:
            origin = Origin.of(url)
        except ValueError:
            raise _Refused("the address is none of the web") from None
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise _Refused("the address has a user or a password")
        # A registry on this machine may list agents of this machine.
        is_here = upstream.is_near and is_loopback(origin.host)
        if origin.scheme != "https" and not is_here and not self._egress.trusts(origin.host):
            raise _Refused("the address is not encrypted")
        if not is_here:
            try:
                self._egress.check_host(origin.host, origin.port)
            except ForbiddenAddress:
                raise _Refused("the address leads into a private network") from None

    def _source(self, claimed: str, upstream: UpstreamRegistry) -> str:
        """Return the registry that indexed an entry: who is asked directly speaks for itself."""
        source = _normal(claimed)
        if source and source == self._own_source:
            raise _Refused("it came from here")
        is_usable = source and source not in self._others and "@" not in source
        return source if is_usable else upstream.url


class _Refused(Exception):
    """A result does not count. The message says why, in words that are counted."""


async def not_ours(
    results: Sequence[CheckedResult], upstreams: Sequence[UpstreamRegistry], local: LocalKnowledge
) -> list[CheckedResult]:
    """Return the results without those that this registry knows better.

    What it has indexed itself, it ranks itself; what it holds or rejected is not let in by another
    way. Of publishers whose entries it has by a proof of theirs, it takes more only from registries
    that may speak for them.
    """
    if not results:
        return []
    known = await local.identifiers({each.identifier for each in results})
    publishers = await local.publishers({each.publisher for each in results})
    found = []
    for each in results:
        upstream = upstreams[each.place - 1]
        if each.identifier in known:
            upstream.refused["this registry has it"] += 1
        elif each.publisher in publishers and not upstream.may_speak_for(each.publisher):
            upstream.refused["this registry knows the publisher, by a proof of its own"] += 1
        else:
            found.append(each)
    return found


def _counts(entry: IndexedEntry) -> bool:
    is_rejected = entry.standing is EntryStanding.REJECTED
    return not is_rejected or entry.authority is not Authority.NONE


def _fulfils(document: Mapping[str, Any], constraint: Constraint) -> bool:
    if constraint.operator != "eq" or constraint.field.partition(".")[0] in _UNSEEN:
        return True
    wanted = {each.casefold() for each in constraint.values}
    has_one = any(each.casefold() in wanted for each in values_at(document, constraint.field))
    return has_one != constraint.negated


def _normal(url: str) -> str:
    try:
        return base_of(url) if len(url) <= 512 else ""
    except ValueError:
        return ""
