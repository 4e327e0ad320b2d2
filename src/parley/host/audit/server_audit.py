"""The audit of a running server: its starts and migrations, failures, forwarding and retention."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any
from uuid import uuid4

from parley.engine.description import AgentDescription
from parley.host.audit.addresses import destination_of
from parley.host.audit.destinations import AuditDestination, DestinationFailed, EntriesRejected
from parley.model.backoff import Backoff, uniform
from parley.model.concurrency import end, see_through
from parley.model.distribution import VERSION
from parley.model.struct import encode
from parley.security.failures import Failures
from parley.security.signing.keys import Reload, SigningKeys
from parley.store.audit.recorder import AuditRecorder, user_act
from parley.store.audit.trail import PRUNED_AT_ONCE, AuditEntry, AuditFilter, AuditPrune, canonical
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

# -- forwarder --------------------------------------------------------------------------------
#
# Forwards the audit to a destination, at least once, from one replica at a time.


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


# -- server audit -----------------------------------------------------------------------------


log = logging.getLogger("parley.audit")

STARTED = "server.started"
STOPPED = "server.stopped"
MIGRATED = "store.migrated"
KEYS_RELOADED = "signing_key.reloaded"

PRUNE_SECONDS = 3600.0

STARTS_READ = 50
"""Among so many last starts of any server is searched for the last one of this kind."""

MAX_SETTINGS = 5000
"""The length limit of settings in an entry, as JSON; of more, only the digest is recorded."""

MAX_SETTING = 200
"""The length limit of one setting."""

MAX_CHANGES = 2500
"""The length limit of what changed, as JSON: with the settings it fits into an entry."""

Destinations = str | Sequence[str]


class ServerAudit:
    """Records the acts of a server in its store's audit, forwards it, and prunes it.

    ``record`` records an act of somebody else; it never waits. ``retention`` is how long lines are
    kept, ``None`` for ever; what is not forwarded yet is kept longer. Raises ``ValueError`` for a
    destination that is none.
    """

    def __init__(
        self,
        store: TaskStore,
        failures: Failures,
        *,
        destinations: Destinations = (),
        retention: timedelta | None = None,
    ) -> None:
        if retention is not None and retention <= timedelta(0):
            raise ValueError(f"audit_retention is longer than nothing, not {retention}")
        urls = [destinations] if isinstance(destinations, str) else list(destinations)
        self.settings: dict[str, Any] = {}
        self._store = store
        self._retention = retention
        self._forwarders = [AuditForwarder(store, destination_of(url)) for url in urls]
        names = [each.destination.name for each in self._forwarders]
        if len(set(names)) < len(names):
            raise ValueError(f"the audit goes to each destination once, not twice: {names}")
        self._recorder = AuditRecorder(store, self._flushed)
        self.record = self._recorder.record
        failures.listener = self._recorder.failures.note
        if names:
            self.settings["audit"] = names
        if retention is not None:
            self.settings["audit_retention"] = retention.total_seconds()
        self._role = ""
        self._pruning: asyncio.Task[None] | None = None

    @property
    def dropped(self) -> int:
        """How many entries were dropped, because the store did not take them for long."""
        return self._recorder.dropped

    async def start(self, role: str, agents: Sequence[AgentDescription]) -> None:
        """Record the start, with what changed since the last one. Raises ``StoreError``.

        A start that fails or is cancelled closes what it began, and leaves no start without a stop.
        """
        self._role = role
        settings = flat(self.settings | {"agents": _agents(agents)})
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._recorder.stop)
            await self._recorder.start()
            entries = await self._entries(settings)
            try:
                await see_through(self._recorder.append(entries))
            except asyncio.CancelledError:
                self._record_stop()  # the start is recorded
                raise
            for forwarder in self._forwarders:
                stack.push_async_callback(forwarder.stop)
                await forwarder.start()
            if self._retention is not None:
                self._pruning = asyncio.create_task(self._prune_regularly(self._retention))
            stack.pop_all()

    async def stop(self) -> None:
        """Record the stop and what is left, and forward it if that takes no time.

        A cancellation is raised when everything is closed.
        """
        pruning, self._pruning = self._pruning, None
        if pruning is not None:
            pruning.cancel()
        self._record_stop()
        try:
            await see_through(self._recorder.stop())
        finally:
            stops = [forwarder.stop() for forwarder in self._forwarders]
            await asyncio.gather(*stops, *([] if pruning is None else [end([pruning])]))

    def _record_stop(self) -> None:
        self.record(self._entry(STOPPED, {"role": self._role}))

    def watch(self, keys: SigningKeys) -> Callable[[], None]:
        """Record each time that changed signing keys are read; return what ends it."""
        loop = asyncio.get_running_loop()

        def note(reload: Reload) -> None:
            loop.call_soon_threadsafe(self._note_reload, reload)

        return keys.on_reload(note)

    def _note_reload(self, reload: Reload) -> None:
        details: dict[str, Any] = {
            "signs": list(reload.signs),
            "role": self._role,
            "pid": os.getpid(),
        }
        if reload.error:
            details["reason"] = reload.error
        self.record(
            AuditEntry(
                kind=KEYS_RELOADED,
                issuer="parley",
                actor="server",
                client=f"parley/{VERSION}",
                subject=reload.signs[0],
                outcome="failed" if reload.error else "done",
                details=details,
            )
        )

    def _flushed(self) -> None:
        for forwarder in self._forwarders:
            forwarder.wake()

    async def _entries(self, settings: Mapping[str, Any]) -> list[AuditEntry]:
        entries = []
        if self._store.migrated:
            migrations = {"migrations": list(self._store.migrated)}
            entries.append(self._entry(MIGRATED, migrations))
        encoded = canonical(settings)
        details: dict[str, Any] = {
            "role": self._role,
            "version": VERSION,
            "digest": hashlib.sha256(encoded).hexdigest(),
            "settings": settings if len(encoded) <= MAX_SETTINGS else {},
        }
        last = await self._last_start()
        if last is not None:
            changed = changes(last, details)
            if len(canonical(changed)) > MAX_CHANGES:
                changed = {"digest": [last.get("digest"), details["digest"]]}
            details["changed"] = changed
        return [*entries, self._entry(STARTED, details)]

    async def _last_start(self) -> Mapping[str, Any] | None:
        which = AuditFilter(kind=STARTED)
        starts = await self._store.read_audit(which, limit=STARTS_READ, newest=True)
        for line in reversed(starts):
            if line.details.get("role") == self._role:
                return line.details
        return None

    def _entry(self, kind: str, details: Mapping[str, Any]) -> AuditEntry:
        details = {**details, "pid": os.getpid()}
        return user_act(kind, client=f"parley/{VERSION}", details=details)

    async def _prune_regularly(self, retention: timedelta) -> None:
        while True:
            try:
                await self.prune(retention)
            except StoreError as error:
                log.warning("the audit cannot be pruned: %s", error)
            except Exception:
                log.exception("pruning the audit failed")
            await asyncio.sleep(PRUNE_SECONDS * uniform(0.8, 1.2))

    async def prune(self, retention: timedelta) -> int:
        """Remove lines that are old and forwarded; return how many. Raises ``StoreError``."""
        before = self._store.now() - retention // timedelta(milliseconds=1)
        by = AuditEntry(kind="", issuer="parley", actor="server", client=f"parley/{VERSION}")
        sent = min([forwarder.sent for forwarder in self._forwarders], default=None)
        prune = AuditPrune(before=before, by=by, keep_after=sent)
        removed = count = await self._store.prune_audit(prune)
        while count == PRUNED_AT_ONCE:
            removed += (count := await self._store.prune_audit(prune))
        return removed


def changes(last: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs between the details of two starts: the value before and that now."""
    changed: dict[str, Any] = {}
    if last.get("version") != now["version"]:
        changed["version"] = [last.get("version"), now["version"]]
    if last.get("digest") == now["digest"]:
        return changed
    before, after = last.get("settings") or {}, now["settings"]
    for name in sorted({*before, *after}) if before and after else ():
        if before.get(name) != after.get(name):
            changed[name] = [before.get(name), after.get(name)]
    return changed or {"digest": [last.get("digest"), now["digest"]]}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings by dotted names, each value as text or a number."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int) or value is None:
            found[prefix + name] = value
        elif isinstance(value, list | tuple | set | frozenset):
            found[prefix + name] = _shown(", ".join(sorted(map(str, value))))
        else:
            found[prefix + name] = _shown(str(value))
    return found


def _shown(text: str) -> str:
    """Return a setting without the credentials and options of the URLs in it.

    A long one is cut, and ends with its digest.
    """
    text = re.sub(r"//[^/\s,]*@|\?[^\s,]*", lambda m: "//" if m[0][0] == "/" else "", text)
    if len(text) <= MAX_SETTING:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{text[: MAX_SETTING - 14]}… {digest}"


def _agents(agents: Sequence[AgentDescription]) -> dict[str, Any]:
    """Return of each agent what an operator would want to see changed."""
    return {agent.key: _agent(agent) for agent in agents}


def _agent(agent: AgentDescription) -> dict[str, Any]:
    rights = agent.authorization
    return {
        "version": agent.card.version,
        "card": hashlib.sha256(encode(agent.card)).hexdigest()[:16],
        "security": list(agent.card.security_schemes),
        "policy": rights is not None and rights.policy is not None,
        "retention": None if agent.retention.tasks is None else str(agent.retention.tasks),
        "limits": [limit.text for limit in agent.limits],
    }
