"""``parley store``: shows, migrates, moves and prunes a store, and resumes its webhooks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.output.text import format_age
from parley.cli.settings.options import Argument, CommandOption
from parley.cli.store import transfer
from parley.cli.store.acts import EXITS as EXITS
from parley.cli.store.acts import (
    AgentKey,
    InStore,
    StoreCommands,
    TenantName,
    act,
    record_act,
    require_current,
    require_store,
)
from parley.cli.store.acts import audit_option as audit_option
from parley.cli.store.acts import with_record as with_record
from parley.model.ids import RIGHT_NAME, may_be_name
from parley.model.option import parse_span
from parley.store.admin.admin import Owned, OwnerAssignment, SchemaStatus, StoreAdmin, Survey
from parley.store.protocols.errors import PrunedElsewhere
from parley.store.protocols.tables import NEVER
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter
from parley.store.task_store import TaskStore

CHECKED = EXITS.replace("1  failed", "1  failed, or --check found pending migrations")
MOVING = """\b
Move a store, with all its history:
  parley store export tasks.jsonl --store sqlite:///parley.db
  parley store import tasks.jsonl --store postgresql://user@host/database"""

NOTHING = Owned(tasks=0, contexts=0, receipts=0)

BATCH_SIZE = 200
"""The most tasks that one batch removes."""

LOCK_TIMEOUT = 60.0
"""Seconds to wait for replicas that prune at the same time."""

COMMANDS = StoreCommands("store", "Manage a store: migrate, move, prune, resume webhooks.")
WEBHOOKS = COMMANDS.group("webhooks", "Show and resume suspended webhooks.")


@COMMANDS.work("status")
def status(output: Output, admin: StoreAdmin, options: InStore) -> None:
    """Show the state of a store: tasks, waiting work, replicas, size.

    Works while the store is in use, and changes nothing.
    """
    schema = require_store(admin)
    survey = None if schema.missing else admin.survey()
    if output.is_json:
        output.document(_document(admin.name, schema, survey))
        return
    output.report(None, ("Store", admin.name), ("Schema", _format_schema(schema)))
    if survey is None:
        output.note("parley store migrate updates the schema; after it, more is shown here")
        return
    output.report(
        None, ("Size", format_size(survey.size)), ("Tasks", sum([n for _, _, n in survey.tasks]))
    )
    for agent in dict.fromkeys([agent for agent, _, _ in survey.tasks]):
        states = [
            f"{n} {state.name.lower().replace('_', '-')}"
            for a, state, n in survey.tasks
            if a == agent
        ]
        output.text.field(f"Tasks of {agent}", ", ".join(states))
    now = survey.now
    work: dict[bool, list[str]] = {True: [], False: []}
    for each in survey.work:
        since = format_age(now - each.since)
        work[each.is_held].append(f"{each.tasks} of {each.agent}, the oldest since {since}")
    asleep = [
        f"{each.tasks} of {each.agent}, "
        + ("for events" if each.wakes_at == NEVER else f"next in {format_age(each.wakes_at - now)}")
        for each in survey.asleep
    ]
    webhooks = [f"{n} {state.value}" for state, n in survey.webhooks]
    output.report(
        None,
        ("Held", "; ".join(work[True]) or "none"),
        ("Unclaimed", "; ".join(work[False]) or "none"),
        ("Asleep", "; ".join(asleep) or "none"),
        ("Webhooks", ", ".join(webhooks) or "none"),
        ("Contexts", survey.contexts),
        ("Receipts", survey.receipts),
        ("Events", survey.events),
    )
    if survey.replicas is not None:
        output.text.field("Replicas", len(survey.replicas) or "none")
        for replica in survey.replicas:
            seen = format_age(now - replica.seen_at)
            state = "alive" if replica.alive else "dead"
            held = f"owns {count(replica.holds, 'task')}"
            output.text.field("Replica", f"{replica.id}, {state}, last seen {seen} ago, {held}")


