"""``parley usage``: shows the usage of callers by day, from a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any, ClassVar

from parley.cli.commands.store import format_size
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.output.text import aligned, one_line
from parley.cli.settings.options import CommandOption
from parley.cli.store.acts import InShared, StoreCommands, require_current
from parley.engine.turn.usage import day_name
from parley.model.option import parse_span
from parley.model.service import caller_of
from parley.security.limits.declaration import DAY_MS
from parley.security.limits.usage import OTHERS, UsageQuery, UsageRow
from parley.store.admin.admin import StoreAdmin

ANONYMOUS = "(not proved)"
EXAMPLES = """\b
Examples:
  parley usage --since 7d
  parley usage --caller ada --agent shop -o json
  parley usage --store postgresql://user@host/database --since 2026-11-01"""

COMMANDS = StoreCommands()


class UsageOptions(InShared, frozen=True):
    """The options of ``parley usage``."""

    alone: ClassVar = "usage is read from a store", ""
    caller: Annotated[
        str, CommandOption("Only this caller; for a caller of an issuer, ISSUER:ID.", "ID")
    ] = ""
    agent: Annotated[str, CommandOption("Only this agent.", "KEY")] = ""
    since: Annotated[
        str,
        CommandOption(
            "From this UTC day on, or the last days, such as 2026-11-01 or 7d.", "DATE|SPAN"
        ),
    ] = "30d"


@COMMANDS.work("usage", EXAMPLES)
def usage(output: Output, admin: StoreAdmin, options: UsageOptions) -> None:
    """Show the usage of callers for agents that count usage, by day, caller, agent and skill.

    Usage is counted by parley serve --usage, and with budgets or the usage extension. The figures
    are about two seconds old. Works while the store is in use.
    """
    require_current(admin)
    first, caller = _first_day(options.since, admin.now()), options.caller
    query = UsageQuery(since=first, agent=options.agent or None)
    read = admin.usage(query)
    is_cut = len(read) >= query.limit
    rows = [row for row in read if not caller or caller in (_name(row), caller_of(row.caller).id)]
    document = {
        "store": admin.name,
        "since": day_name(first),
        "isCut": is_cut,
        "usage": [_document(row) for row in rows],
    }
    output.report(document, ("Store", admin.name), ("Since", day_name(first)))
    if output.is_json:
        return
    output.text.content("Usage", "\n".join(_table(rows)) or "none")
    if is_cut:
        output.note(
            f"this covers only the latest {len(read)} lines; request fewer days or one agent"
        )


def _table(rows: Sequence[UsageRow]) -> list[str]:
    """Return lines with aligned columns."""
    if not rows:
        return []
    names = "day caller agent skill requests refused messages tasks output running"
    lines = [names.split()]
    for row in rows:
        tenant = f"{row.tenant}/" if row.tenant else ""
        lines.append(
            [
                day_name(row.day),
                one_line(tenant + _name(row)),
                one_line(row.agent),
                one_line(row.skill) or "-",
                str(row.requests),
                str(row.refusals),
                str(row.messages),
                str(row.tasks),
                format_size(row.output_bytes),
                f"{row.run_ms / 1000:.1f}s",
            ]
        )
    return aligned(lines, left=4)


def _document(row: UsageRow) -> dict[str, Any]:
    found = caller_of(row.caller)
    return {
        "day": day_name(row.day),
        "agent": row.agent,
        "tenant": row.tenant,
        "caller": found.id,
        "issuer": found.issuer,
        "client": found.client,
        "skill": row.skill,
        "requests": row.requests,
        "refusals": row.refusals,
        "messages": row.messages,
        "tasks": row.tasks,
        "outputBytes": row.output_bytes,
        "runSeconds": row.run_ms / 1000,
    }


def _name(row: UsageRow) -> str:
    if row.caller == OTHERS:
        return "(others)"
    found = caller_of(row.caller)
    if not found.id:
        return ANONYMOUS
    name = f"{found.issuer}:{found.id}" if found.issuer else found.id
    return f"{name} (application)" if found.is_application else name


def _first_day(since: str, now: int) -> int:
    """Return the first day for ``--since``. Raises ``UsageFailure``."""
    try:
        return (date.fromisoformat(since) - date(1970, 1, 1)).days
    except ValueError:
        pass
    try:
        seconds = parse_span(since)
    except ValueError:
        raise UsageFailure(
            f"--since: {since!r} is neither a date such as 2026-11-01 nor a span such as 7d"
        ) from None
    return max(0, int((now - seconds * 1000) // DAY_MS))
