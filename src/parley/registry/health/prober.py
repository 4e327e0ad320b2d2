"""Schedules the probes of agents, and receives the heartbeats of agents.

A slow probe delays no other probe. Only its publisher can send heartbeats for an agent; an agent
without heartbeats is suspect, then gone. After downtime of this registry, no agent is suspect until
it had time to send a heartbeat again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec

from parley.model.backoff import Backoff, uniform
from parley.model.bounded import Bounded
from parley.model.concurrency import Periodic
from parley.model.errors import InvalidParamsError
from parley.model.service import Caller
from parley.registry.catalog.entries import MAX_URN
from parley.registry.claims import ClaimedWork
from parley.registry.health.probing import (
    MAX_HOSTS,
    AgentProbe,
    HostTurns,
    ProbePostponed,
    host_of_agent,
)
from parley.registry.health.settings import (
    HealthSettings,
    ProbeFinding,
    ProbeOutcome,
    failures_in_a_row,
    observe,
)
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.reading import one_form
from parley.registry.publishing.callers import CallerRates
from parley.registry.publishing.proofs import owner_of
from parley.registry.records import AgentHealth, EntryStanding, IndexedEntry, Liveness, Observed
from parley.store.protocols.errors import StoreUnavailable

# Heartbeats: agents report that they are alive; an agent that stops is suspect, then gone.

MAX_BEATS = 500
MAX_OVERDUE = 10_000


Identifier = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_URN})]


class BeatAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The agents recorded as alive, and when the next heartbeat is due (seconds).

    ``unknown`` agents are not recorded, because this caller has not published them.
    """

    alive: tuple[Identifier, ...]
    unknown: tuple[Identifier, ...]
    interval: Annotated[float, msgspec.Meta(description="In seconds.")]
    suspect_after: float
    gone_after: float


class Heartbeats:
    """Receives heartbeats, and finds agents whose heartbeats are missing."""

    def __init__(
        self, index: RegistryIndex, rates: CallerRates, settings: HealthSettings | None = None
    ) -> None:
        self._index = index
        self._rates = rates
        self._settings = settings or HealthSettings()
        self._sweeps = Periodic(
            "looking for missing heartbeats",
            self._sweep,
            self._settings.beat / 2,
            log=log,
            expected=StoreUnavailable,
        )
        self._grace_until = 0
        self._swept_at: int | None = None

    @property
    def suspect_seconds(self) -> float:
        """The number of seconds without a heartbeat after which an agent is suspect."""
        return self._settings.beat * (self._settings.suspect_after + 0.5)

    @property
    def gone_seconds(self) -> float:
        """The number of seconds without a heartbeat after which an agent is gone."""
        return self._settings.beat * (self._settings.gone_after + 0.5)

    async def start(self) -> None:
        """Start looking for missing heartbeats. Idempotent."""
        self._sweeps.start()

    async def stop(self) -> None:
        """Stop looking for missing heartbeats. Idempotent."""
        await self._sweeps.stop()
        self._swept_at = None

    async def beat(
        self, caller: Caller, identifiers: Sequence[str], details: Mapping[str, str] | None = None
    ) -> BeatAnswer:
        """Record that agents of a caller are alive. Raises ``A2AError``, ``StoreUnavailable``."""
        owner = owner_of(caller)
        names = list(dict.fromkeys(map(one_form, identifiers)))
        if not 0 < len(names) <= MAX_BEATS:
            raise InvalidParamsError(
                f"a heartbeat must name 1 to {MAX_BEATS} agents by their identifiers"
            )
        self._rates.take(owner, "beat", len(names))
        now = self._index.now()
        alive: list[str] = []
        unknown: list[str] = []
        try:
            noted = await asyncio.gather(
                *(self._index.beat(name, owner, now, dict(details or {})) for name in names)
            )
        except ValueError as error:
            raise InvalidParamsError(str(error)) from None
        for name, is_own in zip(names, noted, strict=True):
            (alive if is_own else unknown).append(name)
        return BeatAnswer(
            alive=tuple(alive),
            unknown=tuple(unknown),
            interval=self._settings.beat,
            suspect_after=self.suspect_seconds,
            gone_after=self.gone_seconds,
        )

    async def sweep(self) -> int:
        """Update agents with missing heartbeats; return how many changed. Raises
        ``StoreUnavailable``.

        A late sweep, for example after downtime of the registry, starts a grace period.
        """
        now = self._index.now()
        late = round(self.suspect_seconds * 1000)
        if self._swept_at is None or not 0 <= now - self._swept_at <= late:
            self._grace_until = now + late
        self._swept_at = now
        if now < self._grace_until:
            return 0
        gone = now - round(self.gone_seconds * 1000)
        changed = 0
        for entry in await self._index.overdue_beats(now - late, MAX_OVERDUE):
            last = entry.observed.last_beat
            if last is None:
                continue
            liveness = Liveness.GONE if last < gone else Liveness.SUSPECT
            if liveness is entry.observed.liveness:
                continue
            if await self._index.silence(entry.key, last, liveness):
                changed += 1
                if entry.standing is not EntryStanding.LISTED:
                    continue  # its owner withdrew the entry, and stopped the agent
                silent = (now - last) / 1000
                log.warning(
                    "%.200s is %s: no heartbeat for %.0f s", entry.identifier, liveness, silent
                )
        return changed

    async def _sweep(self) -> None:
        try:
            await self.sweep()
        except StoreUnavailable:
            # During the outage heartbeats could not be stored: missing heartbeats are not the
            # agents' fault.
            self._swept_at = None
            raise


