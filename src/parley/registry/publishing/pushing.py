"""Published entries: their ownership, and which of them are listed.

A caller publishes entries of publishers whose domains it has proved. They are stored under a source
of the caller, so that no other caller can replace or remove them.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from parley.model.concurrency import KeyedLocks
from parley.model.errors import InvalidParamsError, PermissionDeniedError, TooManyRequestsError
from parley.model.service import Caller
from parley.registry.catalog.entries import (
    A2A_CARD_TYPES,
    MAX_URN,
    AirUrn,
    InvalidUrn,
    is_within,
    media_type,
)
from parley.registry.catalog.reading import InvalidCatalog
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.examiner import Examiner, RefusalLog, SourceExamination
from parley.registry.ingest.fetching import IngestLimits
from parley.registry.ingest.reading import ListedEntry, host_known, one_form, pages_of, read_whole
from parley.registry.publishing.callers import (
    SYSTEM,
    CallerRates,
    ConflictError,
    NotFoundError,
    PublishingLimits,
    RegistryAudit,
    read_audience,
)
from parley.registry.publishing.proofs import DomainProofs, owner_of
from parley.registry.records import (
    Authority,
    DomainClaim,
    EntryDraft,
    EntryStanding,
    IndexedEntry,
    Source,
    SourceKind,
)

PUSHED, IMPORTED = "push:", "import:"
PROBE = "parley.probe"
"""The member of an entry's metadata with the text of the message for probes of the agent, set by
its owner. See ``registry/health/probing.py``.
"""

MAX_PROBE_TEXT = 200
BATCH = 50
SHOWN = 100
"""The number of identifiers a line of the audit log names."""

_ALL = tuple(EntryStanding)


class PublishOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for published entries.

    ``audience`` are the callers who see them (``None``: unchanged, at first public). ``probe`` is
    the text of a message with which the agents may be probed. With ``replace`` all other entries of
    the caller are withdrawn.
    """

    audience: tuple[str | Mapping[str, Any], ...] | None = None
    probe: str | None = None
    replace: bool = False

    def tokens(self, caller: Caller) -> tuple[str, ...] | None:
        """Return the tokens of the audience. Raises ``InvalidParamsError``."""
        return None if self.audience is None else read_audience(self.audience, caller)


class PublishedEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The outcome of a published entry. ``is_changed``: it is new or different."""

    identifier: str
    standing: str
    reason: str = ""
    trust: str = ""
    revision: int = 0
    is_changed: bool = msgspec.field(name="changed", default=False)


class PublishReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The outcome of a publication. ``refused`` entries were rejected without being stored."""

    entries: tuple[PublishedEntry, ...]
    refused: tuple[PublishedEntry, ...]
    withdrawn: int


