"""Records acts without delaying requests: a bounded queue that is flushed in groups.

Many failed authentications become few entries: failures from one address within ``WINDOW`` seconds
are one entry with counts. A limited number of addresses have their own entries in a window and in
an hour; all others share one entry per window.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.model.backoff import Backoff
from parley.model.concurrency import Periodic
from parley.store.audit.trail import AuditEntry, AuditLine, text_of
from parley.store.protocols.errors import StoreError

log = logging.getLogger("parley.audit")
_lines_log = logging.getLogger("parley.audit.lines")

FLUSH_SECONDS = 1.0
"""The time that entries wait for others. A killed process loses waiting entries."""

MAX_QUEUED = 2_000
"""The maximum number of waiting entries. Further ones are dropped, and their number is recorded."""

GROUP = 200
"""The number of entries that are appended at once."""

STOP_SECONDS = 5.0
"""The time that a stop waits for the store."""

_BACKOFF = Backoff(1.0, 30.0, jitter=(0.5, 1.0))


class AuditRecorder:
    """Records entries in the audit of a store, by its ``append_audit`` and clock.

    ``record`` never waits, and never fails; its entries are durable about ``FLUSH_SECONDS`` later,
    and after ``stop``. ``append`` is durable when it returns. ``dropped`` is the number of entries
    that found the queue full. Each appended line is also a record of the logger
    ``parley.audit.lines``, as JSON.
    """

    def __init__(
        self,
        append: Callable[[Sequence[AuditEntry]], Awaitable[Sequence[AuditLine]]],
        now: Callable[[], int],
    ) -> None:
        self.dropped = 0
        self.failures = FailureSummary(self.record, now)
        self._append_audit = append
        self._now = now
        self._queue: deque[AuditEntry] = deque()
        self._unreported = 0
        self._filled = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._attempts = 0
        self._writing = Periodic("writing the audit", self._write, FLUSH_SECONDS, log=log)

    def record(self, entry: AuditEntry) -> None:
        """Record an entry soon. Call it on the event loop."""
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            self._unreported += 1
            return
        self._queue.append(entry if entry.at else replace(entry, at=self._now()))
        self._filled.set()

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Record entries now, after the waiting entries. Raises ``StoreError``."""
        await self.flush()
        await self._append(entries)

    async def start(self) -> None:
        """Begin to flush."""
        self._filled, self._flushing = asyncio.Event(), asyncio.Lock()
        self._writing.start()

    async def stop(self) -> None:
        """Record the rest, with the failures of the last minute."""
        await self._writing.stop()
        self.failures.summarize()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.flush()
        except (StoreError, TimeoutError) as error:
            log.error("%d entries of the audit are lost: %s", len(self._queue), error or "no time")

    async def flush(self) -> None:
        """Append the waiting entries. Raises ``StoreError``: then they continue to wait."""
        async with self._flushing:
            if self._unreported:
                details = {"count": self._unreported, "reason": "the queue was full"}
                self._unreported = 0
                drops = AuditEntry(
                    kind="audit.dropped", issuer="parley", actor="server", details=details
                )
                self._queue.append(replace(drops, at=self._now()))
            while self._queue:
                group = [self._queue[i] for i in range(min(GROUP, len(self._queue)))]
                await self._append(group)
                for _ in group:
                    self._queue.popleft()

    async def _append(self, entries: Sequence[AuditEntry]) -> None:
        lines = await self._append_audit(entries)
        if _lines_log.isEnabledFor(logging.INFO):
            for line in lines:
                _lines_log.info("%s", text_of(line))

    async def _write(self) -> bool:
        """Wait for entries, and append them. Entries that cannot be appended stay in the queue."""
        if not self._queue:
            self._filled.clear()
            await self._filled.wait()
        pause = _BACKOFF.delay(self._attempts) if self._attempts else FLUSH_SECONDS
        await asyncio.sleep(pause)
        self._attempts += 1
        try:
            await self.flush()
        except StoreError as error:
            if self._attempts == 1:
                log.error("the audit cannot be written, its entries wait: %s", error)
        else:
            self._attempts = 0
        return True


WINDOW = 60.0

ADDRESSES_PER_WINDOW = 32

ADDRESSES_PER_HOUR = 240

MAX_REASONS = 5

KIND = "auth.failed"

OTHERS = "others"
"""Stands for the addresses that share an entry."""


class _Count(msgspec.Struct):
    first: int
    last: int
    refused: int = 0
    throttled: int = 0
    reasons: set[str] = msgspec.field(default_factory=set)
    schemes: set[str] = msgspec.field(default_factory=set)


class FailureSummary:
    """Counts failures by address, and records the counts of each window at its end.

    ``now`` returns ms by the store's clock.
    """

    def __init__(self, record: Callable[[AuditEntry], None], now: Callable[[], int]) -> None:
        self._record = record
        self._now = now
        self._counts: dict[str, _Count] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._hour = 0
        self._own = 0

    def note(self, address: str, scheme: str, reason: str) -> None:
        """Count a failure; without a ``reason``, it was rejected because of earlier failures."""
        now = self._now()
        count = self._counts.get(address)
        if count is None:
            name = address if self._has_room(now) else OTHERS
            count = self._counts.setdefault(name, _Count(now, now))
        count.last = now
        if not reason:
            count.throttled += 1
        else:
            count.refused += 1
            if len(count.reasons) < MAX_REASONS:
                count.reasons.add(reason)
            if scheme and len(count.schemes) < MAX_REASONS:
                count.schemes.add(scheme)
        if self._timer is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                return  # recorded with the next one, or at the end
            self._timer = loop.call_later(WINDOW, self.summarize)

    def summarize(self) -> None:
        """Record the counts, and begin another window."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        counts, self._counts = self._counts, {}
        for address, count in counts.items():
            details = {
                "refused": count.refused,
                "throttled": count.throttled,
                "reasons": sorted(count.reasons),
                "schemes": sorted(count.schemes),
                "from": count.first,
                "to": count.last,
            }
            entry = AuditEntry(
                kind=KIND, at=count.last, address=address, outcome="refused", details=details
            )
            self._record(entry)

    def _has_room(self, now: int) -> bool:
        hour = now // 3_600_000
        if hour != self._hour:
            self._hour, self._own = hour, 0
        if len(self._counts) >= ADDRESSES_PER_WINDOW or self._own >= ADDRESSES_PER_HOUR:
            return False
        self._own += 1
        return True


def user_act(
    kind: str,
    *,
    client: str,
    subject: str = "",
    agent: str = "",
    tenant: str = "",
    details: Mapping[str, Any] = {},
) -> AuditEntry:
    """Return an act of this process's user. ``details`` must have no secrets."""
    return AuditEntry(
        kind=kind,
        issuer="os",
        actor=f"{_user_name()}@{socket.gethostname()}",
        client=client,
        agent=agent,
        tenant=tenant,
        subject=subject,
        outcome="done",
        details=details,
    )


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"