class MigrateOptions(InStore, frozen=True):
    """The options of ``parley store migrate``."""

    check: Annotated[
        bool, CommandOption("Change nothing, but exit with 1 if migrations are pending.")
    ] = False
    issuer: Annotated[
        str,
        CommandOption(
            "Assign data of callers without an issuer to the callers of this issuer.", "ISSUER"
        ),
    ] = ""
    agent: Annotated[
        str, CommandOption("With --issuer: only data of this agent, by its key.", "KEY")
    ] = ""
    tenant: Annotated[str, CommandOption("With --issuer: only data of this tenant.", "NAME")] = ""


@COMMANDS.work("migrate", exits=CHECKED)
def migrate(output: Output, admin: StoreAdmin, options: MigrateOptions) -> int:
    """Update a store's schema, or create the store.

    parley serve does the same when it starts, unless it is given --no-migrate. Stop processes of
    older versions first: a SQLite store must not be in use, and from version 2 of PostgreSQL's
    schema on their store becomes unavailable.

    With --issuer, tasks, contexts and receipts of callers whose ids have no issuer are assigned to
    the callers with the same ids of that issuer. No process may use the store then, not even
    PostgreSQL.
    """
    owners: OwnerAssignment | None = None
    if options.issuer:
        if not may_be_name(options.issuer):
            raise UsageFailure(f"--issuer: an issuer must have {RIGHT_NAME}")
        owners = OwnerAssignment(issuer=options.issuer, agent=options.agent, tenant=options.tenant)
    elif options.agent or options.tenant:
        raise UsageFailure(
            f"{'--agent' if options.agent else '--tenant'} applies to --issuer only: a schema is "
            "updated "
            "for all agents and tenants"
        )
    check, before = options.check, admin.schema()
    done = before.missing if check else admin.migrate()
    after = before if check else admin.schema()
    owned = None
    if owners is not None and not after.missing:
        require_current(admin, owners.agent)
        owned = admin.unassigned(owners) if check else admin.assign(owners)
    if not check:
        if done:
            steps = [f"{step.version} {step.name}" for step in done]
            record_act(admin, act("store.migrated", details={"migrations": steps}))
        if owners is not None and owned is not None:
            details = {"issuer": owners.issuer, **msgspec.to_builtins(owned)}
            record_act(
                admin,
                act(
                    "store.owners_assigned",
                    agent=owners.agent,
                    tenant=owners.tenant,
                    details=details,
                ),
            )
    made = [{"version": step.version, "name": step.name} for step in done]
    document = {"store": admin.name, "version": after.version, "missing" if check else "done": made}
    fields = [("To do" if check else "Done", f"{step.version} ({step.name})") for step in done]
    fields.append(("Schema", _format_schema(after)))
    if owned is not None:
        document["unassigned" if check else "assigned"] = msgspec.to_builtins(owned)
        fields.append(("To assign" if check else "Assigned", format_owned(owned)))
    output.report(document, ("Store", admin.name), *fields)
    is_due = bool(done) or (owned is not None and owned != NOTHING)
    return 1 if check and is_due else 0


class Filtered(InStore, frozen=True):
    """A selected part of a store."""

    agent: AgentKey = ""
    tenant: TenantName = ""


class StoreExport(Filtered, frozen=True):
    """The options of ``parley store export``."""

    file: Annotated[str, Argument("A new file, or - for standard output.", "FILE")] = "-"


@COMMANDS.work("export", MOVING)
def export(output: Output, admin: StoreAdmin, options: StoreExport) -> None:
    """Write the contents of a store at one moment, as lines of JSON.

    Contains tasks with their whole logs, the agents' data of contexts, receipts, webhooks with
    their credentials and delivery positions: protect the file as you protect the store. Works while
    the store is in use.
    """
    transfer.export(output, admin, options.file, agent=options.agent, tenant=options.tenant)


class Import(InStore, frozen=True, kw_only=True):
    """The options of ``parley store import``."""

    file: Annotated[str, Argument("An exported file, or - for standard input.", "FILE")]


@COMMANDS.work("import", MOVING)
def import_(output: Output, admin: StoreAdmin, options: Import) -> None:
    """Add an export to a store, after a check of all its contents.

    Existing data stays unchanged, so an interrupted import can be repeated. Interrupted turns run
    again when a server has the store, streams resume at their positions, webhooks receive the
    remaining events. A SQLite store must not be in use.
    """
    transfer.import_from(output, admin, options.file)