log = logging.getLogger("parley.registry")

POSTPONED_SECONDS = 5.0


class Prober:
    """Probes the agents of an index, up to ``settings.at_once`` at a time.

    A process claims a probe; if it is killed, another process makes the probe. An agent whose host
    is being probed is postponed, so that an unresponsive host delays only its own agents.
    """

    def __init__(
        self, index: RegistryIndex, probe: AgentProbe, settings: HealthSettings | None = None
    ) -> None:
        self._index = index
        self._probe = probe
        self._settings = settings or HealthSettings()
        self._turns = HostTurns(self._settings.per_host, self._settings.per_host_seconds)
        self._waiting: Bounded[str, int] = Bounded(MAX_HOSTS)
        self._probes = ClaimedWork(
            partial(index.claim_probes, lease=self._settings.lease),
            self._admit,
            self._one,
            lambda entry: f"the probe of {entry.identifier:.200}",
            most=self._settings.at_once,
            seconds=self._settings.poll,
        )

    async def start(self) -> None:
        """Start probing. Idempotent."""
        self._probes.start()

    async def stop(self) -> None:
        """Stop all probes; their claims expire. Idempotent."""
        await self._probes.stop()
        await self._probe.close()

    async def probe(self, entry: IndexedEntry) -> Observed:
        """Probe an agent now; store and return the observations.

        Raises ``StoreUnavailable``, ``ProbePostponed``.
        """
        before = entry.observed
        now = self._index.now()
        wait = round(self._settings.message_seconds * 1000)
        may_message = before.messaged_at is None or now - before.messaged_at >= wait
        try:
            found = await self._probe.probe(entry, may_message=may_message)
        except ProbePostponed:
            raise
        except Exception as error:
            log.exception("the probe of %.200s failed", entry.identifier)
            words = f"the registry failed to probe it: {type(error).__name__}, see the log"
            found = ProbeFinding(outcome=ProbeOutcome.ERRORS, reason=words)
        now = self._index.now()
        observed = observe(before, found, now, self._settings)
        await self._index.end_probe(entry.key, observed, now + self._wait(observed, found))
        if observed.health is not before.health:
            level = logging.INFO if observed.health is AgentHealth.HEALTHY else logging.WARNING
            log.log(
                level,
                "%.200s is %s%s",
                entry.identifier,
                observed.health.value,
                f": {observed.reason}" if observed.reason else "",
            )
        return observed

    def _wait(self, observed: Observed, found: ProbeFinding) -> int:
        """Return the number of ms until an agent's next probe."""
        settings = self._settings
        failures = failures_in_a_row(observed.samples)
        if failures:
            seconds = Backoff(settings.retry, settings.longest).delay(failures)
        elif observed.health is AgentHealth.DEGRADED:
            seconds = min(settings.interval, settings.retry * 2)
        else:
            seconds = settings.interval
        seconds = max(seconds, min(found.retry_after or 0.0, settings.longest))
        return round(seconds * uniform(*settings.jitter) * 1000)

    async def _admit(self, entry: IndexedEntry) -> bool:
        """Return whether an agent is probed now: its host may have too many running probes.

        The more agents of a host are waiting, the longer each is postponed.
        """
        host = host_of_agent(entry)
        is_turn = self._turns.begin([host])
        waiting = max(0, self._waiting.get(host, 0) + (-1 if is_turn else 1))
        self._waiting[host] = waiting
        if not waiting:
            del self._waiting[host]
        if not is_turn:
            await self._postpone(entry, POSTPONED_SECONDS * (1 + waiting / 20))
        return is_turn

    async def _postpone(self, entry: IndexedEntry, seconds: float) -> None:
        wait = uniform(0.5, 1.5) * min(seconds, self._settings.interval / 2)
        await self._index.postpone_probe(entry.key, self._index.now() + round(wait * 1000))

    async def _one(self, entry: IndexedEntry) -> None:
        try:
            await self.probe(entry)
        except ProbePostponed:
            await self._postpone(entry, POSTPONED_SECONDS)
        finally:
            self._turns.end([host_of_agent(entry)])
