"""Heartbeats: agents say that they are alive, and those that stop are suspect, then gone.

Only what a caller has published can be kept alive by it. After this registry was away itself,
nobody is suspect before there was time to send a heartbeat again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from parley.model.concurrency import Periodic
from parley.model.errors import InvalidParamsError
from parley.model.service import Caller
from parley.registry.health.settings import HealthSettings
from parley.registry.index.registry_index import RegistryIndex
from parley.registry.ingest.examiner import one_form
from parley.registry.publishing.proofs import owner_of
from parley.registry.publishing.quotas import CallerRates
from parley.registry.records import EntryStanding, Liveness
from parley.store.protocols.errors import StoreUnavailable

log = logging.getLogger("parley.registry")

MAX_AT_ONCE = 500
MAX_OVERDUE = 10_000


class BeatAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which agents are noted as alive, and when the next heartbeat is wanted (seconds).

    ``unknown`` ones are not, because this caller has not published them.
    """

    alive: tuple[str, ...]
    unknown: tuple[str, ...]
    interval: float
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
        if not 0 < len(names) <= MAX_AT_ONCE:
            raise InvalidParamsError(
                f"a heartbeat names 1 to {MAX_AT_ONCE} agents by their identifiers"
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
            # Heartbeats could not be stored either: nobody is to blame for those.
            self._swept_at = None
            raise