class Pruning(InStore, frozen=True):
    """The options of ``parley store prune``."""

    ended_before: Annotated[
        str, CommandOption("The least age of ended tasks, such as 30d, 12h or 90m.", "AGE")
    ] = ""
    agent: Annotated[
        str, CommandOption("Only tasks of this agent, by its key from parley store status.", "KEY")
    ] = ""
    dry_run: Annotated[bool, CommandOption("Only report the tasks that would be removed.")] = False
    rate: Annotated[
        int,
        CommandOption(
            "Remove at most so many tasks a second, to leave room for other writers.",
            "N",
            least=1,
            most=100_000,
        ),
    ] = 500


@COMMANDS.work("prune")
def prune(output: Output, admin: StoreAdmin, options: Pruning) -> None:
    """Remove tasks that ended long ago, with their events, webhooks and receipts.

    The agents' data of contexts without tasks, unused since then, is removed as well. Tasks that
    have not ended stay, however old. With Retention(tasks=...) a server prunes by itself. A SQLite
    store must not be in use.
    """
    age = parse_age(options.ended_before)
    agent, dry_run = options.agent, options.dry_run
    require_current(admin, agent)
    before = admin.now() - round(age * 1000)
    old = {each: admin.prunable(each, before) for each in ([agent] if agent else admin.agents())}
    removed = {} if dry_run else asyncio.run(_remove(admin, list(old), before, options.rate))
    if not dry_run:
        details = {"endedBefore": before, "tasks": removed}
        record_act(admin, act("store.pruned", agent=agent, details=details))
    label = "Would remove" if dry_run else "Removed"
    counts = {each: removed.get(each, found.tasks) for each, found in old.items()}
    agents = {e: {"tasks": counts[e], "receipts": found.receipts} for e, found in old.items()}
    fields = [
        (
            label,
            f"{count(counts[each], 'task')}, {count(found.events, 'event')}, "
            f"{count(found.receipts, 'receipt')} of {each}",
        )
        for each, found in old.items()
    ]
    output.report(
        {"store": admin.name, "dryRun": dry_run, "agents": agents},
        ("Store", admin.name),
        *(fields or [("Removed", "nothing")]),
    )


class Webhooks(InStore, frozen=True):
    """The selected webhooks."""

    id: Annotated[str, Argument("The id of the configuration.", "[ID]")] = ""
    task: Annotated[str, CommandOption("Only webhooks of this task.", "ID")] = ""
    agent: Annotated[str, CommandOption("Only webhooks of this agent, by its key.", "KEY")] = ""
    tenant: Annotated[str, CommandOption("Only webhooks of this tenant.", "NAME")] = ""

    @property
    def filter(self) -> WebhookFilter:
        """Return the selection as a filter of the store."""
        return WebhookFilter(agent=self.agent, tenant=self.tenant, task_id=self.task, id=self.id)


@WEBHOOKS.work("list")
def list_(output: Output, admin: StoreAdmin, options: Webhooks) -> None:
    """Show suspended webhooks, how many events they are behind, and why.

    Their URLs are shown without path and credentials. Works while the store is in use, and changes
    nothing.
    """
    which = options.filter
    require_current(admin, which.agent)
    found, waiting = admin.suspended(which), admin.suspended(which, "waiting")
    lists = {"webhooks": _documents(found), "waiting": _documents(waiting)}
    fields = [("Suspended", count(len(found), "webhook") if found else "none"), *_lines(found)]
    if waiting:
        fields += [("Waiting", count(len(waiting), "webhook")), *_lines(waiting)]
    output.report({"store": admin.name, **lists}, ("Store", admin.name), *fields)


class Resumed(Webhooks, frozen=True):
    """The options of ``parley store webhooks resume``."""

    all: Annotated[bool, CommandOption("All suspended webhooks.")] = False


