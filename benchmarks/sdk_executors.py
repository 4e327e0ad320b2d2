"""Measure executors of the official SDK on Parley, beside the same ones on the SDK's own server.

    python benchmarks/sdk_executors.py [--rounds 3] [--seconds 2]

Prints a table: what a second of one core does, and the ratio. The executors are those of
``servers/official.py``; both servers run in one environment, on one core.
"""

from __future__ import annotations

import argparse

import environments
import rows
from cases import DISK, MEMORY, PARLEY, PYTHON, STREAMS, Row, requests

WHO = (PARLEY, PYTHON)
ONE = (*STREAMS[:2], "1", "--seconds", "0", "--chunks")
ROWS = (
    Row("direct replies", "reply", MEMORY, requests("reply", 64), WHO),
    Row("tasks in memory", "task", MEMORY, requests("task", 64), WHO),
    Row("tasks in SQLite", "task", DISK, requests("task", 64), WHO),
    Row("chunks in memory", "stream", MEMORY, (*ONE, "2000"), WHO),
    Row("chunks in SQLite", "stream", DISK, (*ONE, "300"), WHO),
)
COMMANDS = {
    who: lambda script=script: [
        environments.official(with_parley=True),
        str(environments.SERVERS / script),
    ]
    for who, script in ((PARLEY, "sdk_on_parley.py"), (PYTHON, "official.py"))
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    print("| executors of the SDK | on Parley | on its own server | ratio |")
    print("|---|--:|--:|--:|")
    for row in ROWS:
        found = rows.measure(row, WHO, options.rounds, options.seconds, commands=COMMANDS)
        ours, theirs = (found.figures.get(who, {}).get("per_second", 0) for who in WHO)
        ratio = f"{ours / theirs:.1f}x" if theirs else ""
        print(f"| {row.name} a second | {ours:,.0f} | {theirs:,.0f} | {ratio} |")
        for who, why in (found.missing | found.wrong).items():
            print(f"missing: {row.name}, {who}: {why}")


if __name__ == "__main__":
    main()
