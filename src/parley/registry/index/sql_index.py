"""The index of a registry on a SQL database: ``RegistryIndex`` over functions of a session."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from uuid import uuid4

from parley.database.database import Database
from parley.registry.index import acts, domains, finding, health, reading, sources, writing
from parley.registry.index.conditions import check
from parley.registry.index.prepared import Prepared, prepare
from parley.registry.index.protocol import EntrySelection, Order, Viewer
from parley.registry.index.session import Session
from parley.registry.index.values import clean
from parley.registry.records import (
    CardVersion,
    DomainClaim,
    EntryDraft,
    EntryStanding,
    IndexedEntry,
    Liveness,
    Match,
    Observed,
    Source,
    SourceState,
)
from parley.store.audit.trail import AuditEntry, AuditLine

MAX_LIMIT = 10_000
"""The most that one call returns."""

Connection = TypeVar("Connection")
T = TypeVar("T")


class SqlRegistryIndex(ABC, Generic[Connection]):
    """A ``RegistryIndex``: what it writes at the same time is one transaction.

    Limits are cut to 0 to 10,000. Raises ``ValueError`` for what no index can hold or answer.
    """

    def __init__(self, database: Database[Connection]) -> None:
        self._database = database
        self._claimer = uuid4().hex
        self.name = database.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @abstractmethod
    def _session(self, connection: Connection) -> Session:
        """Return a session of a connection."""

    @abstractmethod
    def now(self) -> int:
        """Return the time in ms, by the clock that all processes share."""

    @property
    def migrated(self) -> Sequence[str]:
        """The migrations that ``open`` ran."""
        return self._database.migrated

    @property
    def unavailable_reason(self) -> str:
        """Why nothing can be written now, as far as known; empty while it can."""
        return self._database.unavailable_reason

    async def open(self) -> None:
        """Open it, with its schema up to date. Raises ``StoreUnavailable``."""
        await self._database.open()

    async def close(self) -> None:
        """Finish what was begun, and close it. Idempotent."""
        await self._database.close()

    async def _read(self, function: Callable[..., T], *values: Any) -> T:
        return await self._database.read(
            lambda connection: function(self._session(connection), *values)
        )

    async def _write(self, function: Callable[..., T], *values: Any, size: int = 0) -> T:
        return await self._database.write(
            lambda connection: function(self._session(connection), *values), size=size
        )

    # Entries

    async def put(self, drafts: Sequence[EntryDraft]) -> list[IndexedEntry]:
        """Put entries, all in one transaction. See ``EntryIndex``."""
        if not drafts:
            return []
        ready = await asyncio.to_thread(_prepared, drafts)
        size = sum([len(each.document) + len(card or b"") for each, card in ready])
        return await self._write(_put, ready, self.now(), size=size)

    async def withdraw(self, source: str, keep: Sequence[str], reason: str) -> int:
        """Withdraw the entries of a source that are not in ``keep``; return how many."""
        kept = [clean(identifier) for identifier in keep]
        return await self._write(writing.withdraw, clean(source), kept, clean(reason), self.now())

    async def withdraw_entries(self, keys: Sequence[int], reason: str) -> int:
        """Withdraw some entries; return how many. What an operator decided of them stays."""
        return await self._write(writing.withdraw_entries, tuple(keys), reason, self.now())

    async def decide(self, key: int, standing: EntryStanding, reason: str, by: str) -> bool:
        """Set the standing of an entry, as an operator decided. See ``EntryIndex``."""
        answer = await self._write(
            writing.decide, key, standing, clean(reason), clean(by), self.now()
        )
        if isinstance(answer, str):
            raise ValueError(answer)
        return answer

    async def forget(self, before: int, limit: int = 1_000) -> int:
        """Remove entries that were withdrawn before a time (ms). See ``EntryIndex``."""
        return await self._write(writing.forget, before, _limited(limit))

    async def search(self, selection: EntrySelection, limit: int, offset: int) -> list[Match]:
        """Return the entries that match words, the most relevant first, then by key."""
        check(selection.constraints)
        return await self._read(_search, selection, _limited(limit), max(0, offset))

    async def count(self, selection: EntrySelection) -> int:
        """Return how many entries match. With words, those within the cutoff of ``search``."""
        check(selection.constraints)
        return await self._read(finding.count, selection)

    async def facet(
        self, selection: EntrySelection, field: str, limit: int, min_count: int
    ) -> tuple[list[tuple[str, int]], int]:
        """Return the values of a field with their counts. See ``EntryIndex``."""
        check(selection.constraints)
        return await self._read(finding.facet, selection, field, _limited(limit), max(1, min_count))

    async def browse(
        self, selection: EntrySelection, order: Sequence[Order], limit: int, offset: int
    ) -> list[IndexedEntry]:
        """Return entries in an order, and by key where that leaves it open."""
        check(selection.constraints)
        finding.check_order(order)
        return await self._read(_browse, selection, tuple(order), _limited(limit), max(0, offset))

    async def entry(self, identifier: str, viewer: Viewer) -> IndexedEntry | None:
        """Return the entry listed for an identifier; the strongest for an operator."""
        return await self._read(reading.listed, clean(identifier), viewer)

    async def entries_of(self, identifier: str) -> list[IndexedEntry]:
        """Return the entries of an identifier from all sources, with every standing."""
        return await self._read(reading.entries_of, clean(identifier))

    async def versions(self, identifier: str, limit: int = 50) -> list[CardVersion]:
        """Return the versions of a card, the newest first."""
        return await self._read(reading.versions, clean(identifier), _limited(limit))

    async def changes(self, after: int, limit: int) -> list[IndexedEntry]:
        """Return entries by when they last changed. See ``EntryIndex``."""
        return await self._read(reading.changes, after, _limited(limit))

    # Sources

    async def add_sources(self, sources_: Sequence[Source]) -> int:
        """Add sources that are not known; return how many."""
        for source in sources_:
            sources.check(source)
        return await self._write(sources.add, tuple(sources_)) if sources_ else 0

    async def claim_sources(self, limit: int, lease: float) -> list[Source]:
        """Claim sources that are due, for ``lease`` seconds. A claim that is not ended expires."""
        now = self.now()
        until = now + round(lease * 1000)
        return await self._write(sources.claim, _limited(limit), now, until, self._claimer)

    async def end_visit(self, source: Source, began: Source | None = None) -> bool:
        """Store what a visit found, and when the next is due. See ``SourceIndex``."""
        sources.check(source)
        return await self._write(sources.end_visit, source, self._claimer, began)

    async def change_source(self, source: Source) -> None:
        """Store a source, whose visit may go on."""
        sources.check(source)
        await self._write(sources.change, source)

    async def source(self, url: str) -> Source | None:
        """Return the source at an address."""
        return await self._read(sources.at, clean(url))

    async def sources(
        self, state: SourceState | None = None, limit: int = 1000
    ) -> Sequence[Source]:
        """Return sources, for the operator."""
        return await self._read(sources.find, state, _limited(limit))

    async def remove_source(self, url: str) -> bool:
        """Remove a source and withdraw its entries; return whether there was one."""
        return await self._write(sources.remove, clean(url), self.now())

    # Health

    async def claim_probes(self, limit: int, lease: float) -> list[IndexedEntry]:
        """Claim listed A2A entries whose probe is due."""
        now = self.now()
        until = now + round(lease * 1000)
        return await self._write(health.claim_probes, _limited(limit), now, until)

    async def end_probe(self, key: int, observed: Observed, due_at: int) -> None:
        """Store what a probe found (ms: when the next is due), and end the claim."""
        await self._write(health.end_probe, key, observed, due_at)

    async def postpone_probe(self, key: int, due_at: int) -> None:
        """End a claim without a probe; the next is due at a time (ms)."""
        await self._write(health.postpone_probe, key, due_at)

    async def silence(self, key: int, last_beat: int, liveness: Liveness) -> bool:
        """Note that heartbeats stay away since ``last_beat``. See ``HealthIndex``."""
        return await self._write(health.silence, key, last_beat, liveness, self.now())

    async def beat(self, identifier: str, owner: str, at: int, details: Mapping[str, str]) -> bool:
        """Note a heartbeat of an agent; return whether ``owner`` may send it."""
        health.check_details(details)
        return await self._write(health.beat, identifier, owner, at, dict(details))

    async def overdue_beats(self, before: int, limit: int) -> list[IndexedEntry]:
        """Return entries whose liveness is not ``GONE`` and whose last heartbeat is older (ms)."""
        return await self._read(health.overdue_beats, before, _limited(limit))

    # Claims of domains

    async def put_challenge(self, domain: str, owner: str, token: str, expires_at: int) -> None:
        """Store the token that a caller must show on its domain (replacing an older one)."""
        texts = (clean(domain), clean(owner), clean(token))
        await self._write(domains.put_challenge, *texts, expires_at, self.now())

    async def challenge(self, domain: str, owner: str) -> tuple[str, int] | None:
        """Return the token of a challenge and when it expires (ms)."""
        return await self._read(domains.challenge, clean(domain), clean(owner))

    async def put_claim(
        self,
        domain: str,
        owner: str,
        method: str,
        expires_at: int,
        *,
        token: str = "",
        due_at: int | None = None,
    ) -> None:
        """Note that a caller proved a domain, until a time (ms). See ``ClaimIndex``."""
        claim = DomainClaim(clean(domain), clean(owner), clean(method), clean(token), expires_at)
        await self._write(domains.put_claim, claim, expires_at if due_at is None else due_at)

    async def claims(self, owner: str) -> Mapping[str, int]:
        """Return the domains that a caller has proved, and until when (ms)."""
        return await self._read(domains.claims, clean(owner))

    async def remove_challenge(self, domain: str, owner: str) -> None:
        """Remove a challenge: its token was shown."""
        await self._write(domains.remove_challenge, clean(domain), clean(owner))

    async def claim_proofs(self, limit: int, lease: float) -> list[DomainClaim]:
        """Claim domains whose proof is to be looked for again, for ``lease`` seconds."""
        now = self.now()
        until = now + round(lease * 1000)
        return await self._write(domains.claim_proofs, _limited(limit), now, until)

    async def schedule_proof(self, domain: str, owner: str, due_at: int) -> None:
        """Say when the proof of a claim is looked for again (ms)."""
        await self._write(domains.schedule_proof, clean(domain), clean(owner), due_at)

    async def remove_claim(self, domain: str, owner: str) -> bool:
        """Remove a claim; return whether there was one."""
        return await self._write(domains.remove_claim, clean(domain), clean(owner))

    # Acts

    async def append_acts(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append acts to the audit in order, all or none; durable when it returns."""
        return await self._write(acts.append, tuple(entries), self.now()) if entries else []

    async def acts(
        self,
        *,
        after: int = 0,
        limit: int = 500,
        kind: str = "",
        actor: str = "",
        subject: str = "",
        newest: bool = False,
    ) -> Sequence[AuditLine]:
        """Return lines of the audit, in order. See ``ActIndex``."""
        return await self._read(acts.read, after, _limited(limit), kind, actor, subject, newest)


def _limited(limit: int) -> int:
    return min(max(0, limit), MAX_LIMIT)


def _prepared(drafts: Sequence[EntryDraft]) -> list[tuple[Prepared, bytes | None]]:
    return [(prepare(draft), draft.card) for draft in drafts]


def _put(
    session: Session, ready: Sequence[tuple[Prepared, bytes | None]], now: int
) -> list[IndexedEntry]:
    keys = writing.put(session, ready, now)
    return reading.load(session, [keys[prepared.place] for prepared, _ in ready])


def _search(session: Session, selection: EntrySelection, limit: int, offset: int) -> list[Match]:
    found = finding.search(session, selection, limit, offset)
    relevances = dict(found)
    return [
        Match(entry=entry, relevance=relevances[entry.key])
        for entry in reading.load(session, [key for key, _ in found])
    ]


def _browse(
    session: Session, selection: EntrySelection, order: Sequence[Order], limit: int, offset: int
) -> list[IndexedEntry]:
    return reading.load(session, finding.browse(session, selection, order, limit, offset))
