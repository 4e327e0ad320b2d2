"""The audit of a running server: its starts and migrations, failures and retention."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Any

from parley.engine.description import AgentDescription
from parley.model.backoff import uniform
from parley.model.concurrency import Periodic, see_through
from parley.model.distribution import VERSION
from parley.model.struct import encode
from parley.security.failures import Failures
from parley.security.signing.keys import Reload, SigningKeys
from parley.store.audit.recorder import AuditRecorder, user_act
from parley.store.audit.trail import LINES_PER_PRUNE, AuditEntry, AuditFilter, AuditPrune, canonical
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.audit")

STARTED = "server.started"
STOPPED = "server.stopped"
MIGRATED = "store.migrated"
KEYS_RELOADED = "signing_key.reloaded"

PRUNE_SECONDS = 3600.0

STARTS_READ = 50
"""The number of most recent server starts that are searched for one of the same role."""

MAX_SETTINGS = 5000
"""The length limit of the settings in an entry, as JSON. Longer settings are recorded by digest."""

MAX_SETTING = 200
"""The length limit of one setting."""

MAX_CHANGES = 2500
"""The length limit of the changes, as JSON: they fit into an entry together with the settings."""


class ServerAudit:
    """Records the acts of a server in its store's audit, and prunes it.

    ``record`` records an act of another part of the server, and never waits. ``retention`` is how
    long entries are kept, ``None`` for ever.
    """

    def __init__(
        self, store: TaskStore, failures: Failures, *, retention: timedelta | None = None
    ) -> None:
        if retention is not None and retention <= timedelta(0):
            raise ValueError(f"audit_retention must be longer than zero, not {retention}")
        self.settings: dict[str, Any] = {}
        self._store = store
        self._retention = retention
        self._recorder = AuditRecorder(store.append_audit, store.now)
        self.record = self._recorder.record
        failures.listener = self._recorder.failures.note
        self._role = ""
        self._pruning: Periodic | None = None

    async def start(self, role: str, agents: Sequence[AgentDescription]) -> None:
        """Record the start, with the changes since the last one. Raises ``StoreError``.

        A failed or cancelled start records its stop as well, and closes everything that it opened.
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
            if self._retention is not None:
                self._pruning = Periodic(
                    "pruning the audit", partial(self.prune, self._retention), _prune_pause,
                    log=log, expected=StoreError,
                )  # fmt: skip
                self._pruning.start()
            stack.pop_all()

    async def stop(self) -> None:
        """Record the stop and the remaining acts.

        A cancellation is raised after everything is closed.
        """
        pruning, self._pruning = self._pruning, None
        self._record_stop()
        try:
            await see_through(self._recorder.stop())
        finally:
            if pruning is not None:
                await pruning.stop()

    def _record_stop(self) -> None:
        self.record(self._entry(STOPPED, {"role": self._role}))

    def watch(self, keys: SigningKeys) -> Callable[[], None]:
        """Record each reload of changed signing keys. Return a function that ends this."""
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

    async def prune(self, retention: timedelta) -> int:
        """Remove old entries. Return their number. Raises ``StoreError``."""
        before = self._store.now() - retention // timedelta(milliseconds=1)
        by = AuditEntry(kind="", issuer="parley", actor="server", client=f"parley/{VERSION}")
        prune = AuditPrune(before=before, by=by)
        removed = count = await self._store.prune_audit(prune)
        while count == LINES_PER_PRUNE:
            removed += (count := await self._store.prune_audit(prune))
        return removed


def _prune_pause() -> float:
    return PRUNE_SECONDS * uniform(0.8, 1.2)


def changes(last: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the differences between the details of two starts: the value before and after."""
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
    """Return settings by dotted names. Each value is text or a number."""
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

    A long setting is cut, and ends with its digest.
    """
    text = re.sub(r"//[^/\s,]*@|\?[^\s,]*", lambda m: "//" if m[0][0] == "/" else "", text)
    if len(text) <= MAX_SETTING:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{text[: MAX_SETTING - 14]}… {digest}"


def _agents(agents: Sequence[AgentDescription]) -> dict[str, Any]:
    """Return the properties of each agent whose changes matter to an operator."""
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
