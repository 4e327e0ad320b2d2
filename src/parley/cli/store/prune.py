"""``parley store prune``: removes tasks that ended long ago, in batches."""

from __future__ import annotations

import asyncio
import time

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.durations import parse_span
from parley.cli.store.acts import act, record_act
from parley.cli.store.checks import require_agent, require_current
from parley.store.admin.admin import StoreAdmin
from parley.store.protocols.errors import PrunedElsewhere
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
    output: Output, admin: StoreAdmin, url: str, *, age: float, agent: str, dry_run: bool, rate: int
) -> None:
    """Remove tasks that ended more than ``age`` seconds ago, or only report them."""
    require_current(admin)
    if agent:
        require_agent(admin, agent)
    before = admin.now() - round(age * 1000)
    old = {each: admin.prunable(each, before) for each in ([agent] if agent else admin.agents())}
    removed = {} if dry_run else asyncio.run(_remove(url, list(old), before, rate))
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


async def _remove(url: str, agents: list[str], before: int, rate: int) -> dict[str, int]:
    """Remove old tasks of agents; return the counts by agent."""
    from parley.host.store_urls import open_store

    store = open_store(url)
    await store.open(lambda records: None)
    try:
        removed = dict.fromkeys(agents, 0)
        batch = min(BATCH_SIZE, rate)
        for agent in agents:
            while count := await _remove_batch(store, agent, before, batch):
                removed[agent] += count
                await asyncio.sleep(count / rate)
        return removed
    finally:
        await store.close()


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
