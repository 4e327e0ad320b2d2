"""The index of a registry: its entries, sources, health, proved domains and audit log.

Every method raises ``StoreUnavailable`` if the database cannot be used. A completed write is
durable. Several processes may share an index on PostgreSQL.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from parley.database.database import Database
from parley.registry.index import writing
from parley.registry.index.entry_search import ChangedEntry, EntrySearch, SearchTables
from parley.registry.index.prepared import MAX_SOURCE_BYTES, clean, cleaned, prepare
from parley.registry.index.writing import Row, Session, Values
from parley.registry.records import (
    AgentHealth,
    CardVersion,
    DomainClaim,
    EntryDraft,
    EntrySelection,
    EntryStanding,
    IndexedEntry,
    Liveness,
    Match,
    Observed,
    Order,
    Source,
    Trust,
    Viewer,
)
from parley.store.audit.trail import AuditEntry, AuditLine, line_columns, line_of, lines_after

MAX_LIMIT = 10_000
"""The most items that one call returns."""

MAX_DETAILS = 32
MAX_DETAIL = 500

CHANGES = 500
"""The number of changed entries read at a time."""

CHALLENGE_KEPT_MS = 24 * 3_600_000
"""The time for which an expired challenge is kept, to report that it has expired."""

SHADOWED_REASON = "another source, stronger or older, lists the same identifier"
SILENT = "its heartbeats are missing"
_SILENCE = (Liveness.NONE, Liveness.ALIVE, Liveness.SUSPECT, Liveness.GONE)

_DOCUMENT = msgspec.json.Decoder(EntryDraft)
_OBSERVED = msgspec.json.Decoder(Observed)
_DIFFERENCE = msgspec.json.Decoder(tuple[dict[str, Any], ...])
_SOURCE = msgspec.json.Decoder(Source)

T = TypeVar("T")


class RegistryIndex(ABC):
    """An index on a SQL database, with transactional writes.

    ``name`` is its address without credentials. Limits are clamped to 0 to 10,000. Raises
    ``ValueError`` for values that no index can store or answer.
    """

    def __init__(self, database: Database[Any]) -> None:
        self._database = database
        self._claimer = uuid4().hex
        self._search = EntrySearch()
        self._catching_up = asyncio.Lock()
        self.losses = 0
        """How often the database lost changes: followers of changes then start again from the
        beginning.
        """
        self.name = database.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @abstractmethod
    def _session(self, connection: Any) -> Session:
        """Return a session of a connection."""

    @abstractmethod
    def now(self) -> int:
        """Return the time in ms, by the clock shared by all processes."""

    @property
    def migrated(self) -> Sequence[str]:
        """The migrations that ``open`` ran."""
        return self._database.migrated

    async def open(self) -> None:
        """Open it, with an up-to-date schema."""
        await self._database.open()

    async def close(self) -> None:
        """Finish the running work, and close it. Idempotent."""
        await self._database.close()
        await self._search.close()

    async def _read(self, work: Callable[[Session], T]) -> T:
        return await self._database.read(lambda connection: work(self._session(connection)))

    async def _write(self, work: Callable[[Session], T], size: int = 0) -> T:
        return await self._database.write(
            lambda connection: work(self._session(connection)), size=size
        )

    async def _rows(self, statement: str, **values: Any) -> list[Row]:
        row = cleaned(values)
        return await self._read(lambda session: session.rows(statement, row))

    async def _change(self, statement: str, **values: Any) -> int:
        row = cleaned(values)
        return await self._write(lambda session: session.change(statement, row))

    async def _claim(self, statement: str, limit: int, lease: float, **values: Any) -> list[Row]:
        now = self.now()
        claimed = {**values, "limit": _limited(limit), "now": now}
        claimed["until"] = now + round(lease * 1000)
        return await self._write(lambda session: session.rows(statement, claimed))

    # Entries: writing

    async def put(self, drafts: Sequence[EntryDraft]) -> list[IndexedEntry]:
        """Store entries, each replacing the entry of its identifier and source. Unchanged entries
        get a new ``seen_at`` only; a changed card is stored as a version.

        An identifier with several sources is listed once: the entry of the strongest authority,
        then the oldest.
        """
        if not drafts:
            return []
        ready = await asyncio.to_thread(lambda: [(prepare(each), each.card) for each in drafts])
        now = self.now()

        def work(session: Session) -> list[IndexedEntry]:
            keys = writing.put(session, ready, now)
            return _load(session, [keys[prepared.place] for prepared, _ in ready])

        size = sum([len(each.document) + len(card or b"") for each, card in ready])
        return await self._write(work, size)

    async def withdraw(self, source: str, keep: Sequence[str], reason: str) -> int:
        """Withdraw the entries of a source that are not in ``keep``; return their number."""
        url, kept, words, now = clean(source), [*map(clean, keep)], clean(reason), self.now()
        return await self._write(lambda session: writing.withdraw(session, url, kept, words, now))

    async def withdraw_entries(self, keys: Sequence[int], reason: str) -> int:
        """Withdraw some entries; return their number. Decisions of operators remain."""
        now = self.now()
        return await self._write(
            lambda session: writing.withdraw_entries(session, keys, reason, now)
        )

    async def decide(self, key: int, standing: EntryStanding, reason: str, by: str) -> bool:
        """Set the standing of an entry by an operator's decision; return whether the entry exists.

        ``HELD`` and ``REJECTED`` remain, whatever the source sends, until the operator decides
        again. ``LISTED`` approves a held card: as long as the card is unchanged, it is not held
        again. Raises ``ValueError`` for listing an entry with an invalid signature.
        """
        words, who, now = clean(reason), clean(by), self.now()
        answer = await self._write(
            lambda session: writing.decide(session, key, standing, words, who, now)
        )
        if isinstance(answer, str):
            raise ValueError(answer)
        return answer

    async def forget(self, before: int, limit: int = 1_000) -> int:
        """Remove entries that were withdrawn before a time (ms); return their number.

        Readers of ``changes`` must have read their withdrawal before.
        """
        return await self._write(lambda session: writing.forget(session, before, _limited(limit)))

    # Entries: reading

    async def search(self, selection: EntrySelection, limit: int, offset: int) -> list[Match]:
        """Return the entries that match words, the best first, then by key."""
        limit, offset = _limited(limit), max(0, offset)
        found: dict[int, float] = {}

        def work(tables: SearchTables) -> list[int]:
            found.clear()
            found.update(tables.search(selection, limit, offset))
            return list(found)

        return [Match(entry=entry, relevance=found[entry.key]) for entry in await self._found(work)]

    async def count(self, selection: EntrySelection) -> int:
        """Return how many entries match. With words, only matches within the cutoff of
        ``search``.
        """
        await self.catch_up()
        return await self._search.run(lambda tables: tables.count(selection))

    async def facet(
        self, selection: EntrySelection, field: str, limit: int, min_count: int
    ) -> tuple[list[tuple[str, int]], int]:
        """Return the values of a field with their counts, the most frequent first, and the number
        of entries with other values.
        """
        least = max(1, min_count)
        await self.catch_up()
        return await self._search.run(
            lambda tables: tables.facet(selection, field, _limited(limit), least)
        )

    async def browse(
        self, selection: EntrySelection, order: Sequence[Order], limit: int, offset: int
    ) -> list[IndexedEntry]:
        """Return entries in an order, and by key among equal entries."""
        limit, offset = _limited(limit), max(0, offset)
        return await self._found(lambda tables: tables.browse(selection, order, limit, offset))

    async def _found(self, work: Callable[[SearchTables], list[int]]) -> list[IndexedEntry]:
        """Return the entries that a search finds, without entries that changed since: their
        audience may have changed too.
        """
        while True:
            await self.catch_up()
            seen = self._search.change
            keys = await self._search.run(work)
            entries = await self._read(partial(_load, keys=keys))
            if any(entry.change > seen for entry in entries):
                continue
            if len(entries) == len(keys):
                return entries
            # An entry that another process has removed leaves no change to read.
            forgotten = set(keys) - {entry.key for entry in entries}
            await self._search.run(partial(SearchTables.remove, keys=forgotten))

    async def catch_up(self) -> None:
        """Make all committed changes visible to searches. Each search does this first.

        If the last change of the database is older than expected, it has lost changes (a backup, or
        a failover to a standby): then everything is read anew.
        """
        async with self._catching_up:
            while True:
                values = {"after": self._search.change, "limit": CHANGES}
                last, rows = await self._read(partial(_changes, values=values))
                if last < self._search.change:
                    await self._search.forget()
                    self.losses += 1
                elif rows:
                    await self._search.put([_changed(row) for row in rows])
                else:
                    return

    async def entry(self, identifier: str, viewer: Viewer) -> IndexedEntry | None:
        """Return the listed entry of an identifier; the strongest entry for an operator."""
        first = await self._read(lambda session: _load(session, _keys_of(session, identifier)[:1]))
        for entry in first:
            is_seen = not entry.audience or not set(entry.audience).isdisjoint(viewer.tokens)
            if viewer.sees_all or (entry.standing is EntryStanding.LISTED and is_seen):
                return entry
        return None

    async def entries_of(self, identifier: str) -> list[IndexedEntry]:
        """Return the entries of an identifier from all sources: the listed one first, then by
        authority and age.
        """
        return await self._read(lambda session: _load(session, _keys_of(session, identifier)))

    async def versions(self, identifier: str, limit: int = 50) -> list[CardVersion]:
        """Return the versions of the card of an identifier's strongest entry, the newest first."""

        def work(session: Session) -> list[Row]:
            keys = _keys_of(session, identifier)[:1]
            values = [{"key": key, "limit": _limited(limit)} for key in keys]
            return [row for each in values for row in session.rows("versions", each)]

        return [
            CardVersion(
                digest=digest,
                seen_at=seen_at,
                version=version,
                difference=_DIFFERENCE.decode(changes),
                card=bytes(card),
            )
            for digest, seen_at, version, changes, card in await self._read(work)
        ]

    async def changes(self, after: int, limit: int) -> list[IndexedEntry]:
        """Return entries by the number of their last change, for other indexes that follow this
        one, such as the index by meaning; unlisted entries are included.

        Continue with the ``change`` of the last entry. Numbers are committed in order, so no change
        is missed; an entry that changes again is returned again, with a higher number.
        """
        return await self._entries("changed_keys", after=after, limit=_limited(limit))

    async def _entries(self, statement: str, **values: Any) -> list[IndexedEntry]:
        return await self._read(
            lambda session: _load(session, [key for (key,) in session.rows(statement, values)])
        )

    # Sources, and the time of the next visit of each. A process claims a visit before it makes it.

    async def add_sources(self, sources: Sequence[Source]) -> int:
        """Add unknown sources; return their number."""
        rows = [_columns(source) for source in sources]
        if not rows:
            return 0
        return await self._write(
            lambda session: sum([session.change("add_source", row) for row in rows])
        )

    async def claim_sources(self, limit: int, lease: float) -> list[Source]:
        """Claim due sources, for ``lease`` seconds, the longest waiting first. A claim that is not
        ended expires.

        Catalogs, sites and files are visited, and the cards of published entries; registries are
        not.
        """
        rows = await self._claim("claim_sources", limit, lease, by=self._claimer)
        found = [_SOURCE.decode(source) for (source,) in rows]
        return sorted(found, key=lambda source: (source.due_at, source.url))

    async def renew_sources(self, urls: Sequence[str], lease: float) -> None:
        """Extend this process's claims of sources by ``lease`` seconds."""
        until = self.now() + round(lease * 1000)
        rows = [{"url": clean(url), "until": until, "by": self._claimer} for url in urls]
        await self._write(lambda session: session.many("renew_source", rows))

    async def end_visit(self, source: Source, began: Source | None = None) -> bool:
        """Store the results of a visit, and the time of the next; end the claim, unless another
        process has it. Return whether the source still exists.

        ``began`` is the source at the start of the visit: settings changed since then are kept, and
        the source is due again. A source that is returned without a visit keeps its earlier state.
        """
        columns = _columns(source)

        def work(session: Session) -> bool:
            now = None if began is None else _source_at(session, columns["url"])
            row = columns
            if now is not None and began is not None:
                if source.fetched_at == began.fetched_at != now.fetched_at:
                    return True
                if _given(now) != _given(began):
                    row = _columns(
                        msgspec.structs.replace(
                            now, state=source.state, reason=source.reason,
                            failures=source.failures, entries=source.entries,
                            fetched_at=source.fetched_at, etag="", last_modified="", due_at=0,
                        )
                    )  # fmt: skip
            return session.change("end_visit", {**row, "by": self._claimer}) > 0

        return await self._write(work)

    async def change_source(self, source: Source) -> None:
        """Store a source, even while it is being visited."""
        await self._change("end_visit", **_columns(source), by="")

    async def source(self, url: str) -> Source | None:
        """Return the source at an address."""
        return await self._read(lambda session: _source_at(session, clean(url)))

    async def sources(self, limit: int = 1000) -> Sequence[Source]:
        """Return sources in the order of their addresses, for the operator."""
        rows = await self._rows("sources", limit=_limited(limit))
        return [_SOURCE.decode(source) for (source,) in rows]

    async def remove_source(self, url: str) -> bool:
        """Remove a source and withdraw its entries; return whether there was one."""
        url, now = clean(url), self.now()

        def work(session: Session) -> bool:
            is_known = session.change("remove_source", {"url": url}) > 0
            if is_known:
                writing.withdraw(session, url, (), "its source was removed", now)
            return is_known

        return await self._write(work)

    # Measurements of agents. A probe is claimed like a visit.

    async def claim_probes(self, limit: int, lease: float) -> list[IndexedEntry]:
        """Claim listed A2A entries whose probe is due."""
        now = self.now()
        values = {"limit": _limited(limit), "now": now, "until": now + round(lease * 1000)}
        return await self._write(
            lambda session: _load(
                session, sorted([key for (key,) in session.rows("claim_probes", values)])
            )
        )

    async def end_probe(self, key: int, observed: Observed, due_at: int) -> None:
        """Store the results of a probe and the time of the next (ms), and end the claim. A
        heartbeat received in the meantime is kept.
        """

        def work(session: Session) -> None:
            if not session.rows("has_entry", {"key": key}):
                return
            before, found = _observed(session, key), observed
            if _order(before) > _order(found):
                found = msgspec.structs.replace(
                    found,
                    last_beat=before.last_beat,
                    liveness=before.liveness,
                    beat_details=before.beat_details,
                )
                is_silent = found.liveness in (Liveness.SUSPECT, Liveness.GONE)
                if is_silent and found.health is AgentHealth.HEALTHY:
                    found = msgspec.structs.replace(
                        found, health=AgentHealth.DEGRADED, reason=SILENT
                    )
            _put_observed(session, key, before, found)
            session.change("schedule_probe", {"key": key, "due_at": due_at})

        await self._write(work)

    async def postpone_probe(self, key: int, due_at: int) -> None:
        """End a claim without a probe; the next is due at a time (ms)."""
        await self._change("schedule_probe", key=key, due_at=due_at)

    async def silence(self, key: int, last_beat: int, liveness: Liveness) -> bool:
        """Record that heartbeats are missing since ``last_beat``, unless a heartbeat came since,
        and schedule a probe now; return whether anything changed.

        Until the next probe, a suspect agent is at best degraded, and a gone agent is unreachable.
        """
        now = self.now()

        def work(session: Session) -> bool:
            before = _observed(session, key)
            if before.last_beat != last_beat or before.liveness in (liveness, Liveness.GONE):
                return False
            health, reason = before.health, before.reason
            if health is AgentHealth.HEALTHY or liveness is Liveness.GONE:
                is_gone = liveness is Liveness.GONE
                health = AgentHealth.UNREACHABLE if is_gone else AgentHealth.DEGRADED
                reason = SILENT
            silent = msgspec.structs.replace(
                before, liveness=liveness, health=health, reason=reason
            )
            _put_observed(session, key, before, silent)
            session.change("probe_at", {"key": key, "due_at": now})
            return True

        return await self._write(work)

    async def beat(self, identifier: str, owner: str, at: int, details: Mapping[str, str]) -> bool:
        """Record a heartbeat of an agent; return whether ``owner`` may send it."""
        if len(details) > MAX_DETAILS or any(
            len(name) > MAX_DETAIL or len(value) > MAX_DETAIL for name, value in details.items()
        ):
            raise ValueError(
                f"a heartbeat may have up to {MAX_DETAILS} details, each a name and a value of up "
                "to "
                f"{MAX_DETAIL} characters"
            )
        if not owner:
            return False
        values = {"identifier": clean(identifier), "owner": clean(owner)}
        said = {clean(name): clean(value) for name, value in details.items()}

        def work(session: Session) -> bool:
            keys = [key for (key,) in session.rows("keys_of_owner", values)]
            for key in keys:
                before = _observed(session, key)
                if at >= (before.last_beat or 0):
                    alive = msgspec.structs.replace(
                        before, liveness=Liveness.ALIVE, last_beat=at, beat_details=said
                    )
                    _put_observed(session, key, before, alive)
                    if before.liveness in (Liveness.SUSPECT, Liveness.GONE):
                        session.change("probe_at", {"key": key, "due_at": at})
            return bool(keys)

        return await self._write(work)

    async def overdue_beats(self, before: int, limit: int) -> list[IndexedEntry]:
        """Return entries whose liveness is not ``GONE`` and whose last heartbeat is older than
        ``before`` (ms), the oldest heartbeat first.
        """
        return await self._entries("overdue_beats", before=before, limit=_limited(limit))

    # The domains that callers have proved.

    async def put_challenge(self, domain: str, owner: str, token: str, expires_at: int) -> None:
        """Store the token that a caller must publish on its domain (replacing an earlier token),
        and remove tokens that expired long ago.
        """
        values = {"domain": clean(domain), "owner": clean(owner), "token": clean(token)}
        before = self.now() - CHALLENGE_KEPT_MS

        def work(session: Session) -> None:
            session.change("prune_challenges", {"before": before})
            session.change("put_challenge", {**values, "expires_at": expires_at})

        await self._write(work)

    async def challenge(self, domain: str, owner: str) -> tuple[str, int] | None:
        """Return the token of a challenge and its expiry (ms)."""
        rows = await self._rows("challenge", domain=domain, owner=owner)
        return (rows[0][0], rows[0][1]) if rows else None

    async def remove_challenge(self, domain: str, owner: str) -> None:
        """Remove a challenge after its token was found."""
        await self._change("remove_challenge", domain=domain, owner=owner)

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
        """Record that a caller proved a domain, by ``dns`` or ``well-known``, until a time (ms).

        ``token`` is the published text; it is checked again at ``due_at``, or at the end.
        """
        await self._change(
            "put_claim",
            domain=domain,
            owner=owner,
            method=method,
            token=token,
            expires_at=expires_at,
            due_at=expires_at if due_at is None else due_at,
        )

    async def claim_proofs(self, limit: int, lease: float) -> list[DomainClaim]:
        """Claim domains whose proof is due for a check, for ``lease`` seconds."""
        return [DomainClaim(*row) for row in await self._claim("claim_proofs", limit, lease)]

    async def schedule_proof(self, domain: str, owner: str, due_at: int) -> None:
        """Schedule the next check of a claim's proof (ms)."""
        await self._change("schedule_proof", domain=domain, owner=owner, due_at=due_at)

    async def remove_claim(self, domain: str, owner: str) -> bool:
        """Remove a claim; return whether there was one."""
        return await self._change("remove_claim", domain=domain, owner=owner) > 0

    async def claims(self, owner: str) -> Mapping[str, int]:
        """Return the domains that a caller has proved, with their expiry (ms)."""
        return {domain: until for domain, until in await self._rows("claims", owner=owner)}

    # The audit log: actions of callers and operators, as one hash chain over all processes.

    async def append_acts(self, entries: Sequence[AuditEntry]) -> Sequence[AuditLine]:
        """Append acts in order, all or none; acts with an existing id are left out. Lines are never
        changed.
        """
        now = self.now()

        def work(session: Session) -> list[AuditLine]:
            session.rows("lock_acts")
            ids = {"ids": session.listed([each.id for each in entries])}
            known = {id for (id,) in session.rows("known_acts", ids)}
            rows = session.rows("last_act")
            head = (int(rows[0][0]), str(rows[0][1])) if rows else None
            lines = lines_after(head, [each for each in entries if each.id not in known], now)
            for line in lines:
                session.change("add_act", line_columns(line))
            return lines

        return await self._write(work) if entries else []

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
        """Return lines with a number above ``after``, in order; with ``newest`` the last lines.

        ``kind`` selects a kind and its subkinds: ``entry`` selects ``entry.published``.
        """
        rows = await self._rows(
            "newest_acts" if newest else "acts",
            after=after,
            limit=_limited(limit),
            kind=kind,
            actor=actor,
            subject=subject,
        )
        lines = [line_of(row) for row in rows]
        return lines[::-1] if newest else lines