@WEBHOOKS.work("resume")
def resume(output: Output, admin: StoreAdmin, options: Resumed) -> None:
    """Resume suspended webhooks, each after its last delivered event.

    Servers that use the store continue deliveries within a second or so.
    """
    which = options.filter
    if options.all == (which != WebhookFilter()):
        raise UsageFailure(
            "--all cannot be combined with --task, --agent, --tenant or an id"
            if options.all
            else "choose webhooks: an id, --task, --agent, --tenant, or --all",
            hint="parley store webhooks list shows the suspended webhooks",
        )
    require_current(admin, which.agent)
    resumed = admin.resume(which)
    details = {"webhooks": len(resumed), "first": [f"{e.task_id}/{e.id}" for e in resumed[:20]]}
    about = {"subject": which.task_id, "agent": which.agent, "tenant": which.tenant}
    record_act(admin, act("webhooks.resumed", **about, details=details))
    by_agent = sorted(Counter([each.agent for each in resumed]).items())
    fields = [("Resumed", f"{count(n, 'webhook')} of {agent}") for agent, n in by_agent]
    output.report(
        {"store": admin.name, "resumed": _documents(resumed)},
        ("Store", admin.name),
        *(fields or [("Resumed", "nothing")]),
    )


def _document(name: str, schema: SchemaStatus, survey: Survey | None) -> dict[str, Any]:
    missing = [{"version": each.version, "name": each.name} for each in schema.missing]
    document: dict[str, Any] = {
        "store": name,
        "schema": {"version": schema.version, "missing": missing},
    }
    if survey is None:
        return document
    now, tasks = survey.now, dict[str, dict[str, int]]()
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
                "oldestSeconds": max(0, now - each.since) / 1000,
            }
            for each in survey.work
        ],
        "asleep": [
            {
                "agent": each.agent,
                "tasks": each.tasks,
                "nextSeconds": None
                if each.wakes_at == NEVER
                else max(0, each.wakes_at - now) / 1000,
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
                "heardSecondsAgo": max(0, now - each.seen_at) / 1000,
                "holds": each.holds,
            }
            for each in survey.replicas
        ]
    return document


def format_owned(owned: Owned) -> str:
    """Return the counts in words: 2 tasks, 1 context, 0 receipts."""
    counts = {"task": owned.tasks, "context": owned.contexts, "receipt": owned.receipts}
    return ", ".join([count(n, what) for what, n in counts.items()])


def format_size(size: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def _format_schema(schema: SchemaStatus) -> str:
    if not schema.version:
        return "none"
    if schema.missing:
        return f"version {schema.version}; {schema.missing[-1].version} is needed"
    return f"version {schema.version}, up to date"


def parse_age(text: str) -> float:
    """Return an age in seconds: 30d, 12h, 1h30m. Raises ``UsageFailure``."""
    if not text:
        raise UsageFailure("--ended-before: give an age, such as 30d")
    try:
        return parse_span(text)
    except ValueError:
        raise UsageFailure(
            f"--ended-before: {text!r} is not an age such as 30d, 12h or 90m"
        ) from None


async def _remove(admin: StoreAdmin, agents: list[str], before: int, rate: int) -> dict[str, int]:
    """Remove old tasks of agents; return the counts by agent."""
    removed = dict.fromkeys(agents, 0)
    batch = min(BATCH_SIZE, rate)
    async with admin.opened() as store:
        for agent in agents:
            while done := await _remove_batch(store, agent, before, batch):
                removed[agent] += done
                await asyncio.sleep(done / rate)
    return removed


async def _remove_batch(store: TaskStore, agent: str, before: int, batch: int) -> int:
    """Remove a batch of tasks, once no replica prunes.

    Raises ``PrunedElsewhere`` if the wait is too long.
    """
    until = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            return await store.prune(agent, before, batch)
        except PrunedElsewhere:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.05)


def count(n: int, what: str) -> str:
    """Return a number with its noun."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def _lines(webhooks: Sequence[SuspendedWebhook]) -> list[tuple[str, str]]:
    return [
        (
            "Webhook",
            f"{each.task_id}/{each.id} of {each.agent}"
            f"{f', tenant {each.tenant}' if each.tenant else ''} at {each.server}, "
            f"{count(each.behind, 'event')} behind: {each.note}",
        )
        for each in webhooks
    ]


def _documents(webhooks: Sequence[SuspendedWebhook]) -> list[dict[str, Any]]:
    return [
        {
            "agent": each.agent,
            "tenant": each.tenant,
            "owner": each.owner,
            "task": each.task_id,
            "id": each.id,
            "server": each.server,
            "eventsBehind": each.behind,
            "note": each.note,
        }
        for each in webhooks
    ]
