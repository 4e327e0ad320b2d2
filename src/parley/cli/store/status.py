"""``parley store status`` and ``migrate``: a store's contents, its schema, and its owners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.store.acts import act, record_act, require_agent, require_store
from parley.database.sql import Migration
from parley.model.ids import RIGHT_NAME, may_be_name
from parley.model.tasks import TaskState
from parley.store.admin.admin import (
    Asleep,
    Owned,
    OwnerAssignment,
    SchemaStatus,
    StoreAdmin,
    Survey,
    Work,
)
from parley.store.protocols.tables import NEVER

NOTHING = Owned(tasks=0, contexts=0, receipts=0)


def owners_of(issuer: str, *, agent: str, tenant: str) -> OwnerAssignment | None:
    """Return the owners to assign to an issuer, if any. Raises ``UsageFailure``."""
    if not issuer:
        for option, value in (("--agent", agent), ("--tenant", tenant)):
            if value:
                raise UsageFailure(
                    f"{option} is about --issuer: a schema is brought up to date for everybody"
                )
        return None
    if not may_be_name(issuer):
        raise UsageFailure(f"--issuer: an issuer has {RIGHT_NAME}")
    return OwnerAssignment(issuer=issuer, agent=agent, tenant=tenant)


def format_owned(owned: Owned) -> str:
    """Return the counts in words: 2 tasks, 1 context, 0 receipts."""
    parts = (("task", owned.tasks), ("context", owned.contexts), ("receipt", owned.receipts))
    return ", ".join([f"{n} {what}{'' if n == 1 else 's'}" for what, n in parts])


UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def show(output: Output, admin: StoreAdmin) -> None:
    """Report the contents of a store."""
    schema = require_store(admin)
    survey = None if schema.missing else admin.survey()
    if output.is_json:
        output.document(_document(admin.name, schema, survey))
        return
    text = output.text
    text.field("Store", admin.name)
    text.field("Schema", _format_schema(schema))
    if survey is None:
        output.note("parley store migrate brings it up to date; there is more to show then")
        return
    text.field("Size", format_size(survey.size))
    text.field("Tasks", sum([n for _, _, n in survey.tasks]))
    for agent in dict.fromkeys([agent for agent, _, _ in survey.tasks]):
        states = [f"{n} {_name(state)}" for a, state, n in survey.tasks if a == agent]
        text.field(f"Tasks of {agent}", ", ".join(states))
    work = {"Held": True, "Unclaimed": False}
    for label, is_held in work.items():
        found = [each for each in survey.work if each.is_held is is_held]
        text.field(label, _format_work(found, survey.now))
    text.field("Asleep", _format_asleep(survey.asleep, survey.now))
    webhooks = [f"{n} {state.value}" for state, n in survey.webhooks]
    text.field("Webhooks", ", ".join(webhooks) or "none")
    text.field("Contexts", survey.contexts)
    text.field("Receipts", survey.receipts)
    text.field("Events", survey.events)
    if survey.replicas is not None:
        text.field("Replicas", len(survey.replicas) or "none")
        for replica in survey.replicas:
            seen = format_age(survey.now - replica.seen_at)
            state = "alive" if replica.alive else "dead"
            held = f"holds {replica.holds} task{'' if replica.holds == 1 else 's'}"
            text.field("Replica", f"{replica.id}, {state}, heard of {seen} ago, {held}")


def migrate(
    output: Output, admin: StoreAdmin, *, check_only: bool, owners: OwnerAssignment | None = None
) -> int:
    """Migrate a store, or only check whether that is needed; return the exit status.

    ``owners`` are the callers to assign to an issuer.
    """
    before = admin.schema()
    done = before.missing if check_only else admin.migrate()
    after = before if check_only else admin.schema()
    owned = None
    if owners is not None and not after.missing:
        if owners.agent:
            require_agent(admin, owners.agent)
        owned = admin.unassigned(owners) if check_only else admin.assign(owners)
    if not check_only:
        _record(admin, done, owners, owned)
    if output.is_json:
        name = "missing" if check_only else "done"
        steps = [{"version": step.version, "name": step.name} for step in done]
        document = {"store": admin.name, "version": after.version, name: steps}
        if owned is not None:
            document["unassigned" if check_only else "assigned"] = msgspec.to_builtins(owned)
        output.document(document)
    else:
        output.text.field("Store", admin.name)
        for step in done:
            output.text.field("To do" if check_only else "Done", _step(step))
        output.text.field("Schema", _format_schema(after))
        if owned is not None:
            output.text.field("To assign" if check_only else "Assigned", format_owned(owned))
    is_due = bool(done) or (owned is not None and owned != NOTHING)
    return 1 if check_only and is_due else 0


def _record(
    admin: StoreAdmin,
    done: Sequence[Migration],
    owners: OwnerAssignment | None,
    owned: Owned | None,
) -> None:
    if done:
        steps = [f"{step.version} {step.name}" for step in done]
        record_act(admin, act("store.migrated", details={"migrations": steps}))
    if owners is not None and owned is not None:
        details = {"issuer": owners.issuer, **msgspec.to_builtins(owned)}
        record_act(
            admin,
            act("store.owners_assigned", agent=owners.agent, tenant=owners.tenant, details=details),
        )


def format_age(ms: int) -> str:
    """Return an age in one or two units: 3d 4h, 12s."""
    left, words = max(0, ms) // 1000, []
    for unit, length in UNITS:
        if left >= length:
            words.append(f"{left // length}{unit}")
            left %= length
    return " ".join(words[:2]) or "0s"


def format_size(size: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _step(step: Migration) -> str:
    return f"{step.version} ({step.name})"


def _name(state: TaskState) -> str:
    return state.name.lower().replace("_", "-")


def _format_schema(schema: SchemaStatus) -> str:
    if not schema.version:
        return "none"
    if schema.missing:
        return f"version {schema.version}; {schema.missing[-1].version} is needed"
    return f"version {schema.version}, up to date"


def _format_work(work: Sequence[Work], now: int) -> str:
    words = [
        f"{each.tasks} of {each.agent}, the oldest since {format_age(now - each.since)}"
        for each in work
    ]
    return "; ".join(words) or "none"


def _format_asleep(asleep: Sequence[Asleep], now: int) -> str:
    words = []
    for each in asleep:
        next_in = format_age(each.wakes_at - now)
        wakes = "for events" if each.wakes_at == NEVER else f"next in {next_in}"
        words.append(f"{each.tasks} of {each.agent}, {wakes}")
    return "; ".join(words) or "none"


def _document(name: str, schema: SchemaStatus, survey: Survey | None) -> dict[str, Any]:
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
        "asleep": [
            {
                "agent": each.agent,
                "tasks": each.tasks,
                "nextSeconds": None
                if each.wakes_at == NEVER
                else max(0, each.wakes_at - survey.now) / 1000,
            }
            for each in survey.asleep
        ],
        "webhooks": {state.value: n for state, n in survey.webhooks},
        "contexts": survey.contexts,
        "receipts": survey.receipts,
        "events": survey.events,
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
