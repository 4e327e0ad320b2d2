"""Probes of agents as they become due, and heartbeats that agents send.

A slow probe delays no other. Only its publisher keeps an agent alive by heartbeats; an agent
that stops them is suspect, then gone. After this registry was away itself, no agent is suspect
before there was time to send a heartbeat again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec

from parley.model.backoff import Backoff, uniform
from parley.model.bounded import Bounded
from parley.model.concurrency import Periodic
from parley.model.errors import InvalidParamsError
from parley.model.service import Caller
from parley.registry.catalog.entries import MAX_URN
from parley.registry.health.probing import AgentProbe, ProbePostponed, host_of_agent
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

# Heartbeats: agents say that they are alive; an agent that stops is suspect, then gone.

MAX_BEATS = 500
MAX_OVERDUE = 10_000


Identifier = Annotated[str, msgspec.Meta(extra_json_schema={"maxLength": MAX_URN})]


class BeatAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which agents are noted as alive, and when the next heartbeat is wanted (seconds).

    ``unknown`` ones are not, because this caller has not published them.
    """

    alive: tuple[Identifier, ...]
    unknown: tuple[Identifier, ...]
    interval: Annotated[float, msgspec.Meta(description="In seconds.")]
    suspect_after: float
    gone_after: float


class Heartbeats:
    """Takes heartbeats, and notes which agents stay away."""

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
        """After how many seconds without a heartbeat an agent is suspect."""
        return self._settings.beat * (self._settings.suspect_after + 0.5)

    @property
    def gone_seconds(self) -> float:
        """After how many it is gone."""
        return self._settings.beat * (self._settings.gone_after + 0.5)

    async def start(self) -> None:
        """Begin to look for agents that stay away. Idempotent."""
        self._sweeps.start()

    async def stop(self) -> None:
        """Stop it. Idempotent."""
        await self._sweeps.stop()
        self._swept_at = None

    async def beat(
        self, caller: Caller, identifiers: Sequence[str], details: Mapping[str, str] | None = None
    ) -> BeatAnswer:
        """Note that agents of a caller are alive. Raises ``A2AError``, ``StoreUnavailable``."""
        owner = owner_of(caller)
        names = list(dict.fromkeys(map(one_form, identifiers)))
        if not 0 < len(names) <= MAX_BEATS:
            raise InvalidParamsError(
                f"a heartbeat names 1 to {MAX_BEATS} agents by their identifiers"
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
        """Note which agents stay away; return how many changed. Raises ``StoreUnavailable``.

        A sweep that comes late, as after the registry was away, begins a time of grace.
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
                    continue  # its owner withdrew it, and lets it end
                silent = (now - last) / 1000
                log.warning(
                    "%.200s is %s: no heartbeat for %.0f s", entry.identifier, liveness, silent
                )
        return changed

    async def _sweep(self) -> None:
        try:
            await self.sweep()
        except StoreUnavailable:
            # Heartbeats could not be stored either: agents are not to blame for them.
            self._swept_at = None
            raise


log = logging.getLogger("parley.registry")

MAX_HOSTS = 10_000
POSTPONED_SECONDS = 5.0
ROUNDS = 8
"""How often in a row probes are claimed before others get a turn."""


class Prober:
    """Probes the agents of an index, ``settings.at_once`` of them at a time.

    A probe is claimed: of several processes one makes it, and another one if that is killed. An
    agent whose host is probed already is put off, so that a host that does not answer holds up its
    own agents alone. ``changed`` is called with an agent whose health is another one now.
    """

    def __init__(
        self,
        index: RegistryIndex,
        probe: AgentProbe,
        settings: HealthSettings | None = None,
        *,
        changed: Callable[[IndexedEntry, Observed], None] | None = None,
    ) -> None:
        self._index = index
        self._probe = probe
        self._settings = settings or HealthSettings()
        self._changed = changed
        self._running: set[asyncio.Task[None]] = set()
        self._hosts: Counter[str] = Counter()
        self._waiting: Bounded[str, int] = Bounded(MAX_HOSTS)
        self._begun: Bounded[str, float] = Bounded(MAX_HOSTS)
        self._rounds = 0
        self._claims = Periodic(
            "claiming probes", self._step, self._settings.poll, log=log, expected=StoreUnavailable
        )
        self.probes = 0

    async def start(self) -> None:
        """Begin to probe. Idempotent."""
        self._claims.start()

    async def stop(self) -> None:
        """End all probes; their claims expire. Idempotent."""
        if not self._claims.is_running:
            return
        await self._claims.stop()
        running = [*self._running]
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._probe.close()

    async def probe(self, entry: IndexedEntry) -> Observed:
        """Probe an agent now, and store what was found; return it.

        Raises ``StoreUnavailable``, ``ProbePostponed``.
        """
        before = entry.observed
        now = self._index.now()
        wait = round(self._settings.message_seconds * 1000)
        may_message = before.messaged_at is None or now - before.messaged_at >= wait
        self.probes += 1
        try:
            found = await self._probe.probe(entry, may_message=may_message)
        except ProbePostponed:
            raise
        except Exception as error:
            log.exception("the probe of %.200s failed", entry.identifier)
            words = f"its probe failed here: {type(error).__name__}, see the log"
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
            if self._changed is not None:
                self._changed(entry, observed)
        return observed

    def _wait(self, observed: Observed, found: ProbeFinding) -> int:
        """Return in how many ms an agent is probed again."""
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

    async def _step(self) -> bool:
        """Begin probes; return whether to look for more at once."""
        if len(self._running) >= self._settings.at_once:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        self._rounds = self._rounds + 1 if await self._begin() else 0
        if self._rounds == ROUNDS:
            self._rounds = 0
        return self._rounds > 0 or len(self._running) >= self._settings.at_once

    async def _begin(self) -> bool:
        """Begin the probes of agents that are due; return whether there may be more."""
        free = self._settings.at_once - len(self._running)
        if free <= 0:
            return False
        claimed = await self._index.claim_probes(free, self._settings.lease)
        for entry in claimed:
            host = host_of_agent(entry)
            begins = self._turn(host)
            if begins:
                await self._index.postpone_probe(entry.key, self._index.now() + begins)
                continue
            self._hosts[host] += 1
            task = asyncio.create_task(self._one(entry, host), name=f"parley-probe {host[:80]}")
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return len(claimed) == free and len(self._running) < self._settings.at_once

    def _turn(self, host: str) -> int:
        """Return in how many ms a host may be probed again, 0 for now.

        The more agents of a host are waiting, the later each of them asks again.
        """
        now = asyncio.get_running_loop().time()
        is_full = self._hosts[host] >= self._settings.per_host
        begun = self._begun.get(host)
        if is_full or (begun is not None and now < begun + self._settings.per_host_seconds):
            waiting = self._waiting[host] = self._waiting.get(host, 0) + 1
            seconds = POSTPONED_SECONDS * (1 + waiting / 20)
            return round(uniform(0.5, 1.5) * min(seconds, self._settings.interval / 2) * 1000)
        self._begun[host] = now
        if (waiting := self._waiting.pop(host, 0) - 1) > 0:
            self._waiting[host] = waiting
        return 0

    async def _probe_or_postpone(self, entry: IndexedEntry) -> None:
        try:
            await self.probe(entry)
        except ProbePostponed:
            seconds = min(POSTPONED_SECONDS, self._settings.interval / 2) * uniform(0.5, 1.5)
            await self._index.postpone_probe(entry.key, self._index.now() + round(seconds * 1000))

    async def _one(self, entry: IndexedEntry, host: str) -> None:
        try:
            await self._probe_or_postpone(entry)
        except StoreUnavailable as error:
            log.warning("the probe of %.200s could not be stored: %s", entry.identifier, error)
        except Exception:
            log.exception("storing the probe of %.200s failed", entry.identifier)
        finally:
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
