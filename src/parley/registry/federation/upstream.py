"""An upstream registry: its settings, its connection, its circuit breaker, and checks of its
results.

A header bounds the path of a search from registry to registry, and reveals loops:
``Parley-Registry-Path: query=<id>; left=<hops>; ms=<time>; path=<ids of registries>``. Other
implementations neither read nor send it; ``federated.RunningQueries`` handles their loops.

Claims of other registries are not trusted. A result needs a valid entry and an address that may be
called, and must match the filter. Statements about trust, health and marks are removed, and so are
scores. The order is used; the scores are computed here, from the words of the entries.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import msgspec

from parley.client.auth.authorizer import Authorizer, credentials_of
from parley.client.auth.credentials import Credentials
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.errors import AuthenticationRequired, ClientError
from parley.client.origin import Origin
from parley.client.retry import Retry
from parley.model.errors import InvalidParamsError
from parley.registry.catalog.entries import (
    REGISTRY,
    AirUrn,
    InvalidUrn,
    domain,
    identifier_at,
    is_within,
)
from parley.registry.catalog.reading import write_entry
from parley.registry.catalog.searching import (
    ListedResult,
    RegistryReferral,
    SearchAnswer,
    SearchRequest,
)
from parley.registry.client.places import RegistryRefused, base_of
from parley.registry.client.rest import RestRegistry
from parley.registry.index.entry_search import asked_of, rank_all, words_by_weight
from parley.registry.index.prepared import normalized
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.reading import fields_of
from parley.registry.records import (
    Authority,
    Constraint,
    EntrySelection,
    EntryStanding,
    IndexedEntry,
    Viewer,
)
from parley.registry.search.searcher import BEST, as_score
from parley.registry.search.searcher import REGISTRY as REGISTRY_MEMBER
from parley.registry.search.texts import marks_of, texts_of
from parley.security.egress import Egress, ForbiddenAddress
from parley.security.networks import is_loopback

# The path of a search from registry to registry: a header that bounds it and reveals loops.

HEADER = "Parley-Registry-Path"
MAX_HOPS = 4
MAX_PATH = 64
"""The most registries in a path; a search with a full path is not forwarded."""

MAX_SECONDS = 10.0
MARGIN = 0.8
"""The fraction of the remaining time that another registry gets; the rest is for its response."""

_HOPS = re.compile(
    r"query=([0-9a-f]{16}); *left=(\d{1,8}); *ms=(\d{1,8})"
    r"(?:; *path=([0-9a-f]{12}(?:\.[0-9a-f]{12})*)?)?",
    re.ASCII,
)
_FORM = (
    f"{HEADER} must have the form query=<16 hex>; left=<hops>; ms=<time>; path=<12 hex>.<12 hex>"
)


class Hops(msgspec.Struct, frozen=True, kw_only=True):
    """The path of a search so far. ``path`` has the registries that have it or will get it.

    ``left`` is how often it may be forwarded, ``seconds`` the total time limit.
    """

    query: str
    path: tuple[str, ...] = ()
    left: int = 0
    seconds: float = 0.0

    @classmethod
    def begin(cls, left: int, seconds: float) -> Hops:
        """Return the hops of a search by a client."""
        return cls(query=secrets.token_hex(8), left=left, seconds=seconds)

    def onward(self, asked: tuple[str, ...], seconds: float) -> Hops:
        """Return the hops of a forwarded search. ``asked`` are this registry and the registries
        that it asks, except the receiver.
        """
        path = tuple(dict.fromkeys((*self.path, *asked)))
        left = self.left - 1 if len(path) < MAX_PATH else 0
        return Hops(
            query=self.query, path=path[:MAX_PATH], left=max(left, 0), seconds=seconds * MARGIN
        )

    def header(self) -> dict[str, str]:
        """Return the header of a request."""
        fields = [f"query={self.query}", f"left={self.left}", f"ms={int(self.seconds * 1000)}"]
        if self.path:
            fields.append(f"path={'.'.join(self.path)}")
        return {HEADER: "; ".join(fields)}


def hops_of(headers: Mapping[str, str]) -> Hops | None:
    """Return the hops in the headers of a request (names in lower case), or ``None``.

    Raises ``InvalidParamsError`` for a malformed header.
    """
    text = headers.get(HEADER.lower())
    if text is None:
        return None
    if len(text) > MAX_PATH * 13 + 200:
        raise InvalidParamsError(f"{HEADER} names more than {MAX_PATH} registries")
    match = _HOPS.fullmatch(text.strip())
    path = tuple(match[4].split(".")) if match and match[4] else ()
    if match is None or len(path) > MAX_PATH:
        raise InvalidParamsError(_FORM)
    return Hops(
        query=match[1],
        path=path,
        left=min(int(match[2]), MAX_HOPS),
        seconds=min(int(match[3]) / 1000, MAX_SECONDS),
    )


def registry_id(url: str) -> str:
    """Return the id of a registry: a digest of its address, the same for all its callers."""
    with suppress(ValueError):  # the source may be any text, not only an address
        url = base_of(url)
    return hashlib.sha256(url.lower().encode()).hexdigest()[:12]


_log = logging.getLogger("parley.registry")

MAX_UPSTREAMS = 16
MAX_ANSWER = 2 * 1024 * 1024
UPSTREAM_CONCURRENCY = 32
"""The number of searches one registry answers for this one at a time; further searches leave it
out.
"""

FAILURES = 3
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 300.0
"""Seconds for which a failing registry is not asked: the first pause, and the longest."""

EVERY = "*"


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an upstream registry. ``url`` is its address.

    ``speaks_for`` are domains whose entries it may list although this registry has entries of them
    (``("*",)`` for all); its own domain is included. ``auth`` are credentials for it. ``seconds``
    is its time limit, within the time limit of the search.
    """

    url: str
    name: str = ""
    identifier: str = ""
    speaks_for: tuple[str, ...] = ()
    auth: Any = None
    seconds: float = 2.0


