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
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

if __name__ == "__main__" and len(sys.argv) > 1:  # Ctrl-C is for the command that started this
    signal.signal(signal.SIGINT, signal.SIG_IGN)
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from desks import ADDRESSES  # noqa: E402

MODULES = {"planner": "trip_planner", "travel": "orchestrator"}
"""The modules of agents whose names differ."""
FRONT = os.environ.get("TRAVEL", "http://localhost:9999")
HOME = Path(os.environ.get("TRAVEL_HOME", "travel-data")).absolute()
TRIES = 5  # how often in a row an agent may end with an error


def serve(name: str) -> None:
    """Serve one agent, in this process."""
    import parley

    os.environ.setdefault("TRAVEL_OFFICE", str(HOME / "bookings.db"))
    logging.basicConfig(format=f"{name}: %(message)s", level=logging.WARNING)
    agent = importlib.import_module(MODULES.get(name, name)).agent

    def listening(url: str) -> None:
        print(f"{agent.name}: {url} (process {os.getpid()})", flush=True)

    store = f"sqlite:///{HOME / name}.db"
    parley.serve(agent, port=port_of(name), store=store, on_listening=listening)


def port_of(name: str) -> int:
    """Return the port of an agent."""
    return urlsplit(FRONT if name == "travel" else ADDRESSES[name]).port or 80


def is_taken(port: int) -> bool:
    """Return whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def start(name: str) -> subprocess.Popen[bytes]:
    """Start one agent in a process of its own, with the Python that is named for it."""
    variable = f"{name.upper()}_PYTHON"
    try:
        return subprocess.Popen([os.environ.get(variable, sys.executable), str(HERE), name])
    except OSError as error:
        raise SystemExit(f"{variable} names no Python: {error}") from None


def main() -> None:
    """Start all, and again those that die. Raises ``SystemExit`` for one that cannot stay."""
    names = (*ADDRESSES, "travel")
    if taken := [f"{name} ({port_of(name)})" for name in names if is_taken(port_of(name))]:
        raise SystemExit(
            f"The ports of these agents are taken: {', '.join(taken)}. "
            "End what listens there, or name others: TRAVEL=http://localhost:9200, say."
        )
    HOME.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    running: dict[str, subprocess.Popen[bytes]] = {}
    errors = dict.fromkeys(names, 0)
    try:
        for name in names:
            running[name] = start(name)
        while True:
            time.sleep(0.2)
            for name, process in running.items():
                if (status := process.poll()) is None:
                    if errors[name] and is_taken(port_of(name)):  # it serves
                        errors[name] = 0
                    continue
                errors[name] = errors[name] + 1 if status > 0 else 0
                if errors[name] >= TRIES:
                    raise SystemExit(f"{name} does not stay: what it said is above.")
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
