"""One query over both: the lines of the audit and the facts in the logs of tasks, by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Any

from parley.store.audit.chain import line_of
from parley.store.audit.facts import facts_of
from parley.store.protocols.audit import AuditEntry, AuditFilter, AuditLine

Rows = Callable[[str, Sequence[Any]], Iterator[Sequence[Any]]]
"""Yields the rows of a query of ``sql/shared/audit.sql``."""

DECISION = '{"key":"authorize:'
"""Begins the records of decisions of a policy, which ``Turn.authorize`` logs."""

TOOL_CALL = '{"key":"tool:'
"""Begins the records of calls of tools, which ``Turn.tools`` logs."""

_ALWAYS = 2**63 - 1


class AuditReading:
    """Reads who did what from a store, as of one moment."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def chain(self) -> Iterator[AuditLine]:
        """Yield all lines of the audit, in the order of their numbers."""
        return (line_of(row) for row in self._rows("audit_chain", ()))

    def entries(
        self, which: AuditFilter, *, after: int = 0, content: bool = False
    ) -> Iterator[AuditEntry]:
        """Yield lines of the audit after a number, and facts of tasks, the oldest first."""
        lines, facts = self.lines(which, after=after), self.facts(which, content=content)
        return merge(lines, facts, key=lambda entry: entry.at)

    def last(self) -> AuditLine | None:
        """Return the last line of the audit."""
        return next((line_of(row) for row in self._rows("audit_last", ())), None)

    def lines(self, which: AuditFilter, *, after: int = 0) -> Iterator[AuditLine]:
        """Yield lines of the audit after a number, the oldest first."""
        since, until = _times(which)
        rows = self._rows("audit_by_time", (after, since, until))
        return (line for line in map(line_of, rows) if matches(line, which))

    def facts(self, which: AuditFilter, *, content: bool = False) -> Iterator[AuditEntry]:
        """Yield facts of tasks, the oldest first; ``content`` adds texts of messages."""
        since, until = _times(which)
        agent, task_id = which.agent, which.task_id
        values = (since, since, until, agent, agent, task_id, task_id)
        facts = facts_of(self._rows("audit_facts", values), content=content)
        return (fact for fact in facts if matches(fact, which))


def _times(which: AuditFilter) -> tuple[int, int]:
    since = -_ALWAYS if which.since is None else which.since
    return since, _ALWAYS if which.until is None else which.until


def matches(entry: AuditEntry, which: AuditFilter) -> bool:
    """Return whether a filter selects an entry."""
    return (
        (which.since is None or entry.at >= which.since)
        and (which.until is None or entry.at < which.until)
        and (not which.kind or entry.kind == which.kind or entry.kind.startswith(f"{which.kind}."))
        and which.actor in ("", entry.actor)
        and which.agent in ("", entry.agent)
        and which.task_id in ("", entry.subject)
    )
