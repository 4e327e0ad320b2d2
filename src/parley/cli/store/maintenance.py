"""``parley store prune``, ``webhooks``, ``export`` and ``import``: changes to a store."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from parley import __version__
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output
from parley.cli.output.text import parse_span
from parley.cli.store.acts import act, record_act, require_agent, require_current
from parley.store.admin.admin import StoreAdmin
from parley.store.admin.transfer import (
    Counts,
    ExportSource,
    Imported,
    TransferError,
    checked,
    export_to,
    import_into,
    lines_in,
)
from parley.store.protocols.errors import PrunedElsewhere
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter
from parley.store.task_store import TaskStore

BATCH_SIZE = 200
"""The most tasks of one batch."""

LOCK_TIMEOUT = 60.0
"""Seconds to wait for replicas that prune at the same time."""


def parse_age(text: str) -> float:
    """Return an age in seconds: 30d, 12h, 1h30m. Raises ``UsageFailure``."""
    if not text:
        raise UsageFailure("--ended-before: say how old, such as 30d")
    try:
        return parse_span(text)
    except ValueError:
        raise UsageFailure(
            f"--ended-before: {text!r} is not an age such as 30d, 12h or 90m"
        ) from None


def prune(
    output: Output, admin: StoreAdmin, *, age: float, agent: str, dry_run: bool, rate: int
) -> None:
    """Remove tasks that ended more than ``age`` seconds ago, or only report them."""
    require_current(admin)
    if agent:
        require_agent(admin, agent)
    before = admin.now() - round(age * 1000)
    old = {each: admin.prunable(each, before) for each in ([agent] if agent else admin.agents())}
    removed = {} if dry_run else asyncio.run(_remove(admin, list(old), before, rate))
    if not dry_run:
        details = {"endedBefore": before, "tasks": removed}
        record_act(admin, act("store.pruned", agent=agent, details=details))
    if output.is_json:
        output.document(
            {
                "store": admin.name,
                "dryRun": dry_run,
                "agents": {
                    each: {"tasks": removed.get(each, found.tasks), "receipts": found.receipts}
                    for each, found in old.items()
                },
            }
        )
        return
    output.text.field("Store", admin.name)
    for each, found in old.items():
        words = [
            _count(removed.get(each, found.tasks), "task"),
            _count(found.events, "event"),
            _count(found.receipts, "receipt"),
        ]
        label = "Would remove" if dry_run else "Removed"
        output.text.field(label, f"{', '.join(words)} of {each}")
    if not old:
        output.text.field("Removed", "nothing")


async def _remove(admin: StoreAdmin, agents: list[str], before: int, rate: int) -> dict[str, int]:
    """Remove old tasks of agents; return the counts by agent."""
    removed = dict.fromkeys(agents, 0)
    batch = min(BATCH_SIZE, rate)
    async with admin.opened() as store:
        for agent in agents:
            while count := await _remove_batch(store, agent, before, batch):
                removed[agent] += count
                await asyncio.sleep(count / rate)
    return removed


async def _remove_batch(store: TaskStore, agent: str, before: int, batch: int) -> int:
    """Remove a batch of tasks, once no replica prunes.

    Raises ``PrunedElsewhere`` if that takes too long.
    """
    until = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            return await store.prune(agent, before, batch)
        except PrunedElsewhere:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.05)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def list_suspended(output: Output, admin: StoreAdmin, which: WebhookFilter) -> None:
    """Report the suspended webhooks and those that wait for their receivers, with the reasons."""
    _require(admin, which)
    found, waiting = admin.suspended(which), admin.suspended(which, "waiting")
    if output.is_json:
        lists = {"webhooks": _documents(found), "waiting": _documents(waiting)}
        output.document({"store": admin.name, **lists})
        return
    output.text.field("Store", admin.name)
    output.text.field("Suspended", _count(len(found), "webhook") if found else "none")
    _write(output, found)
    if waiting:
        output.text.field("Waiting", _count(len(waiting), "webhook"))
        _write(output, waiting)


def _write(output: Output, webhooks: Sequence[SuspendedWebhook]) -> None:
    for each in webhooks:
        tenant = f", tenant {each.tenant}" if each.tenant else ""
        events = f"{each.behind} event{'' if each.behind == 1 else 's'} behind"
        webhook = f"{each.task_id}/{each.id} of {each.agent}{tenant} at {each.server}"
        output.text.field("Webhook", f"{webhook}, {events}: {each.note}")


def resume(output: Output, admin: StoreAdmin, which: WebhookFilter, *, all: bool) -> None:
    """Resume webhooks, and report how many."""
    if all == (which != WebhookFilter()):
        raise UsageFailure(
            "--all is for all of them, without --task, --agent, --tenant and an id"
            if all
            else "say which: an id, --task, --agent, --tenant, or --all for all of them",
            hint="parley store webhooks list shows them",
        )
    _require(admin, which)
    resumed = admin.resume(which)
    details = {"webhooks": len(resumed), "first": [f"{e.task_id}/{e.id}" for e in resumed[:20]]}
    record_act(
        admin,
        act(
            "webhooks.resumed",
            subject=which.task_id,
            agent=which.agent,
            tenant=which.tenant,
            details=details,
        ),
    )
    if output.is_json:
        output.document({"store": admin.name, "resumed": _documents(resumed)})
        return
    output.text.field("Store", admin.name)
    for agent, n in sorted(Counter([each.agent for each in resumed]).items()):
        output.text.field("Resumed", f"{_count(n, 'webhook')} of {agent}")
    if not resumed:
        output.text.field("Resumed", "nothing")


def _require(admin: StoreAdmin, which: WebhookFilter) -> None:
    require_current(admin)
    if which.agent:
        require_agent(admin, which.agent)


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


PROGRESS_INTERVAL = 5.0
"""Seconds between two progress notes of an import."""


def export(
    output: Output, admin: StoreAdmin, file: str, *, agent: str = "", tenant: str = ""
) -> None:
    """Write a store's contents to a new file, or to standard output.

    ``agent`` and ``tenant`` restrict the export.
    """
    require_current(admin)
    if agent:
        require_agent(admin, agent)

    def write(source: ExportSource, put: Callable[[bytes], object]) -> Counts:
        return export_to(source, put, by=__version__, agent=agent, tenant=tenant)

    if file == "-":
        if output.is_json:
            raise UsageFailure(
                "--output json is about the export, which is on standard output itself; name a file"
            )
        if sys.stdout.isatty():
            raise UsageFailure(
                "the export is not for a terminal: name a file, or pass it on",
                hint="parley store export tasks.jsonl",
            )
        try:
            with admin.reading() as source:
                counts = write(source, sys.stdout.buffer.write)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandFailure(
                "PARLEY_ERR_FILE", f"the export is not whole ({error.strerror}); do it again"
            ) from error
        _record_export(admin, counts, agent, tenant)
        output.note(f"exported {format_counts(counts)}")
        return
    with new_file(Path(file)) as stream, admin.reading() as source:
        counts = write(source, stream.write)
    _record_export(admin, counts, agent, tenant)
    if output.is_json:
        output.document({"store": admin.name, "file": file, "exported": _plain(counts)})
        return
    output.text.field("File", file)
    output.text.field("Exported", format_counts(counts))


def _record_export(admin: StoreAdmin, counts: Counts, agent: str, tenant: str) -> None:
    record_act(admin, act("store.exported", agent=agent, tenant=tenant, details=_plain(counts)))


@contextmanager
def new_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that only its owner can read, and that appears only when complete and durable.

    Replaces no other file, and writes through no link.
    """
    exists = UsageFailure(f"{path} is there already; name a new file, or remove it")
    if os.path.lexists(path):
        raise exists
    try:
        descriptor, name = tempfile.mkstemp(".part", f"{path.name}.", path.parent)
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)  # whatever the umask is
    except OSError as error:
        raise CommandFailure(
            "PARLEY_ERR_FILE", f"{path} cannot be written ({error.strerror})"
        ) from error
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(part, path)
        except FileExistsError:
            raise exists from None
        except OSError:  # not every file system has links
            part.rename(path)
    except OSError as error:
        raise CommandFailure(
            "PARLEY_ERR_FILE", f"{path} was not written ({error.strerror}); nothing is left of it"
        ) from error
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def import_from(output: Output, admin: StoreAdmin, file: str) -> None:
    """Add an export to a store, after checking all of it."""
    with _rewindable(file) as stream:
        try:
            deque(checked(lines_in(stream)), maxlen=0)
        except TransferError as error:
            name = "standard input" if file == "-" else file
            raise CommandFailure(
                "PARLEY_ERR_FILE", f"{name}: {error}", hint="nothing was imported"
            ) from error
        stream.seek(0)
        done = asyncio.run(_import(admin, stream, _progress_reporter(output)))
    details = {"imported": _plain(done.added), "thereAlready": _plain(done.skipped)}
    record_act(admin, act("store.imported", details=details))
    if output.is_json:
        output.document({"store": admin.name, **details})
        return
    output.text.field("Store", admin.name)
    output.text.field("Imported", format_counts(done.added))
    if any(_plain(done.skipped).values()):
        output.text.field("There already", format_counts(done.skipped))


