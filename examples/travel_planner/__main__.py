"""Starts the seven agents of the travel planner, each in a process of its own, until Ctrl-C.

    python examples/travel_planner
    parley send "Five days in London in July, 4,000 USD"

An agent that dies is started again, and goes on. ``FLIGHTS_PYTHON`` (HOTELS_, CARS_, ...) names the
Python of another environment, for frameworks that are installed apart; ``FLIGHTS`` (HOTELS, ...)
another address. Tasks and bookings are kept in the folder ``TRAVEL_HOME``, by default travel-data.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from desks import ADDRESSES  # noqa: E402

MODULES = {"planner": "trip_planner", "travel": "orchestrator"}
"""The modules of agents whose names differ."""
FRONT = os.environ.get("TRAVEL", "http://localhost:9999")
HOME = Path(os.environ.get("TRAVEL_HOME", "travel-data")).absolute()


def serve(name: str) -> None:
    """Serve one agent, in this process."""
    import parley

    os.environ.setdefault("TRAVEL_OFFICE", str(HOME / "bookings.db"))
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    agent = importlib.import_module(MODULES.get(name, name)).agent

    def listening(url: str) -> None:
        print(f"{agent.name}: {url} (process {os.getpid()})", flush=True)

    where = urlsplit(FRONT if name == "travel" else ADDRESSES[name])
    parley.serve(
        agent, port=where.port or 80, store=f"sqlite:///{HOME / name}.db", on_listening=listening
    )


def start(name: str) -> subprocess.Popen[bytes]:
    """Start one agent in a process of its own, with the Python that is named for it."""
    python = os.environ.get(f"{name.upper()}_PYTHON", sys.executable)
    return subprocess.Popen([python, str(HERE), name])


def main() -> None:
    """Start all, and again those that die."""
    HOME.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    running = {name: start(name) for name in (*ADDRESSES, "travel")}
    try:
        while True:
            time.sleep(0.2)
            for name, process in running.items():
                if (status := process.poll()) is not None:
                    print(f"{name} has ended ({status}); it is started again.", flush=True)
                    if status > 0:  # it said why, and may need some time
                        time.sleep(1)
                    running[name] = start(name)
    except KeyboardInterrupt:
        pass
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1])
    else:
        main()