def _limited(limit: int) -> int:
    return min(max(0, limit), MAX_LIMIT)


def _keys_of(session: Session, identifier: str) -> list[int]:
    """Return the keys of an identifier: the listed entry first, then by authority and age."""
    rows = session.rows("keys_of_identifier", {"identifier": clean(identifier)})
    return [key for (key,) in rows]


def _load(session: Session, keys: Sequence[int]) -> list[IndexedEntry]:
    """Return entries in the order of ``keys``; removed entries are left out."""
    if not keys:
        return []
    rows = session.rows("entries", {"keys": session.listed(list(dict.fromkeys(keys)))})
    found = {int(row[0]): _entry(row) for row in rows}
    return [found[key] for key in keys if key in found]


def _entry(row: Row) -> IndexedEntry:
    (
        key,
        standing,
        reason,
        trust,
        card_digest,
        created_at,
        updated_at,
        seen_at,
        revision,
        change,
        document,
        card,
        *observed,
    ) = row
    draft = msgspec.structs.asdict(_DOCUMENT.decode(document))
    if standing == EntryStanding.SHADOWED.value and not reason:
        reason = SHADOWED_REASON
    return IndexedEntry(
        **{
            **draft,
            "standing": EntryStanding(standing),
            "reason": reason,
            "trust": Trust(trust),
            "card": None if card is None else bytes(card),
            "card_digest": card_digest,
        },
        key=key,
        created_at=created_at,
        updated_at=updated_at,
        seen_at=seen_at,
        revision=revision,
        change=change,
        observed=_observed_from(tuple(observed)),
    )


