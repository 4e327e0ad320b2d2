"""Serves an agent in processes that die: ``travel_killed.py MODULE PORT STORE SPREAD``.

The agent is part of the travel planner. Each process is a fork of this process, which has imported
everything. A process ends as ``kill -9`` ends it: after its second write to the log, or before its
third, in turn. In the second case, the work since the last write is done but not logged. With a
SPREAD of 3, the second, third or fourth write counts, in turn: for an agent whose attempts need
more writes. The next process follows. Each death prints a line; the last process ends with the
input.
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
    """Serve until this process has to die."""
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
