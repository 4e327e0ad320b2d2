"""What the figures were measured on, and what does not need a server to be measured."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any


def describe() -> dict[str, Any]:
    """Return what a reader of the figures wants to know about the machine."""
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "uvicorn": importlib.metadata.version("uvicorn"),
        "fsync_ms": round(fsync_milliseconds(), 3),
        "busy": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0,
        "date": time.strftime("%Y-%m-%d"),
    }


def services() -> dict[str, str]:
    """Return the versions of the services of a fleet that are here."""
    from services import Missing, binaries

    found = {}
    with contextlib.suppress(Missing):
        found["postgres"] = version_of([str(binaries() / "postgres"), "--version"])
    if program := shutil.which("redis-server") or shutil.which("valkey-server"):
        found["redis"] = version_of([program, "--version"])
    return found


def version_of(command: list[str]) -> str:
    """Return the first number with a dot that a program says of itself."""
    said = subprocess.run(command, capture_output=True, text=True).stdout
    number = re.search(r"\d+\.[\d.]+", said)
    return number[0] if number else "?"


def cpu() -> str:
    """Return the name of the processor, as far as the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def fsync_milliseconds() -> float:
    """Return how long it takes to make 4 KiB durable where the databases of the run are."""
    place = Path(__file__).parents[1] / ".bench"
    place.mkdir(exist_ok=True)
    took = []
    with tempfile.NamedTemporaryFile(dir=place) as file:
        for _ in range(100):
            start = time.perf_counter()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - start)
    return median(took) * 1e3


def import_seconds(module: str, times: int = 7) -> float:
    """Return how much longer a Python lives that imports ``module`` than one that does not."""

    def alive(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    alive(f"import {module}")
    return median(alive(f"import {module}") for _ in range(times)) - median(
        alive("pass") for _ in range(times)
    )
