"""Serves an agent in processes that die: ``travel_killed.py MODULE PORT STORE SPREAD``.

The agent is one of the travel planner. Each process is forked from this one, which has imported
everything. It ends as ``kill -9`` does after its second write to the log, or before its third, in
turn: what it did in between is done and not logged. With a SPREAD of 3 it is the second, third or
fourth, in turn: an agent whose attempts write more before they get further. The next process
follows. A line is printed for each death; the last ends with the input.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "travel_planner"))

import parley
from parley.store.sqlite.batch import SqliteBatch

for name in (
    "aiohttp", "encodings.idna", "parley.client.bindings.jsonrpc", "parley.client.connection",
    "parley.host.app", "parley.server.run", "parley.store.sqlite.store", "uvloop",
):  # fmt: skip
    importlib.import_module(name)
AGENT = importlib.import_module(sys.argv[1]).agent
write = SqliteBatch.write


def be(generation: int) -> None:
    """Serve until it is time to die."""
    writes, last = 0, 2 + generation // 2 % int(sys.argv[4])

    def dying_write(self: SqliteBatch) -> None:
        nonlocal writes
        writes += bool(self._records)
        if writes == last + 1 and generation % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self)
        if writes == last and not generation % 2:
            os.kill(os.getpid(), signal.SIGKILL)

    SqliteBatch.write = dying_write  # type: ignore[method-assign]
    parley.serve(AGENT, port=int(sys.argv[2]), store=sys.argv[3], drain=0.0)


def main() -> None:
    generation, child = 0, 0
    gc.freeze()

    def end() -> None:
        sys.stdin.read()
        os.kill(child, signal.SIGKILL)
        os._exit(0)

    while True:
        child = os.fork()
        if not child:
            be(generation)
            os._exit(0)
        if not generation:
            threading.Thread(target=end, daemon=True).start()
        os.waitpid(child, 0)
        generation += 1
        print(generation, flush=True)


if __name__ == "__main__":
    main()
