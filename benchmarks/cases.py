"""What is measured: the rows of the table, and who takes part in each."""

from __future__ import annotations

from typing import NamedTuple

BARE, TYPED, PARLEY = "bare ASGI", "typed ASGI", "Parley"
RUST, GO, JS, FASTA2A, PYTHON = "a2a-rs", "a2a-go", "a2a-js", "fasta2a", "a2a-python"
PEERS = (RUST, GO, JS, FASTA2A, PYTHON)
EVERYONE = (BARE, TYPED, PARLEY, *PEERS)
MEMORY, DISK = "memory:", "{store}"
OURS = (BARE, TYPED, PARLEY)
SHORT = {RUST: 200, GO: 200, JS: 200, FASTA2A: 200, PYTHON: 100}
"""Chunks of a stream of an SDK, where a thousand take too long; a quarter of it on disk.

Each chunk costs most of them more the longer the stream is, so this favours them.
"""


class Row(NamedTuple):
    """One workload. ``load`` are arguments of the load generator.

    ``figure`` is what counts: ``cpu_us`` of a request or chunk, with the rate beside it, ``p50_ms``
    or ``bytes``.
    """

    name: str
    does: str
    where: str
    load: tuple[str, ...]
    who: tuple[str, ...]
    figure: str = "cpu_us"


def requests(check: str, connections: int = 32) -> tuple[str, ...]:
    """Return the load of a row that counts requests."""
    return ("requests", "--check", check, "--connections", str(connections))


STREAMS = ("streams", "--connections", "16")
WITH_REPLIES = (TYPED, PARLEY, RUST, GO, JS, PYTHON)
WITH_STREAMS = (TYPED, PARLEY, *PEERS)
ROWS = (
    Row("direct reply", "reply", MEMORY, requests("reply"), (BARE, *WITH_REPLIES)),
    Row("task in memory", "task", MEMORY, requests("task"), WITH_REPLIES),
    Row("task in SQLite", "task", DISK, requests("task"), (PARLEY, PYTHON)),
    Row("chunk of 16 streams", "stream", MEMORY, STREAMS, (BARE, *WITH_STREAMS)),
    Row("chunk of 16 streams in SQLite", "stream", DISK, STREAMS, (PARLEY, PYTHON)),
    Row("GetTask, 20 messages", "talk", MEMORY, requests("get"), WITH_STREAMS),
    Row(
        "first event of a stream",
        "stream",
        MEMORY,
        ("first", "--chunks", "200"),
        WITH_STREAMS,
        "p50_ms",
    ),
    Row(
        "idle stream with its task",
        "wait",
        MEMORY,
        ("held", "--connections", "1000"),
        WITH_STREAMS,
        "bytes",
    ),
)
"""Who is not in a row has no such thing: see ``docs/internals/performance.md``."""


def load_of(row: Row, who: str, seconds: float, shrink: int) -> list[str]:
    """Return the arguments of the load generator, ``shrink`` times less where sizes are fixed."""
    load = [*row.load]
    chunks = SHORT.get(who, 1000) // (4 if who in SHORT and row.where == DISK else 1)
    for name, given in (("--seconds", str(seconds)), ("--chunks", str(chunks))):
        if name not in load and load[0] in ("requests", "streams", "first"):
            load += [name, given]
    for name in ("--chunks", "--repeat") + (("--connections",) if row.figure == "bytes" else ()):
        if shrink > 1 and name in load:
            at = load.index(name) + 1
            load[at] = str(max(1, int(load[at]) // shrink))
    if who == BARE:  # it has one answer; the last of two options counts
        load += ["--check", "fixed"]
    return load
