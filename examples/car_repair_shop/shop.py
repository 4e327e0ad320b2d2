"""Opens a car repair shop: a manager, a mechanic and a parts supplier, and the mechanic's tools.

    python examples/car_repair_shop/shop.py
    python examples/car_repair_shop/customer.py

The second command plays a customer. You can be one yourself:

    parley send "My car is making a rattling noise"
    parley send --task-id TASK "A Toyota Camry 2018, XYZ123"

Each agent is a process of its own, with its own tasks. One that ends is started again: kill the
mechanic (`kill -9 PID`) while the lift is up, and look into car_repair_shop/lift.txt. It needs
pip install "parley-a2a[cli,llm,mcp]".
"""

import argparse
import contextlib
import importlib
import multiprocessing
import os
import signal
import socket
import sys
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

PORTS = {"shop_manager": 9999, "mechanic": 9101, "supplier": 9102, "workshop": 9103}
"""The programs of this folder that run, and their ports."""

SLOW = ["aiohttp", "mcp.server", "parley.host.app", "parley.llm", "parley.server.run"]
"""What takes time to import: it is imported once, and not by each process."""

PAUSE = 0.5  # seconds before a program that ended is started again
TRIES = 5  # how often one may end that was of no use
processes = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")


def main(ports: dict[str, int], folder: Path) -> None:
    """Run all programs until somebody stops this one."""
    url = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    os.environ |= {
        "FOLDER": str(folder),
        "MECHANIC": url["mechanic"],
        "SUPPLIER": url["supplier"],
        "LIFT": f"{url['workshop']}/lift",
        "MANUAL": f"{url['workshop']}/manual",
    }
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    processes.set_forkserver_preload(SLOW)
    running: dict[str, BaseProcess] = {}
    try:
        for name, port in ports.items():
            running[name] = start(name, port, folder)
        while not all(listens(port) for port in ports.values()):
            wait([each.sentinel for each in running.values()], timeout=0.1)
            keep_running(running, ports, folder)
        print(f"The shop is open at {url['shop_manager']}. Logs and data: {folder}", flush=True)
        while True:
            wait([each.sentinel for each in running.values()])
            keep_running(running, ports, folder)
    finally:
        tools = running.pop("workshop", None)  # it stays until the mechanic has lowered the lift
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()
        if tools is not None:
            tools.terminate()
            tools.join()


def start(name: str, port: int, folder: Path) -> BaseProcess:
    """Start a program in a process of its own."""
    process = processes.Process(target=run, args=(name, port, folder, dict(os.environ)), name=name)
    process.start()
    print(f"{name:<12} runs as process {process.pid}", flush=True)
    return process


def run(name: str, port: int, folder: Path, environment: dict[str, str]) -> None:
    """Be a program: serve an agent, or the tools of the workshop. What it says goes into a log."""
    os.environ.update(environment)
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C is for the shop, which then ends its programs
    log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    program = importlib.import_module(name)
    if name == "workshop":
        program.main(port)
        return
    import parley

    store = f"sqlite:///{folder / name}.db"
    parley.serve(program.agent, port=port, store=store, allow_private_files=True)


ended_early: dict[str, int] = {}
"""How often a program ended before it listened, or right after."""


def keep_running(running: dict[str, BaseProcess], ports: dict[str, int], folder: Path) -> None:
    """Start the programs again that have ended. Raises ``SystemExit`` for one that cannot stay."""
    for name, process in list(running.items()):
        if process.exitcode is None:
            if listens(ports[name]):
                ended_early.pop(name, None)
            continue
        ended_early[name] = ended_early.get(name, 0) + 1
        if ended_early[name] > TRIES:
            raise SystemExit(f"{name} does not stay: {folder / name}.log says why")
        print(f"{name:<12} ended with {process.exitcode}; it is started again", flush=True)
        time.sleep(PAUSE)
        running[name] = start(name, ports[name], folder)


def listens(port: int) -> bool:
    """Return whether somebody listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    words = argparse.ArgumentParser(description="Open a car repair shop.")
    words.add_argument("--ports", type=int, nargs=4, default=PORTS.values(), metavar="PORT")
    words.add_argument("--folder", type=Path, default=Path("car_repair_shop"))
    given = words.parse_args()
    chosen = dict(zip(PORTS, given.ports, strict=True))
    if taken := [str(port) for port in chosen.values() if listens(port)]:
        raise SystemExit(f"{', '.join(taken)}: taken. Name four free ports with --ports.")
    given.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(KeyboardInterrupt):
        main(chosen, given.folder.resolve())
