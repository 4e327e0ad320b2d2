"""Removing what ended long ago, a little at a time."""

from __future__ import annotations

import asyncio
import re
import time

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.settings.durations import parse_duration
from parley.cli.store.status import require_agent, require_current
from parley.store.admin.admin import StoreAdmin
from parley.store.task_store import PrunedElsewhere, TaskStore

PIECE = 200
"""How many tasks are removed at once."""

TURN_SECONDS = 60.0
"""How long to wait for replicas that remove what is old themselves."""


def parse_age(written: str) -> float:
    """Return an age in seconds: 30d, 12h, 1h30m. Raises ``UsageFailure``."""
    if not written:
        raise UsageFailure("--ended-before: say how old, such as 30d")
    try:
        days = re.fullmatch(r"(\d+(?:\.\d+)?)d", written.strip().lower())
        return float(days[1]) * 86_400 if days else parse_duration(written)
    except ValueError:
        raise UsageFailure(
            f"--ended-before: {written!r} is not an age such as 30d, 12h or 90m"
        ) from None


def prune(
    output: Output,
    upkeep: StoreAdmin,
    url: str,
    *,
    age: float,
    agent: str,
    only_says: bool,
    rate: int,
) -> None:
    """Remove what ended before so many seconds ago, or only say what that is."""
    require_current(upkeep)
    if agent:
        require_agent(upkeep, agent)
    before = upkeep.now() - round(age * 1000)
    old = {each: upkeep.old(each, before) for each in ([agent] if agent else upkeep.agents())}
    removed = {} if only_says else asyncio.run(_remove(url, list(old), before, rate))
    if output.is_json:
        output.document(
            {
                "store": upkeep.name,
                "dryRun": only_says,
                "agents": {
                    each: {"tasks": removed.get(each, found.tasks), "receipts": found.receipts}
                    for each, found in old.items()
                },
            }
        )
        return
    output.text.field("Store", upkeep.name)
    for each, found in old.items():
        words = [
            _count(removed.get(each, found.tasks), "task"),
            _count(found.events, "event"),
            _count(found.receipts, "receipt"),
        ]
        label = "Would remove" if only_says else "Removed"
        output.text.field(label, f"{', '.join(words)} of {each}")
    if not old:
        output.text.field("Removed", "nothing")


async def _remove(url: str, agents: list[str], before: int, rate: int) -> dict[str, int]:
    """Remove old tasks of agents; return how many of each."""
    from parley.host.store_urls import open_store

    store = open_store(url)
    await store.open(lambda records: None)
    try:
        removed = dict.fromkeys(agents, 0)
        piece = min(PIECE, rate)
        for agent in agents:
            while count := await _remove_piece(store, agent, before, piece):
                removed[agent] += count
                await asyncio.sleep(count / rate)
        return removed
    finally:
        await store.close()


async def _remove_piece(store: TaskStore, agent: str, before: int, piece: int) -> int:
    """Remove a few tasks, when it is this process's turn to: a replica may be at it too.

    Raises ``PrunedElsewhere`` when that takes too long.
    """
    until = time.monotonic() + TURN_SECONDS
    while True:
        try:
            return await store.prune(agent, before, piece)
        except PrunedElsewhere:
            if time.monotonic() > until:
                raise
        await asyncio.sleep(0.05)


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
