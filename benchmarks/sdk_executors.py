"""Measure executors of the official SDK on Parley, beside the same ones on the SDK's own server.

    python benchmarks/sdk_executors.py [--rounds 3] [--seconds 2]

Prints a table: what a second of one core does, and the ratio. The executors are those of
``servers/official.py``; both servers run in one environment, on one core.
"""

from __future__ import annotations

import argparse

import environments
from run import DISK, MEMORY, OFFICIAL, PARLEY, REPLY, TASK, Case, Servers, run, streams

CASES = tuple(
    Case(name, who, script, arguments, load)
    for name, arguments, load in (
        ("direct replies", ("reply", MEMORY), REPLY),
        ("tasks in memory", ("task", MEMORY), TASK),
        ("tasks in SQLite", ("task", DISK), TASK),
        ("chunks in memory", ("stream", MEMORY), streams(1, 2_000)),
        ("chunks in SQLite", ("stream", DISK), streams(1, 300)),
    )
    for who, script in ((PARLEY, "sdk_on_parley.py"), (OFFICIAL, "official.py"))
)


class SdkServers(Servers):
    """Servers in the environment that has the SDK and what Parley needs."""

    def _python(self, case: Case) -> str:
        return environments.official(with_parley=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    found = run(list(CASES), options.rounds, options.seconds, 1, SdkServers)
    print("| executors of the SDK | on Parley | on its own server | ratio |")
    print("|---|--:|--:|--:|")
    for name, of in found["figures"].items():
        ours, theirs = (of.get(who, {}).get("per_second", 0) for who in (PARLEY, OFFICIAL))
        ratio = f"{ours / theirs:.1f}x" if theirs else ""
        print(f"| {name} a second | {ours:,.0f} | {theirs:,.0f} | {ratio} |")
    for name, why in found["missing"].items():
        print(f"missing: {name}: {why}")


if __name__ == "__main__":
    main()