async def _import(
    admin: StoreAdmin, stream: IO[bytes], progress: Callable[[Imported], None]
) -> Imported:
    async with admin.opened() as store:
        return await import_into(store, lines_in(stream), progress)


@contextmanager
def _rewindable(file: str) -> Iterator[IO[bytes]]:
    """Open a file to be read twice; a pipe is copied to a temporary file."""
    name = "standard input" if file == "-" else file
    try:
        with open(file, "rb") if file != "-" else tempfile.TemporaryFile() as stream:
            if file == "-":
                shutil.copyfileobj(sys.stdin.buffer, stream)
                stream.seek(0)
            elif not stream.seekable():
                raise UsageFailure(f"{file} cannot be read twice; pass it on standard input, as -")
            yield stream
    except OSError as error:
        raise CommandFailure(
            "PARLEY_ERR_FILE", f"{name} cannot be read ({error.strerror})"
        ) from error


def _progress_reporter(output: Output) -> Callable[[Imported], None]:
    last = time.monotonic()

    def report(done: Imported) -> None:
        nonlocal last
        if time.monotonic() - last > PROGRESS_INTERVAL:
            last = time.monotonic()
            output.note(f"imported {format_counts(done.added)} so far")

    return report


def format_counts(counts: Counts) -> str:
    """Return counts in words."""
    words = [f"{n} {name[:-1] if n == 1 else name}" for name, n in _plain(counts).items() if n]
    return ", ".join(words) or "nothing"


def _plain(counts: Counts) -> dict[str, Any]:
    return msgspec.structs.asdict(counts)
