"""What a registry's index guarantees. SQLite and PostgreSQL implement it.

Every method raises ``StoreUnavailable`` when the database cannot be used. What is acknowledged is
durable. Several processes may share an index on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

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

PUBLIC: tuple[str, ...] = ()
"""The tokens of a viewer that proved nothing: sees entries without an audience."""


class Viewer(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks: entries without an audience, or with one of the ``tokens``; all of them for an
    operator (``sees_all``), who sees other standings than ``LISTED`` too.
    """

    tokens: tuple[str, ...] = PUBLIC
    sees_all: bool = False


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on the values of a field path: one of ``values``, by ``operator``.

    ``eq`` compares without regard to case; ``contains`` looks for a part; ``gt``, ``ge``, ``lt``
    and ``le`` compare numbers with numbers, times (ISO 8601) with times, and texts with texts.
    ``negated`` entries have no such value. ``registry.createdAt`` and ``registry.updatedAt`` are
    when the index got the entry, and when it last changed there; they can be compared only.
    """

    field: str
    values: tuple[str, ...]
    operator: str = "eq"
    negated: bool = False


class EntrySelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries: all constraints hold, and the viewer may see them."""

    viewer: Viewer = Viewer()
    constraints: tuple[Constraint, ...] = ()
    standings: tuple[EntryStanding, ...] = (EntryStanding.LISTED,)
    words: str = ""
    """A need in natural language; empty selects whatever it says."""
    keys: tuple[int, ...] | None = None
    """Only entries of these keys, those that another index found; ``None`` for any."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A field to order by: ``displayName``, ``identifier``, ``publisher``, ``type``, ``version``,
    ``createdAt``, ``updatedAt``.
    """

    field: str
    descending: bool = False


class EntryIndex(Protocol):
    """Entries, and how they are found."""

    async def put(self, drafts: Sequence[EntryDraft]) -> list[IndexedEntry]:
        """Put entries, each replacing the one of its identifier and source. Unchanged ones get a
        new ``seen_at`` only; a changed card is kept as a version.

        An identifier that several sources have is listed once: of the strongest authority, then
        the oldest.
        """
        ...

    async def withdraw(self, source: str, keep: Sequence[str], reason: str) -> int:
        """Withdraw the entries of a source that are not in ``keep``; return how many."""
        ...

    async def withdraw_entries(self, keys: Sequence[int], reason: str) -> int:
        """Withdraw some entries; return how many. What an operator decided of them stays."""
        ...

    async def decide(self, key: int, standing: EntryStanding, reason: str, by: str) -> bool:
        """Set the standing of an entry, as an operator decided; return whether there is one.

        ``HELD`` and ``REJECTED`` stay, whatever the source sends, until the operator decides again.
        ``LISTED`` lets a held card through: as long as the card is the same, it is not held again.
        Raises ``ValueError`` for listing an entry whose signature does not hold.
        """
        ...

    async def search(self, selection: EntrySelection, limit: int, offset: int) -> list[Match]:
        """Return the entries that match words, the most relevant first, then by key."""
        ...

    async def count(self, selection: EntrySelection) -> int:
        """Return how many entries match. With words, those within the cutoff of ``search``."""
        ...

    async def facet(
        self, selection: EntrySelection, field: str, limit: int, min_count: int
    ) -> tuple[list[tuple[str, int]], int]:
        """Return the values of a field with their counts, the most frequent first, and how many
        entries are in those left out.
        """
        ...

    async def forget(self, before: int, limit: int = 1_000) -> int:
        """Remove entries that were withdrawn before a time (ms); return how many.

        Who follows ``changes`` must have come past their withdrawal by then.
        """
        ...

    async def browse(
        self, selection: EntrySelection, order: Sequence[Order], limit: int, offset: int
    ) -> list[IndexedEntry]:
        """Return entries in an order, and by key where that leaves it open."""
        ...

    async def entry(self, identifier: str, viewer: Viewer) -> IndexedEntry | None:
        """Return the entry listed for an identifier; the strongest for an operator."""
        ...

    async def entries_of(self, identifier: str) -> list[IndexedEntry]:
        """Return the entries of an identifier from all sources, with every standing."""
        ...

    async def versions(self, identifier: str, limit: int = 50) -> list[CardVersion]:
        """Return the versions of a card, the newest first."""
        ...

    async def changes(self, after: int, limit: int) -> list[IndexedEntry]:
        """Return entries by when they last changed (a number of the index), for other indexes that
        follow it, such as the one by meaning; also those that are not listed any more.

        Go on with the ``change`` of the last one. Numbers are committed in their order, so that
        none is missed; an entry that changes again is returned again, under a later number.
        """
        ...


