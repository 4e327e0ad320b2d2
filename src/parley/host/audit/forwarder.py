"""Forwards the audit to a destination, at least once, from one replica at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from uuid import uuid4

from parley.host.audit.destinations import AuditDestination, DestinationFailed, EntriesRejected
from parley.model.backoff import Backoff, uniform
from parley.model.concurrency import end, see_through
from parley.store.audit.trail import AuditFilter
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.audit")

LEASE_MS = 60_000
"""How long a replica that died keeps others from forwarding."""

POLL_SECONDS = 5.0
"""How often to look for lines of other replicas, and for a destination that nobody forwards to."""

LINES = 200
"""How many lines are sent at once."""

_BACKOFF = Backoff(1.0, 60.0, jitter=(0.5, 1.0))


class AuditForwarder:
    """Sends lines to a destination after a cursor that the store keeps.

    The replica that has claimed the cursor sends; it moves the cursor when the destination took the
    lines. So a line is sent again when a replica dies in between, and none is left out.
    """

    def __init__(self, store: TaskStore, destination: AuditDestination) -> None:
        self.destination = destination
        self.sent = 0
        """The number of the last line that this replica knows to be sent."""
        self._store = store
        self._holder = uuid4().hex
        self._news = asyncio.Event()
        self._ends = False
        self._running: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Look for lines now."""
        self._news.set()

    async def start(self) -> None:
        """Begin to forward."""
        self._news, self._ends = asyncio.Event(), False
        self._running = asyncio.create_task(self._run())

    async def stop(self, last_chance: float = 2.0) -> None:
        """Forward what is there, if it takes no longer than ``last_chance`` seconds, and stop.

        What is left is forwarded by another replica, or after the next start. One that is cancelled
        releases the claim and disconnects, too.
        """
        running, self._running = self._running, None
        if running is not None:
            self._ends = True
            self._news.set()
        try:
            if running is not None:
                await asyncio.wait([running], timeout=last_chance)
        finally:
            await see_through(self._close(running))

    async def forward(self) -> bool:
        """Send all lines after the cursor; return whether this replica has it claimed.

        Raises ``DestinationFailed``, ``StoreError``.
        """
        until = self._store.now() + LEASE_MS
        seq = await self._store.claim_audit_cursor(self.destination.name, self._holder, until)
        if seq is None:
            return False
        self.sent = seq
        while lines := await self._store.read_audit(AuditFilter(), after=seq, limit=LINES):
            try:
                await self.destination.send(lines)
            except EntriesRejected as error:
                log.error(
                    "of the lines %d to %d of the audit: %s; they are not sent again",
                    lines[0].seq,
                    lines[-1].seq,
                    error,
                )
            seq = lines[-1].seq
            if not await self._save(seq, self._store.now() + LEASE_MS):
                return False  # this replica was silent for too long, and another goes on
            self.sent = seq
        return True

    async def _close(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await end([running])
        await self._release()
        await self.destination.close()

    async def _save(self, seq: int, until: int) -> bool:
        name = self.destination.name
        return await self._store.save_audit_cursor(name, self._holder, seq, until)

    async def _release(self) -> None:
        """Let another replica forward."""
        with contextlib.suppress(StoreError):  # the claim ends by itself
            await self._save(self.sent, 0)

    async def _run(self) -> None:
        failures = 0
        while True:
            self._news.clear()
            wait = POLL_SECONDS * uniform(0.8, 1.2)
            try:
                await self.forward()
                if failures:
                    log.info("the audit goes to %s again", self.destination.name)
                failures = 0
            except DestinationFailed as error:
                if not failures:
                    log.error("the audit is not forwarded, and is tried again: %s", error)
                failures += 1
                wait = max(_BACKOFF.delay(failures), error.retry_after)
                await self._release()
            except StoreError as error:
                log.warning("the audit cannot be read to forward it: %s", error)
            except Exception:
                log.exception("forwarding the audit to %s failed", self.destination.name)
            if self._ends and (failures or not self._news.is_set()):
                return
            await self._pause(wait, hurries=not failures)

    async def _pause(self, seconds: float, *, hurries: bool) -> None:
        """Wait; after a success, or at the end, only until there is news."""
        until = asyncio.get_running_loop().time() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news.wait()
                while not hurries and not self._ends:
                    self._news.clear()
                    await self._news.wait()