class CircuitState(StrEnum):
    """The states of an upstream registry's circuit breaker."""

    CLOSED = "closed"
    """The registry is asked."""
    OPEN = "open"
    """The registry failed too often, and is not asked for a while."""
    HALF_OPEN = "half-open"
    """One search tries the registry again."""


class UpstreamState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an upstream registry, for the operator.

    ``refused`` counts rejected results by reason.
    """

    url: str
    name: str
    circuit: CircuitState
    reason: str = ""
    asked: int = 0
    failed: int = 0
    skipped: int = 0
    refused: dict[str, int] = {}


class UpstreamRegistry:
    """An upstream registry with its connection. Raises ``ValueError`` for invalid settings.

    Any address is allowed, because the operator chose it. Redirects are not followed.
    """

    def __init__(
        self, settings: Upstream, http: HttpTransport, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if settings.seconds <= 0:
            raise ValueError(
                f"the time limit of an upstream registry must be above 0: {settings.url}"
            )
        base, credentials = Credentials.from_reference(settings.url)
        self.base = base_of(str(base))
        self.url = redacted(self.base)
        self.origin = Origin.of(self.base)
        if self.origin.scheme != "https" and not is_loopback(self.origin.host):
            raise ValueError(
                f"the upstream registry {self.url} is not encrypted; it needs an https address, "
                "unless it is on this machine"
            )
        self.settings = settings
        self.id = registry_id(self.base)
        self.name = settings.name or self.origin.host
        self.speaks_for = tuple(
            EVERY if each == EVERY else domain(each) for each in settings.speaks_for
        )
        self.is_near = is_loopback(self.origin.host)
        # Saved logins of this process's user are not used for other people's searches.
        given = credentials_of(False if settings.auth is None else settings.auth)
        auth = Authorizer(credentials, given, http=http, address=self.url)
        auth.for_origin(self.origin)
        self._auth = auth
        self._rest = RestRegistry(
            self.base,
            http,
            auth,
            timeout=settings.seconds,
            retry=Retry(calls=0, streams=0),
            limit=MAX_ANSWER,
        )
        self._clock = clock
        self._running = 0
        self._strikes = 0
        self._pauses = 0
        self._paused_until = 0.0
        self._is_trying = False
        self._reason = ""
        self._asked = self._failed = self._skipped = 0
        self.refused: Counter[str] = Counter()

    @property
    def _identifier(self) -> str:
        parts = urlsplit(self.base)
        name = parts.path.strip("/") or str(parts.port or "registry")
        return identifier_at(parts.hostname or "", "registry", name)

    @property
    def referral(self) -> RegistryReferral:
        """The registry as a referral for clients."""
        return RegistryReferral(
            identifier=self.settings.identifier or self._identifier,
            display_name=self.name,
            type=REGISTRY,
            url=f"{self.url}search",
        )

    @property
    def state(self) -> UpstreamState:
        """The registry's state, for the operator."""
        return UpstreamState(
            url=self.url,
            name=self.name,
            circuit=self._circuit(),
            reason=self._reason,
            asked=self._asked,
            failed=self._failed,
            skipped=self._skipped,
            refused=dict(self.refused),
        )

    def may_speak_for(self, publisher: str) -> bool:
        """Return whether it may list entries of a publisher that this registry has entries of."""
        is_own = is_within(self.origin.host, publisher) and self.origin.scheme == "https"
        return is_own or EVERY in self.speaks_for or publisher in self.speaks_for

    def take(self) -> bool:
        """Return whether the registry may be asked now; if so, ``release`` must follow."""
        circuit = self._circuit()
        is_free = circuit is CircuitState.CLOSED or (
            circuit is CircuitState.HALF_OPEN and not self._is_trying
        )
        if not is_free or self._running >= UPSTREAM_CONCURRENCY:
            self._skipped += 1
            return False
        self._is_trying = circuit is CircuitState.HALF_OPEN
        self._running += 1
        return True

    async def ask(self, request: SearchRequest, hops: Hops) -> SearchAnswer | None:
        """Return a page; ``None`` after a failure, with the reason in the state.

        A page token comes from a caller, who may have invented it: an error that it causes does not
        open the circuit.
        """
        self._asked += 1
        counts = not request.page_token
        try:
            answer = await self._rest.search(request, headers=hops.header())
        except RegistryRefused as error:
            is_failure = error.status >= 429
            self._note(str(error), is_failure=is_failure, counts=counts, wait=error.retry_after)
            return None
        except AuthenticationRequired as error:
            self._note(str(error), is_failure=True, counts=counts)
            return None
        except ClientError as error:
            self._note(str(error), is_failure=True, counts=counts)
            return None
        self._strikes = self._pauses = 0
        self._paused_until = 0.0
        self._reason = ""
        self.refused["not an entry"] += len(answer.rejected)
        self.refused += Counter()  # drops zeros
        return answer

    def release(self, *, is_late: bool = False) -> None:
        """Record the end of a search; ``is_late``: the registry did not answer in time."""
        if is_late:
            self._note("it did not answer in time", is_failure=True)
        self._running -= 1
        self._is_trying = False

    async def aclose(self) -> None:
        """Close the connections to its issuers. Idempotent."""
        await self._auth.aclose()

    def _circuit(self) -> CircuitState:
        if not self._paused_until:
            return CircuitState.CLOSED
        now = self._clock()
        return CircuitState.OPEN if now < self._paused_until else CircuitState.HALF_OPEN

    def _note(
        self, reason: str, *, is_failure: bool, counts: bool = True, wait: float | None = None
    ) -> None:
        self._failed += 1
        self._reason = reason[:500]
        if not is_failure:  # the registry answers; it only rejects this search
            self._strikes, self._paused_until = 0, 0.0
            return
        if not counts:
            return
        self._strikes += 1
        if self._strikes < FAILURES and wait is None and not self._is_trying:
            return
        pause = min(FIRST_PAUSE * 2**self._pauses, LONGEST_PAUSE)
        if wait is not None:
            pause = min(max(wait, 1.0), LONGEST_PAUSE)
        self._pauses = min(self._pauses + 1, 10)
        self._paused_until = self._clock() + pause
        _log.warning("the registry %s is not asked for %.0f s: %s", self.url, pause, self._reason)


