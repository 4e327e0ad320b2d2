"""The benchmarks run, and their figures find their way into the documentation."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.house.file_sizes import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def report() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report", BENCHMARKS / "report.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_quick_run_measures_requests_and_streams() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), "--quick", "--without-official"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "not measured" not in done.stdout
    for case in ("direct replies", "tasks in SQLite", "one stream in memory", "idle", "import"):
        assert case in done.stdout


def figure(per_second: float, cpu_us: float) -> dict[str, float]:
    return {"per_second": per_second, "cpu_us": cpu_us}


def test_the_table_says_what_is_beside_what(report: ModuleType, tmp_path: Path) -> None:
    results = {
        "figures": {
            "direct replies": {
                "bare ASGI": figure(40_000, 20),
                "Parley": figure(20_000, 40),
                "official SDK": figure(800, 1_000),
            }
        },
        "growth": {"a stream of 1,000 in memory": {"Parley": figure(1, 9.04)}},
        "idle": {"idle": {"Parley": {"bytes": 20_480}}},
        "import_seconds": 0.05,
        "missing": {"tasks, official SDK": "no network"},
        "machine": {
            "cpu": "a cpu",
            "system": "Linux",
            "python": "3.11",
            "uvicorn": "0.54",
            "sqlite": "3.51",
            "fsync_ms": 0.2,
            "date": "2026-11-20",
        },
    }
    text = report.text(results)
    assert ["20,000", "requests/s", "40.0", "µs", "0.50", "25x"] in [
        line.split()[1:] for line in text.splitlines()
    ]
    assert "not measured: tasks, official SDK: no network" in text

    page = tmp_path / "page.md"
    page.write_text("before\n<!-- figures -->\nold\n<!-- /figures -->\nafter\n")
    report.write(results, page)
    written = page.read_text("utf-8")
    assert "old" not in written
    assert "| direct replies | Parley | 20,000 requests/s | 40.0 µs | 0.50 | 25x |" in written
    assert "20.0 KiB" in written
    assert "9.0 (1,000) µs" in written
    assert written.startswith("before\n<!-- figures -->\n")
    assert written.endswith("<!-- /figures -->\nafter\n")
