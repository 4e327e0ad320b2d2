"""How a store stands, in words; and bringing it up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.store.owners import NOTHING, owned_in_words
from parley.model.tasks import TaskState
from parley.store.admin.admin import Schema, StoreAdmin, Survey, Work
from parley.store.admin.owners import Owners
from parley.store.sql import Migration

UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def show(output: Output, upkeep: StoreAdmin) -> None:
    """Say how a store stands."""
    schema = require(upkeep)
    survey = None if schema.missing else upkeep.survey()
    if output.is_json:
        output.document(_document(upkeep.name, schema, survey))
        return
    text = output.text
    text.field("Store", upkeep.name)
    text.field("Schema", _schema_in_words(schema))
    if survey is None:
        output.note("parley store migrate brings it up to date; there is more to show then")
        return
    text.field("Size", size_in_words(survey.size))
    text.field("Tasks", sum([n for _, _, n in survey.tasks]))
    for agent in dict.fromkeys([agent for agent, _, _ in survey.tasks]):
        states = [f"{n} {_name(state)}" for a, state, n in survey.tasks if a == agent]
        text.field(f"Tasks of {agent}", ", ".join(states))
    work = {"Held": True, "Unclaimed": False}
    for label, is_held in work.items():
        found = [each for each in survey.work if each.is_held is is_held]
        text.field(label, _work_in_words(found, survey.now))
    webhooks = [f"{n} {state.value}" for state, n in survey.webhooks]
    text.field("Webhooks", ", ".join(webhooks) or "none")
    text.field("Contexts", survey.contexts)
    text.field("Receipts", survey.receipts)
    if survey.replicas is not None:
        text.field("Replicas", len(survey.replicas) or "none")
        for replica in survey.replicas:
            seen = age_in_words(survey.now - replica.seen_at)
            state = "alive" if replica.alive else "dead"
            held = f"holds {replica.holds} task{'' if replica.holds == 1 else 's'}"
            text.field("Replica", f"{replica.id}, {state}, heard of {seen} ago, {held}")


def migrate(
    output: Output, upkeep: StoreAdmin, *, only_checks: bool, owners: Owners | None = None
) -> int:
    """Bring a store up to date, or say whether that is needed; return the exit status.

    ``owners`` are those whose things are given an issuer.
    """
    before = upkeep.schema()
    done = before.missing if only_checks else upkeep.migrate()
    after = before if only_checks else upkeep.schema()
    owned = None
    if owners is not None and not after.missing:
        if owners.agent:
            require_agent(upkeep, owners.agent)
        owned = upkeep.unassigned(owners) if only_checks else upkeep.assign(owners)
    if output.is_json:
        name = "missing" if only_checks else "done"
        steps = [{"version": step.version, "name": step.name} for step in done]
        document = {"store": upkeep.name, "version": after.version, name: steps}
        if owned is not None:
            document["unassigned" if only_checks else "assigned"] = msgspec.to_builtins(owned)
        output.document(document)
    else:
        output.text.field("Store", upkeep.name)
        for step in done:
            output.text.field("To do" if only_checks else "Done", _step(step))
        output.text.field("Schema", _schema_in_words(after))
        if owned is not None:
            output.text.field("To assign" if only_checks else "Assigned", owned_in_words(owned))
    is_due = bool(done) or (owned is not None and owned != NOTHING)
    return 1 if only_checks and is_due else 0


def require(upkeep: StoreAdmin) -> Schema:
    """Return a store's schema. Raises ``CommandFailure`` where there is no store."""
    schema = upkeep.schema()
    if not schema.version:
        raise CommandFailure(
            "PARLEY_ERR_STORE",
            f"there is no store at {upkeep.name}",
            hint="name another with --store; parley serve and parley store migrate make one",
        )
    return schema


def require_current(upkeep: StoreAdmin) -> None:
    """Raise ``CommandFailure`` unless there is a store, and its schema is up to date."""
    schema = require(upkeep)
    if schema.missing:
        raise CommandFailure(
            "PARLEY_ERR_STORE",
            f"{upkeep.name} has schema version {schema.version}, and this version of Parley needs "
            f"{schema.missing[-1].version}",
            hint="parley store migrate brings it up to date",
        )


def require_agent(upkeep: StoreAdmin, agent: str) -> None:
    """Raise ``UsageFailure`` unless a store keeps something of an agent."""
    agents = upkeep.agents()
    if agent not in agents:
        known = ", ".join(agents) or "none"
        raise UsageFailure(f"--agent: the store keeps nothing of {agent!r}; it knows {known}")


def age_in_words(ms: int) -> str:
    """Return a span of time in one or two units: 3d 4h, 12s."""
    left, words = max(0, ms) // 1000, []
    for unit, length in UNITS:
        if left >= length:
            words.append(f"{left // length}{unit}")
            left %= length
    return " ".join(words[:2]) or "0s"


def size_in_words(size: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _step(step: Migration) -> str:
    return f"{step.version} ({step.name})"


def _name(state: TaskState) -> str:
    return state.name.lower().replace("_", "-")


def _schema_in_words(schema: Schema) -> str:
    if not schema.version:
        return "none"
    if schema.missing:
        return f"version {schema.version}; {schema.missing[-1].version} is needed"
    return f"version {schema.version}, up to date"


def _work_in_words(work: Sequence[Work], now: int) -> str:
    words = [
        f"{each.tasks} of {each.agent}, the oldest since {age_in_words(now - each.since)}"
        for each in work
    ]
    return "; ".join(words) or "none"


def _document(name: str, schema: Schema, survey: Survey | None) -> dict[str, Any]:
    document: dict[str, Any] = {
        "store": name,
        "schema": {
            "version": schema.version,
            "missing": [{"version": each.version, "name": each.name} for each in schema.missing],
        },
    }
    if survey is None:
        return document
    tasks: dict[str, dict[str, int]] = {}
    for agent, state, n in survey.tasks:
        tasks.setdefault(agent, {})[state.value] = n
    document |= {
        "bytes": survey.size,
        "tasks": tasks,
        "work": [
            {
                "agent": each.agent,
                "held": each.is_held,
                "tasks": each.tasks,
                "oldestSeconds": max(0, survey.now - each.since) / 1000,
            }
            for each in survey.work
        ],
        "webhooks": {state.value: n for state, n in survey.webhooks},
        "contexts": survey.contexts,
        "receipts": survey.receipts,
    }
    if survey.replicas is not None:
        document["replicas"] = [
            {
                "id": each.id,
                "alive": each.alive,
                "heardSecondsAgo": max(0, survey.now - each.seen_at) / 1000,
                "holds": each.holds,
            }
            for each in survey.replicas
        ]
    return document