def _changes(session: Session, values: Values) -> tuple[int, list[Row]]:
    """Return the number of the last change, and the entries that changed after a given change."""
    rows = session.rows("changed_entries", values)
    [(last,)] = session.rows("counter", {"name": "change"})
    return int(last), rows


def _changed(row: Row) -> ChangedEntry:
    change, key, standing, created_at, updated_at, document, observed, liveness = row
    health = "" if observed is None else _OBSERVED.decode(observed).health.value
    return ChangedEntry(
        change,
        key,
        standing,
        created_at,
        updated_at,
        _DOCUMENT.decode(document),
        health,
        liveness or "",
    )


def _columns(source: Source) -> Values:
    """Return a source as a row. Raises ``ValueError`` for a source that no index can store."""
    size = len(source.url.encode("utf-8", "replace"))
    if not 0 < size <= MAX_SOURCE_BYTES:
        raise ValueError(
            f"{source.url[:80]!r}: the address of a source must have 1 to {MAX_SOURCE_BYTES} "
            "bytes, not "
            f"{size}"
        )
    document = cleaned(msgspec.to_builtins(source))
    return {
        "url": document["url"],
        "kind": source.kind.value,
        "state": source.state.value,
        "due_at": source.due_at,
        "source": msgspec.json.encode(document),
    }