class SourceIndex(Protocol):
    """Sources, and when each is visited next. A visit is claimed, so that one process makes it."""

    async def add_sources(self, sources: Sequence[Source]) -> int:
        """Add sources that are not known; return how many."""
        ...

    async def claim_sources(self, limit: int, lease: float) -> list[Source]:
        """Claim sources that are due, for ``lease`` seconds. A claim that is not ended expires.

        Catalogs, sites and files are visited, and the cards of what was pushed; registries are not.
        """
        ...

    async def end_visit(self, source: Source, began: Source | None = None) -> bool:
        """Store what a visit found, and when the next is due; end the claim.

        ``began`` is the source as it was when the visit began: what others changed of its settings
        since then stays, and it is due again. Return whether there still is the source.
        """
        ...

    async def change_source(self, source: Source) -> None:
        """Store a source, whose visit may go on."""
        ...

    async def source(self, url: str) -> Source | None:
        """Return the source at an address."""
        ...

    async def sources(
        self, state: SourceState | None = None, limit: int = 1000
    ) -> Sequence[Source]:
        """Return sources, for the operator."""
        ...

    async def remove_source(self, url: str) -> bool:
        """Remove a source and withdraw its entries; return whether there was one."""
        ...


class HealthIndex(Protocol):
    """What is measured of agents. A probe is claimed like a visit."""

    async def claim_probes(self, limit: int, lease: float) -> list[IndexedEntry]:
        """Claim listed A2A entries whose probe is due."""
        ...

    async def end_probe(self, key: int, observed: Observed, due_at: int) -> None:
        """Store what a probe found (ms: when the next is due), and end the claim."""
        ...

    async def postpone_probe(self, key: int, due_at: int) -> None:
        """End a claim without a probe; the next is due at a time (ms)."""
        ...

    async def silence(self, key: int, last_beat: int, liveness: Liveness) -> bool:
        """Note that heartbeats stay away since ``last_beat``, unless one came since, and let the
        agent be probed now; return whether anything changed.
        """
        ...

    async def beat(self, identifier: str, owner: str, at: int, details: Mapping[str, str]) -> bool:
        """Note a heartbeat of an agent; return whether ``owner`` may send it."""
        ...

    async def overdue_beats(self, before: int, limit: int) -> list[IndexedEntry]:
        """Return entries whose liveness is not ``GONE`` and whose last heartbeat is older (ms)."""
        ...


class ClaimIndex(Protocol):
    """Which callers have proved that a domain is theirs."""

    async def put_challenge(self, domain: str, owner: str, token: str, expires_at: int) -> None:
        """Store the token that a caller must show on its domain (replacing an older one)."""
        ...

    async def challenge(self, domain: str, owner: str) -> tuple[str, int] | None:
        """Return the token of a challenge and when it expires (ms)."""
        ...

    async def remove_challenge(self, domain: str, owner: str) -> None:
        """Remove a challenge: its token was shown."""
        ...

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
        """Note that a caller proved a domain, by ``dns`` or ``well-known``, until a time (ms).

        ``token`` is what was shown; it is looked for again at ``due_at``, or at the end.
        """
        ...

    async def claim_proofs(self, limit: int, lease: float) -> list[DomainClaim]:
        """Claim domains whose proof is to be looked for again, for ``lease`` seconds."""
        ...

    async def schedule_proof(self, domain: str, owner: str, due_at: int) -> None:
        """Say when the proof of a claim is looked for again (ms)."""
        ...

    async def remove_claim(self, domain: str, owner: str) -> bool:
        """Remove a claim; return whether there was one."""
        ...

    async def claims(self, owner: str) -> Mapping[str, int]:
        """Return the domains that a caller has proved, and until when (ms)."""
        ...


class ActIndex(Protocol):
    """The audit of a registry: what callers and operators did, as one chain over all processes.

    Lines are added and never changed.
    """

    async def append_acts(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append acts in order, all or none; durable when it returns."""
        ...

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
        """Return lines with a number above ``after``, in order; the ``newest`` ones at wish.

        ``kind`` selects a kind and those below it: ``entry`` selects ``entry.published``.
        """
        ...


class RegistryIndex(EntryIndex, SourceIndex, HealthIndex, ClaimIndex, ActIndex, Protocol):
    """All of it, with its lifecycle."""

    name: str
    """What it is called in messages: an address without credentials."""

    async def open(self) -> None:
        """Open it, with its schema up to date."""
        ...

    async def close(self) -> None:
        """Finish what was begun, and close it."""
        ...

    def now(self) -> int:
        """Return the time in ms, by the clock that all processes share."""
        ...
