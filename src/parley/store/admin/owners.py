"""Assigns an issuer to the owners in a store that have none (``parley store migrate``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from parley.model.service import owned_by
from parley.store.protocols.contexts import HISTORY_KEPT
from parley.store.sql import queries

_SQL = queries("shared", "owners.sql")
_NAMES = ("agent", "tenant", "prefix", "key", "to", "shift", "at")


class OwnerAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """An issuer, and the owners that get it: of one agent, of one tenant, or all."""

    issuer: str
    agent: str = ""
    tenant: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The parameters of the statements."""
        return {"agent": self.agent, "tenant": self.tenant, "prefix": owned_by(self.issuer)}


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """How much belongs to owners without an issuer, or was assigned to one."""

    tasks: int
    contexts: int
    receipts: int


class Execute:
    """Runs named statements. ``words`` is a database's dialect, ``run`` returns a result's rows,
    none for a change.
    """

    def __init__(
        self, words: Mapping[str, str], run: Callable[[str, dict[str, Any]], Sequence[Any]]
    ) -> None:
        self._run = run
        self._words = {"{kept}": str(HISTORY_KEPT), **words}

    def __call__(self, name: str, values: dict[str, Any]) -> Sequence[Any]:
        """Run a statement; return its rows."""
        sql = _SQL[name]
        for word, meaning in self._words.items():
            sql = sql.replace(word, meaning)
        used = {each: values[each] for each in _NAMES if "{" + each + "}" in sql}
        for each in used:
            sql = sql.replace("{" + each + "}", self._words["{value}"].replace("name", each))
        return self._run(sql, used)


def unassigned(execute: Execute, owners: OwnerAssignment) -> Owned:
    """Return how much an assignment would change. Changes nothing."""
    found = {
        name: execute(f"plain_{name}", owners.values)[0][0]
        for name in ("tasks", "contexts", "receipts")
    }
    return Owned(**found)


def assign(execute: Execute, owners: OwnerAssignment) -> Owned:
    """Assign an issuer to the owners that have none, in the open transaction.

    Merges with what an owner has under the issuer already: the older messages of a context come
    first, its newer values win, and of two receipts of one message the one under the issuer stays.
    The caller keeps others from writing. Idempotent.
    """
    values = owners.values
    found = unassigned(execute, owners)
    execute("assign_tasks", values)
    execute("assign_counts", values)
    execute("remove_counts", values)
    execute("remove_receipts", values)
    execute("assign_receipts", values)
    for key, to, before, after, shift in execute("twin_contexts", values):
        pair = {"key": key, "to": to, "shift": shift, "at": max(before, after)}
        for step in (
            *("join_history", "trim_history", "join_values", "remove_values"),
            *("touch_context", "remove_context"),
        ):
            execute(step, pair)
    execute("assign_contexts", values)
    return found