def _given(source: Source) -> tuple[object, ...]:
    """Return the members of a source that visits do not change."""
    return source.kind, source.found_by, source.depth, source.settings


def _source_at(session: Session, url: str) -> Source | None:
    rows = session.rows("source", {"url": url})
    return _SOURCE.decode(rows[0][0]) if rows else None


def _order(observed: Observed) -> tuple[int, int]:
    """Return a sort key that orders two observations: a newer heartbeat, or a longer silence, is
    later.
    """
    return observed.last_beat or 0, _SILENCE.index(observed.liveness)


def _observed(session: Session, key: int) -> Observed:
    """Return the observations of an entry. Its row stays locked until the transaction ends."""
    rows = session.rows("observation", {"key": key})
    if not rows:  # there is no row to lock: one writer at a time inserts the first row
        session.rows("lock_changes")
        rows = session.rows("observation", {"key": key})
    return _observed_from(rows[0] if rows else (None,))


def _observed_from(row: Row) -> Observed:
    """Return the observations of a row: its JSON, liveness and last heartbeat."""
    if row[0] is None:
        return Observed()
    observed, liveness, last_beat = row
    return msgspec.structs.replace(
        _OBSERVED.decode(observed), liveness=Liveness(liveness), last_beat=last_beat
    )


def _put_observed(session: Session, key: int, before: Observed, observed: Observed) -> None:
    stands = (before.health, before.liveness) == (observed.health, observed.liveness)
    if not stands or not before.probes:
        writing.touch(session, key)
    session.change(
        "put_observation",
        {
            "key": key,
            "observed": msgspec.json.encode(observed),
            "liveness": observed.liveness.value,
            "last_beat": observed.last_beat,
        },
    )
