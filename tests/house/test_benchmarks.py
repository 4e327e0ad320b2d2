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


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def report() -> ModuleType:
    return loaded("report")


def test_a_quick_run_measures_what_credentials_cost() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "credentials.py"), "--quick"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "API key of the store" in done.stdout


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


def test_idle_sockets_are_measured() -> None:
    script = str(BENCHMARKS / "sockets.py")
    done = subprocess.run(
        [sys.executable, script, "--sockets", "20", "--ping", "0.2"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| 20 |") == 3


def test_messages_of_the_envelope_protocol_are_measured() -> None:
    script = str(BENCHMARKS / "envelope.py")
    done = subprocess.run(
        [sys.executable, script, "--messages", "40", "--in-flight", "4"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    for row in (
        "JSON-RPC over HTTP",
        "envelope by POST",
        "envelope over one WebSocket",
        "HEARTBEAT",
    ):
        assert f"| {row}" in done.stdout


def test_tokens_are_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = loaded("tokens")
    monkeypatch.setattr(tokens, "ROUNDS", 1)
    assert tokens.main() == 0
    assert "ES256: the cache saves" in capsys.readouterr().out


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


def test_the_tables_of_a_fleet_say_what_is_beside_what(tmp_path: Path) -> None:
    def at(per_second: float) -> dict[str, float]:
        return figure(per_second, 250) | {"p50_ms": 1, "p99_ms": 9}

    machine = {
        "cpu": "a cpu",
        "cores": 2,
        "system": "Linux",
        "python": "3.11",
        "fsync_ms": 0.2,
        "date": "2026-11-20",
        "postgres": "15.1",
    }
    here = {"p50_ms": 1.0, "p99_ms": 2.0}
    results = {
        "fleet": {
            "machine": machine,
            "throughput": {
                "tasks": {
                    "Parley, PostgreSQL alone": {"1": at(2_000), "2": at(3_000)},
                    "official SDK's cluster": {"1": at(100), "2": at(150)},
                }
            },
            "durability": {"memory": at(5_000)},
            "across": {
                "Parley, with Redis": {"here": here, "elsewhere": {"p50_ms": 2.5, "p99_ms": 4.5}}
            },
            "loss": {
                "lease": 3.0,
                "Parley, with Redis": {"median_s": 2.75, "longest_s": 3.25, "times": 3},
                "official SDK's cluster": {"median_s": None, "longest_s": None, "times": 1},
            },
            "missing": {"something": "no reason"},
        },
        "stored": {
            "SQLite": {
                "ms": {"1000": {"get": 0.5}, "100000": {"get": 0.75}},
                "slope": {"get": 0.088},
                "bytes_per_task": 2048,
            },
            "missing": {},
        },
        "memory": {
            "idle 1000": {"Parley": 10_240, "official SDK": 51_200},
            "idle 5000": {"Parley": 10_240},
            "missing": {},
        },
    }
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fleet figures -->\nold\n<!-- /fleet figures -->\nafter\n")
    loaded("fleet_report").write(results, page)
    lines = page.read_text("utf-8").splitlines()
    for line in (
        "| Parley, PostgreSQL alone | 2,000 | 3,000 | 250 µs | 20x |",
        "| official SDK's cluster | 100 | 150 | 250 µs |  |",
        "| memory | 5,000 | 250 µs | 1.0 ms |",
        "| Parley, with Redis | 1.0 ms | 2.5 ms | 2.0 ms | 4.5 ms |",
        "| Parley, with Redis | 2.8 s | 3.2 s | 3 |",
        "| official SDK's cluster | never | never | 1 |",
        "| get, SQLite | 0.50 ms | 0.75 ms | 0.09 |",
        "| idle subscriptions, official SDK | 50.0 KiB |  |",
        "Not measured: something: no reason",
    ):
        assert line in lines, line
    assert "old" not in lines
    assert lines[-1] == "after"
