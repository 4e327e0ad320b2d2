"""Giving an issuer to what a store keeps for callers that had none (``parley store migrate``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from parley.model.service import owned_by
from parley.store.sql import queries
from parley.store.task_store import HISTORY_KEPT

_SQL = queries("shared", "owners.sql")
_NAMES = ("agent", "tenant", "prefix", "key", "to", "shift", "at")
_PLAIN = (
    "owner <> '' AND {find}(owner, {chr}(31)) = 0 "
    "AND {agent} IN ('', agent) AND {tenant} IN ('', tenant)"
)


class Owners(msgspec.Struct, frozen=True, kw_only=True):
    """Those whose things are given an issuer: of one agent, of one tenant, or of all."""

    issuer: str
    agent: str = ""
    tenant: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The values of the statements."""
        return {"agent": self.agent, "tenant": self.tenant, "prefix": owned_by(self.issuer)}


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """How much belongs to callers without an issuer, or was given one."""

    tasks: int
    contexts: int
    receipts: int


class Execute:
    """Runs named statements. ``words`` are those of a database, ``run`` returns a result's rows,
    none for a change.
    """

    def __init__(
        self, words: Mapping[str, str], run: Callable[[str, dict[str, Any]], Sequence[Any]]
    ) -> None:
        self._run = run
        self._words = {"{plain}": _PLAIN, "{kept}": str(HISTORY_KEPT), **words}

    def __call__(self, name: str, values: dict[str, Any]) -> Sequence[Any]:
        """Return the rows that a statement finds."""
        sql = _SQL[name]
        for word, meaning in self._words.items():
            sql = sql.replace(word, meaning)
        used = {each: values[each] for each in _NAMES if "{" + each + "}" in sql}
        for each in used:
            sql = sql.replace("{" + each + "}", self._words["{value}"].replace("name", each))
        return self._run(sql, used)


def unassigned(execute: Execute, owners: Owners) -> Owned:
    """Return how much an assignment would change. Changes nothing."""
    found = {
        name: execute(f"plain_{name}", owners.values)[0][0]
        for name in ("tasks", "contexts", "receipts")
    }
    return Owned(**found)


def assign(execute: Execute, owners: Owners) -> Owned:
    """Give an issuer to the owners that have none, in the transaction that is open.

    What an owner has under the issuer already is put together with what is assigned: messages and
    values of a context stand behind those of before, and of two receipts of one message the one
    under the issuer stays. Nobody may write meanwhile. Done again, it finds nothing to do.
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
