"""``python -m tests.peers``: run the interoperability matrix, and write its page.

python -m tests.peers                     everything, and docs/reference/interoperability.md
python -m tests.peers python-1.3 js-0.3   some peers; the page stays unchanged
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

from .deviations import differences, known
from .environments import AT_LENGTH, NotMade
from .matrix import Cell, Outcome, cells, outcomes
from .pages import PAGE, missing, written
from .table import TABLE


async def run(peers: list[str], jobs: int) -> tuple[dict[Cell, dict[str, Outcome]], dict[str, str]]:
    """Return the outcome of every cell, and the unavailable peers with the reason."""
    results: dict[Cell, dict[str, Outcome]] = {}
    without: dict[str, str] = {}
    places = asyncio.Semaphore(jobs)

    async def run_peer(peer: str) -> None:
        async with places:
            for cell in cells([peer]):
                try:
                    results[cell] = await outcomes(cell)
                except NotMade as error:
                    without[peer] = str(error)
                    print(f"{peer}: not run: {error}", flush=True)
                    return
                offered = [outcome for outcome in results[cell].values() if outcome.offered]
                worked = sum(not outcome.failed for outcome in offered)
                print(f"{cell}: {worked} of {len(offered)} work", flush=True)

    async with asyncio.TaskGroup() as running:
        for peer in peers or TABLE:
            running.create_task(run_peer(peer))
    return {cell: results[cell] for cell in cells() if cell in results}, without


def main() -> int:
    """Run the given peers; return 1 when an outcome differs from the known one."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("peers", nargs="*", metavar="peer", help=f"one of {', '.join(TABLE)}")
    parser.add_argument(
        "--where-possible", action="store_true", help="pass over peers that cannot be had"
    )
    parser.add_argument("--jobs", type=int, default=2, help="peers at a time (2)")
    asked = parser.parse_args()
    for name in asked.peers:
        if name not in TABLE:
            parser.error(f"there is no peer {name!r}; there are {', '.join(TABLE)}")
    os.environ[AT_LENGTH] = "1"
    logging.disable()  # agents fail on purpose
    entries = known()
    results, without = asyncio.run(run(asked.peers, asked.jobs))
    wrong = differences(results, entries)
    for line in wrong:
        print(f"  {line}", flush=True)
    if wrong:
        print(f"{len(wrong)} otherwise than known (tests/peers/deviations.toml)")
        return 1
    print("as known")
    if not missing(results):
        PAGE.write_text(written(PAGE.read_text("utf-8"), results, entries), "utf-8")
    elif not asked.peers:
        print(f"interoperability.md stays as it is: {', '.join(without)} cannot be had here")
    return 1 if without and not asked.where_possible else 0


if __name__ == "__main__":
    sys.exit(main())