class EntryPublishing:
    """Passes entries that callers publish or operators import through the examiner to the index."""

    def __init__(
        self,
        index: RegistryIndex,
        examiner: Examiner,
        proofs: DomainProofs,
        *,
        ingest: IngestLimits | None = None,
        rates: CallerRates | None = None,
    ) -> None:
        self._index = index
        self._examiner = examiner
        self._proofs = proofs
        self.limits: PublishingLimits = proofs.limits
        self._ingest = ingest or IngestLimits()
        self._rates = rates or CallerRates(self.limits)
        self._audit = RegistryAudit(index)
        self._turns = KeyedLocks()
        self._pushes: Counter[str] = Counter()
        proofs.ended = self.suspend
        proofs.came_back = self.restore

    async def publish(
        self,
        caller: Caller,
        document: bytes | Mapping[str, Any],
        options: PublishOptions | None = None,
        *,
        address: str = "",
    ) -> PublishReport:
        """Publish the entries of a catalog and of its nested catalogs.

        Repeating it without changes has no effect. Raises ``A2AError``, ``StoreUnavailable``.
        """
        options = options or PublishOptions()
        owner = owner_of(caller)
        self._rates.take(owner, "publish")
        if self._pushes[owner] >= self.limits.publishes_at_once:
            raise TooManyRequestsError(
                f"{self.limits.publishes_at_once} catalogs of this caller are being read: wait for "
                "their responses, then send the next",
                retry_after=5.0,
            )
        self._pushes[owner] += 1
        try:
            return await self._publish(caller, owner, document, options, address)
        finally:
            self._pushes[owner] -= 1
            if not self._pushes[owner]:
                del self._pushes[owner]

    async def _publish(
        self,
        caller: Caller,
        owner: str,
        document: bytes | Mapping[str, Any],
        options: PublishOptions,
        address: str,
    ) -> PublishReport:
        audience = options.tokens(caller)
        listed, refused = self._read(document, options)
        source = source_of(owner)
        async with self._turns.of(owner):
            domains = await self._proofs.domains(caller)
            allowed: list[ListedEntry] = []
            for each in listed:
                if words := each.problem or _not_proved(each.entry.identifier, domains):
                    refused.append(_refused(each.entry.identifier, words))
                else:
                    allowed.append(each)
            every = {each.identifier: each async for each in self._kept(source, withdrawn=True)}
            known = {
                name: each
                for name, each in every.items()
                if each.standing is not EntryStanding.WITHDRAWN
            }
            names = {each.identifier for each in allowed}
            present = names if options.replace else {*known, *names}
            self._check_room(len(present), len({*every, *names}))
            await self._record(caller, "entry.published", allowed, refused, address)
            drafts = await self._examined(allowed, source, Authority.PROVED, owner, audience, known)
            # Reading cards takes a while, in which a proof may expire.
            domains = await self._proofs.domains(caller)
            proved: list[EntryDraft] = []
            for draft in drafts:
                if words := _not_proved(draft.identifier, domains):
                    refused.append(_refused(draft.identifier, words))
                else:
                    proved.append(draft)
            words = "its owner published a catalog without it" * options.replace
            return await self._taken(source, proved, known, listed, refused, words)

    def _check_room(self, count: int, every: int) -> None:
        """Raise an error if the caller exceeds its limits of entries, with and without withdrawn
        entries.
        """
        if count > self.limits.entries:
            raise TooManyRequestsError(
                f"a caller may have at most {self.limits.entries:,} entries, and this would "
                f"be {count:,}: withdraw some first"
            )
        most = self.limits.entries + self.limits.withdrawn
        if every > most:
            raise TooManyRequestsError(
                f"a caller may have at most {most:,} entries including withdrawn entries, and this "
                f"would be {every:,}: withdrawn entries are removed after a while"
            )

    async def bring_in(
        self,
        caller: Caller,
        document: bytes | Mapping[str, Any],
        name: str,
        options: PublishOptions | None = None,
        *,
        address: str = "",
    ) -> PublishReport:
        """Import the entries of a catalog as the operator, who vouches for their publishers.

        ``name`` identifies the import: with ``replace``, entries of earlier imports under this name
        that are missing now are withdrawn. Raises ``A2AError``, ``StoreUnavailable``.
        """
        options = options or PublishOptions()
        audience = options.tokens(caller)
        listed, refused = self._read(document, options)
        refused += [
            _refused(each.entry.identifier, each.problem) for each in listed if each.problem
        ]
        taken = [each for each in listed if not each.problem]
        source = imported(name)
        async with self._turns.of(source):
            known = {each.identifier: each async for each in self._kept(source)}
            await self._record(caller, "entry.imported", taken, refused, address, source=source)
            drafts = await self._examined(taken, source, Authority.OPERATOR, "", audience, known)
            words = "the operator imported a catalog without it" * options.replace
            return await self._taken(source, drafts, known, listed, refused, words)

    async def withdraw(
        self, caller: Caller, identifier: str, *, is_operator: bool = False, address: str = ""
    ) -> int:
        """Withdraw the caller's entry; an operator withdraws the entries of all sources.

        Repeating it has no effect. Raises ``A2AError``, ``StoreUnavailable``.
        """
        owner = owner_of(caller)
        self._rates.take(owner, "withdraw")
        name = one_form(identifier)
        found = await self._index.entries_of(name)
        own = [each for each in found if each.owner == owner]
        if is_operator:
            own = [each for each in found if each.source.startswith((PUSHED, IMPORTED))]
            if found and not own:
                raise ConflictError(
                    f"{name[:200]} was found by crawling, and would be found again: reject it"
                )
        if not own:
            if any(not each.audience and each.standing is EntryStanding.LISTED for each in found):
                raise PermissionDeniedError(f"{name[:200]} was not published by this caller")
            raise NotFoundError(f"this caller has published no entry {name[:200]!r}")
        there = [each.key for each in own if each.standing is not EntryStanding.WITHDRAWN]
        if not there:
            return 0
        await self._audit.record(caller, "entry.withdrawn", name, address=address)
        by = "the operator" if is_operator else "its owner"
        return await self._index.withdraw_entries(there, f"{by} withdrew it")

    async def own(self, caller: Caller) -> list[IndexedEntry]:
        """Return the entries of a caller, of every standing."""
        owner = owner_of(caller)
        return [each async for each in self._kept(source_of(owner), withdrawn=True)]

    async def suspend(self, claim: DomainClaim) -> int:
        """Stop listing entries whose publisher's domain is no longer proved."""
        source = source_of(claim.owner)
        words = f"the proof of the domain {claim.domain} has expired: prove the domain again"
        count = 0
        async with self._turns.of(claim.owner):
            others = await self._proofs_of(claim)
            drafts = []
            async for each in self._kept(source):
                if each.authority is not Authority.PROVED or not _rests_on(each, claim, others):
                    continue
                drafts.append(
                    msgspec.structs.replace(
                        each.draft,
                        authority=Authority.NONE,
                        standing=EntryStanding.PENDING,
                        reason=words,
                    )
                )
            for begin in range(0, len(drafts), BATCH):
                count += len(await self._index.put(drafts[begin : begin + BATCH]))
            if count:
                await self._audit.record(
                    SYSTEM, "entry.suspended", claim.domain, entries=count, owner=claim.owner
                )
        return count

    async def restore(self, claim: DomainClaim) -> int:
        """Examine the entries again that waited for a proof that exists now."""
        source = source_of(claim.owner)
        async with self._turns.of(claim.owner):
            waiting: list[ListedEntry] = []
            known: dict[str, IndexedEntry] = {}
            async for each in self._kept(source):
                is_waiting = each.authority is Authority.NONE
                if is_waiting and is_within(each.publisher, claim.domain):
                    listed = _again(each)
                    if listed is not None:
                        known[each.identifier] = each
                        waiting.append(listed)
            drafts = await self._examined(
                waiting, source, Authority.PROVED, claim.owner, None, known
            )
            await self._put(drafts, known)
        return len(drafts)

    # Steps

    def _read(
        self, document: bytes | Mapping[str, Any], options: PublishOptions
    ) -> tuple[list[ListedEntry], list[PublishedEntry]]:
        """Return the valid entries and the invalid entries of a document."""
        body = document if isinstance(document, bytes) else msgspec.json.encode(document)
        if len(body) > self.limits.document_bytes:
            raise InvalidParamsError(
                f"a published catalog may have at most {self.limits.document_bytes:,} bytes"
            )
        try:
            reading = read_whole(body, self._ingest, depth=0, at_most=self.limits.entries_at_once)
        except InvalidCatalog as error:
            raise InvalidParamsError(f"that is not a catalog: {error}") from None
        if reading.notes:
            raise TooManyRequestsError(
                f"at most {self.limits.entries_at_once:,} entries can be published at once: "
                "publish the "
                "rest separately"
            )
        refused = [_refused(each.identifier, each.reason) for each in reading.rejected]
        return [_with_probe(each, options.probe) for each in reading.entries], refused

    async def _examined(
        self,
        listed: Sequence[ListedEntry],
        source: str,
        authority: Authority,
        owner: str,
        audience: tuple[str, ...] | None,
        known: Mapping[str, IndexedEntry],
    ) -> list[EntryDraft]:
        """Return drafts of entries. Entries whose cards take too long are pending."""
        seconds = self.limits.publish_seconds
        examination = SourceExamination(self._index, self._examiner, source, seconds, seconds)

        async def one(each: ListedEntry) -> EntryDraft:
            before = known.get(each.identifier)
            elsewhere: list[IndexedEntry] = []
            if authority is not Authority.OPERATOR:  # an operator's import is a decision
                _, elsewhere = await examination.known(each.identifier)
            terms: dict[str, Any] = {
                "authority": authority,
                "owner": owner,
                "audience": before.audience if audience is None and before else audience or (),
            }
            draft = await examination.one(each, before, elsewhere, **terms)
            if draft is None:
                pending = examination.pending(each, elsewhere if before is None else [before])
                draft = msgspec.structs.replace(pending, **terms)
            return draft

        return await examination.of_all(listed, one)

    async def _put(
        self, drafts: Sequence[EntryDraft], known: Mapping[str, IndexedEntry]
    ) -> list[PublishedEntry]:
        entries: list[PublishedEntry] = []
        told = RefusalLog(drafts[0].source if drafts else "")
        for begin in range(0, len(drafts), BATCH):
            for each in await self._index.put(drafts[begin : begin + BATCH]):
                before = known.get(each.identifier)
                told.tell(each.identifier, each.standing, each.reason, before)
                entries.append(
                    PublishedEntry(
                        identifier=each.identifier,
                        standing=each.standing.value,
                        reason=each.reason,
                        trust=each.trust.value,
                        revision=each.revision,
                        is_changed=before is None or before.change != each.change,
                    )
                )
        told.end()
        return entries

    async def _taken(
        self,
        source: str,
        drafts: Sequence[EntryDraft],
        known: Mapping[str, IndexedEntry],
        listed: Iterable[ListedEntry],
        refused: Sequence[PublishedEntry],
        words: str,
    ) -> PublishReport:
        """Put drafts; with ``words``, withdraw the other entries of their source for that reason.

        The source is stored first, so that the crawler completes an interrupted publication. It
        reads the cards again: soon if a card is missing.
        """
        due_at = self._index.now() + round(self.limits.refresh_seconds * 1000)
        kept = Source(url=source, kind=SourceKind.PUSH, due_at=due_at)
        await self._index.add_sources([kept])
        entries = await self._put(drafts, known)
        withdrawn = 0
        if words:
            withdrawn = await self._index.withdraw(source, _named(listed, refused), words)
        if any(each.standing is EntryStanding.PENDING for each in drafts):
            kept = msgspec.structs.replace(kept, due_at=self._index.now() + 1_000)
        if drafts:
            await self._index.end_visit(kept)
        return PublishReport(entries=tuple(entries), refused=tuple(refused), withdrawn=withdrawn)

    async def _kept(self, source: str, *, withdrawn: bool = False) -> AsyncIterator[IndexedEntry]:
        """Yield the indexed entries of a source."""
        standings = _ALL if withdrawn else tuple(set(_ALL) - {EntryStanding.WITHDRAWN})
        async for page in pages_of(self._index, source, standings, size=500):
            for each in page:
                yield each

    async def _record(
        self,
        caller: Caller,
        kind: str,
        taken: Sequence[ListedEntry],
        refused: Sequence[PublishedEntry],
        address: str,
        **details: Any,
    ) -> None:
        names = [each.identifier for each in taken]
        told = RefusalLog(f"{kind} by {caller.id or 'the operator'}")
        for each in refused:
            told.tell(each.identifier, each.standing, each.reason, None)
        told.end()
        await self._audit.record(
            caller,
            kind,
            names[0] if len(names) == 1 else "",
            outcome="done" if names else "refused",
            address=address,
            entries=len(names),
            identifiers=[each[:200] for each in names[:SHOWN]],
            refused=[f"{each.identifier[:200]}: {each.reason[:200]}" for each in refused[:10]],
            **details,
        )

    async def _proofs_of(self, claim: DomainClaim) -> list[str]:
        """Return the other domains that the owner of a claim has proved."""
        now = self._index.now()
        held = await self._index.claims(claim.owner)
        return [name for name, until in held.items() if until > now and name != claim.domain]