MAX_ENTRY = 64 * 1024
MAX_SCORED = 2_000
"""The number of characters of each weight of an entry read for its score."""

MAX_CLAIMS = 2_000
"""The number of index entries of each standing compared with the results of a search."""

_UNSEEN = ("card", "host", "registry")
"""Field paths below these are derived by registries, so an entry alone does not have them."""

_EVERYTHING = Viewer(sees_all=True)
_KNOWN = ((EntryStanding.LISTED, EntryStanding.HELD), (EntryStanding.REJECTED,))


class CheckedResult(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted result. ``place`` is the position of its registry in the order of asking, 0 for
    ours.
    """

    identifier: str
    publisher: str
    entry: Mapping[str, Any]
    score: int
    source: str
    place: int
    texts: Mapping[str, str] = {}

    @property
    def answered(self) -> Mapping[str, Any]:
        """The entry as it is sent: with the marks of its texts, which are slow to compute."""
        marks = marks_of(self.texts)
        if not marks:
            return self.entry
        known = {**self.entry[REGISTRY_MEMBER], "marks": list(marks)}
        return {**self.entry, REGISTRY_MEMBER: known}


async def _known_identifiers(index: RegistryIndex, among: Collection[str]) -> Collection[str]:
    """Return the identifiers that an index lists, holds or has rejected, whatever their case.

    A claim that was rejected because its source may not speak for the publisher does not count: any
    source could make such a claim to hide the entries of others.
    """
    values = tuple(among)
    named = Constraint(field="identifier", values=values)
    found: set[str] = set()
    # Several sources may have one identifier. Unproved claims are read separately, so that many of
    # them do not push others out of the limit.
    for standings in _KNOWN:
        selection = EntrySelection(viewer=_EVERYTHING, constraints=(named,), standings=standings)
        entries = await index.browse(selection, (), MAX_CLAIMS, 0)
        found.update(each.identifier.casefold() for each in entries if _counts(each))
    return {each for each in values if each.casefold() in found}


async def _known_publishers(index: RegistryIndex, among: Collection[str]) -> Collection[str]:
    """Return the publishers with listed entries in an index."""
    named = Constraint(field="publisher", values=tuple(among))
    selection = EntrySelection(viewer=_EVERYTHING, constraints=(named,))
    found, _ = await index.facet(selection, "publisher", len(among), 1)
    return {value.lower() for value, _ in found}


class ResultChecks:
    """Checks the results of one search.

    ``own_source`` is the address of this registry, ``others`` are the addresses of all registries
    that are asked. ``egress`` judges the addresses of entries, by name.
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

    def check(
        self, page: SearchAnswer, upstream: UpstreamRegistry, place: int
    ) -> tuple[list[CheckedResult], Counter[str]]:
        """Return the accepted results of a page and the rejections by reason. The results keep the
        order of their registry, with entries that share no word with the need last. Long texts make
        this slow, so it may be called in a thread.
        """
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
        return found, refused

    def _checked(
        self, given: ListedResult, upstream: UpstreamRegistry, place: int
    ) -> CheckedResult:
        entry = given.entry
        try:
            urn = AirUrn.parse(entry.identifier)
        except InvalidUrn:
            raise _Refused("the identifier is not a urn:air") from None
        if entry.url:
            self._check_url(entry.url, upstream)
        own = {name: each for name, each in entry.more.items() if name != REGISTRY_MEMBER}
        entry = msgspec.structs.replace(entry, more=own)
        document = write_entry(entry)
        if len(msgspec.json.encode(document)) > MAX_ENTRY:
            raise _Refused("the entry is too large")
        fields = fields_of(entry, publisher=urn.publisher, source="")
        if not all(_fulfils(fields, constraint) for constraint in self._constraints):
            raise _Refused("it does not match the filter")
        known = {
            "trust": "unproved",
            "trustReason": f"{upstream.url} lists this entry; it was not verified here",
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
            raise _Refused("the address is not a web address") from None
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
        """Return the registry that indexed an entry; the asked registry may name itself only."""
        source = _normal(claimed)
        if source and source == self._own_source:
            raise _Refused("the entry came from this registry")
        is_usable = source and source not in self._others and "@" not in source
        return source if is_usable else upstream.url


class _Refused(Exception):
    """A result is rejected. The message is the reason, and the key of the counter."""


async def not_ours(
    results: Sequence[CheckedResult], upstreams: Sequence[UpstreamRegistry], index: RegistryIndex
) -> list[CheckedResult]:
    """Return the results without entries that this registry has better information about.

    Entries in its own index are ranked here; entries that it holds or has rejected must not come in
    through another registry. For a publisher whose entries it has with a proof, it accepts further
    entries only from registries that may speak for the publisher.
    """
    if not results:
        return []
    known = await _known_identifiers(index, {each.identifier for each in results})
    publishers = await _known_publishers(index, {each.publisher for each in results})
    found = []
    for each in results:
        upstream = upstreams[each.place - 1]
        if each.identifier in known:
            upstream.refused["this registry has the entry"] += 1
        elif each.publisher in publishers and not upstream.may_speak_for(each.publisher):
            upstream.refused["this registry has proved entries of the publisher"] += 1
        else:
            found.append(each)
    return found


def _counts(entry: IndexedEntry) -> bool:
    is_rejected = entry.standing is EntryStanding.REJECTED
    return not is_rejected or entry.authority is not Authority.NONE


def _fulfils(fields: Mapping[str, Sequence[str]], constraint: Constraint) -> bool:
    if constraint.operator != "eq" or constraint.field.partition(".")[0] in _UNSEEN:
        return True
    found = {normalized(each) for each in fields.get(constraint.field, ())}
    return found.isdisjoint(map(normalized, constraint.values)) == constraint.negated


def _normal(url: str) -> str:
    try:
        return base_of(url) if len(url) <= 512 else ""
    except ValueError:
        return ""
