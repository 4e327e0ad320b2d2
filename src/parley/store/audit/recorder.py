"""Records acts without delaying requests: a bounded queue that is flushed in groups."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from parley.model.backoff import Backoff
from parley.store.audit.failures import FailureSummary
from parley.store.protocols.audit import AuditEntry
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.audit")

FLUSH_SECONDS = 1.0
"""How long entries wait for others. What a process that is killed may lose is what waits."""

MAX_QUEUED = 2_000
"""How many entries wait at most. Further ones are dropped, and the number is recorded."""

GROUP = 200
"""How many entries are appended at once."""

STOP_SECONDS = 5.0
"""How long a stop waits for the store."""

_BACKOFF = Backoff(1.0, 30.0, jitter=(0.5, 1.0))


class AuditRecorder:
    """Records entries in the audit of a store.

    ``record`` never waits, and never fails; what is recorded is durable about ``FLUSH_SECONDS``
    later, and after ``stop``. ``append`` is durable when it returns. ``dropped`` is how many
    entries found the queue full. ``flushed`` is called after lines were appended.
    """

    def __init__(self, store: TaskStore, flushed: Callable[[], None] = lambda: None) -> None:
        self.dropped = 0
        self.failures = FailureSummary(self.record, store.now)
        self._store = store
        self._flushed = flushed
        self._queue: deque[AuditEntry] = deque()
        self._unreported = 0
        self._filled = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._running: asyncio.Task[None] | None = None

    def record(self, entry: AuditEntry) -> None:
        """Record an entry soon. Call it on the event loop."""
        if len(self._queue) >= MAX_QUEUED:
            self.dropped += 1
            self._unreported += 1
            return
        self._queue.append(entry if entry.at else replace(entry, at=self._store.now()))
        self._filled.set()

    async def append(self, entries: Sequence[AuditEntry]) -> None:
        """Record entries now, after those that wait. Raises ``StoreError``."""
        await self.flush()
        await self._store.append_audit(entries)
        self._flushed()

    async def start(self) -> None:
        """Begin to flush."""
        self._filled, self._flushing = asyncio.Event(), asyncio.Lock()
        if self._queue:
            self._filled.set()
        self._running = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Record what is left, the failures of the last minute among it."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        self.failures.summarize()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.flush()
        except (StoreError, TimeoutError) as error:
            log.error("%d entries of the audit are lost: %s", len(self._queue), error or "no time")

    async def flush(self) -> None:
        """Append what waits. Raises ``StoreError``: then it still waits."""
        async with self._flushing:
            if self._unreported:
                details = {"count": self._unreported, "reason": "the queue was full"}
                self._unreported = 0
                drops = AuditEntry(
                    kind="audit.dropped", issuer="parley", actor="server", details=details
                )
                self._queue.append(replace(drops, at=self._store.now()))
            while self._queue:
                group = [self._queue[i] for i in range(min(GROUP, len(self._queue)))]
                await self._store.append_audit(group)
                for _ in group:
                    self._queue.popleft()
                self._flushed()

    async def _run(self) -> None:
        attempts = 0
        while True:
            await self._filled.wait()
            await asyncio.sleep(FLUSH_SECONDS if not attempts else _BACKOFF.delay(attempts))
            self._filled.clear()
            try:
                await self.flush()
            except StoreError as error:
                if not attempts:
                    log.error("the audit cannot be written, its entries wait: %s", error)
                attempts += 1
                self._filled.set()
            except Exception:  # a recorder that ended would record nothing any more
                log.exception("writing the audit failed, its entries wait")
                attempts += 1
                self._filled.set()
            else:
                attempts = 0