def source_of(owner: str) -> str:
    """Return the source of a caller's entries. It does not reveal the caller."""
    return PUSHED + hashlib.sha256(owner.encode()).hexdigest()[:32]


def imported(name: str) -> str:
    """Return the source of an operator's import under a name. Raises ``InvalidParamsError``."""
    shown = name.strip()
    if not shown or len(shown) > 500 or not shown.isprintable():
        raise InvalidParamsError(
            "an import needs a name of up to 500 characters, such as its file name"
        )
    return IMPORTED + shown


def _named(listed: Iterable[ListedEntry], refused: Iterable[PublishedEntry]) -> list[str]:
    """Return the identifiers that a catalog names, including those of rejected entries."""
    names = [each.identifier for each in listed]
    return [*names, *(one_form(each.identifier) for each in refused if each.identifier)]


def _with_probe(listed: ListedEntry, text: str | None) -> ListedEntry:
    """Return an entry with the text of a probe in its metadata. Raises ``InvalidParamsError``."""
    if text is None or media_type(listed.entry.type) not in A2A_CARD_TYPES:
        return listed
    if len(text) > MAX_PROBE_TEXT or not text.isprintable():
        raise InvalidParamsError(
            f"the text of a probe must be one line of up to {MAX_PROBE_TEXT} characters"
        )
    metadata = {name: each for name, each in listed.entry.metadata.items() if name != PROBE}
    if text:
        metadata[PROBE] = text
    return msgspec.structs.replace(
        listed, entry=msgspec.structs.replace(listed.entry, metadata=metadata)
    )


def _not_proved(identifier: str, domains: Iterable[str]) -> str:
    """Return why a caller may not publish an entry; empty if it may."""
    try:
        publisher = AirUrn.parse(identifier).publisher
    except InvalidUrn as error:
        return f"its identifier is invalid: {error}"
    if any(is_within(publisher, each) for each in domains):
        return ""
    return (
        f"this caller has not proved {publisher}: prove it first (parley agents prove {publisher})"
    )


def _rests_on(entry: IndexedEntry, claim: DomainClaim, others: Iterable[str]) -> bool:
    is_its = is_within(entry.publisher, claim.domain)
    return is_its and not any(is_within(entry.publisher, each) for each in others)


def _again(entry: IndexedEntry) -> ListedEntry | None:
    """Return a stored entry for another examination."""
    from parley.registry.catalog.reading import InvalidEntry, read_entry

    try:
        return ListedEntry(read_entry(entry.entry), host_known(entry), 0)
    except InvalidEntry:
        return None


def _refused(identifier: str, reason: str) -> PublishedEntry:
    return PublishedEntry(identifier=identifier[:MAX_URN], standing="refused", reason=reason[:1000])
