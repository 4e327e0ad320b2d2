"""The benchmarks run, and the documentation gets their figures."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.house.sizes import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def imports_of_scripts() -> Iterator[None]:
    """Let benchmarks import each other as scripts do; other tests cannot import them."""
    before = set(sys.modules)
    sys.path.append(str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))
    for name in sys.modules.keys() - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(BENCHMARKS):
            del sys.modules[name]


def loaded(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture
def tables() -> ModuleType:
    return loaded("tables")


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
    cases, rows = loaded("cases"), loaded("rows")
    for row in cases.ROWS:
        if row.name in ("task in memory", "first event of a stream"):
            found = rows.measure(row, (cases.PARLEY,), 1, 0.05, 20)
            assert (found.missing, found.wrong) == ({}, {})
            assert found.figures[cases.PARLEY][row.figure] > 0


def test_a_wrong_answer_is_found_and_not_measured() -> None:
    cases, rows = loaded("cases"), loaded("rows")
    row = cases.Row("tasks", "reply", cases.MEMORY, cases.requests("task"), (cases.TYPED,))
    found = rows.measure(row, (cases.TYPED,), 1, 0.05)
    assert found.figures == {}
    assert "ROLE_AGENT" in found.wrong[cases.TYPED]


def test_a_peer_that_is_not_here_is_named() -> None:
    cases, rows, environments = loaded("cases"), loaded("rows"), loaded("environments")

    def no_cargo() -> list[str]:
        raise rows.Unavailable("there is no cargo")

    commands = environments.COMMANDS | {cases.RUST: no_cargo}
    found = rows.measure(cases.ROWS[0], (cases.RUST,), 1, 0.05, commands=commands)
    assert found.missing == {cases.RUST: "there is no cargo"}


def event(**result: object) -> bytes:
    return b"data: " + json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


def streamed(*events: bytes) -> bytes:
    """A response as servers send it, with one event in each chunk."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked"
    body = b"".join(b"%x\r\n%b\n\n\r\n" % (len(each) + 2, each) for each in events)
    return head + b"\r\n\r\n" + body + b"0\r\n\r\n"


def chunk(number: int) -> bytes:
    artifact = {"artifactId": "report", "parts": [{"text": f"chunk {number} "}]}
    update = {"taskId": "t", "contextId": "c", "artifact": artifact, "append": number > 0}
    return event(artifactUpdate=update)


BEGUN = event(task={"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}})
ENDED = event(statusUpdate={"taskId": "t", "status": {"state": "TASK_STATE_COMPLETED"}})


def test_every_event_of_a_stream_is_checked() -> None:
    answers = loaded("answers")
    answers.check_stream(streamed(BEGUN, chunk(0), chunk(1), ENDED), 2)
    for wrong in (
        (BEGUN, chunk(1), chunk(0), ENDED),
        (BEGUN, chunk(0), ENDED),
        (BEGUN, chunk(0), chunk(1)),
        (BEGUN, chunk(0), chunk(1), chunk(2), ENDED),
        (BEGUN, chunk(0), chunk(1), ENDED, chunk(2)),
        (BEGUN, BEGUN, chunk(0), chunk(1), ENDED),
        (BEGUN, chunk(0), b"data: {}", chunk(1), ENDED),
    ):
        with pytest.raises(answers.Unexpected):
            answers.check_stream(streamed(*wrong), 2)


@pytest.mark.parametrize(
    ("number", "text", "id"),
    [(7, "hello 8", "m"), (8, "hello 7", "m"), (7, "hello 7", "")],
    ids=["another text", "another request", "no id"],
)
def test_every_reply_is_checked(number: int, text: str, id: str) -> None:
    answers = loaded("answers")

    def reply(number: int, text: str, id: str) -> tuple[int, bytes]:
        said = {"messageId": id, "role": "ROLE_AGENT", "parts": [{"text": text}]}
        return 7, json.dumps({"jsonrpc": "2.0", "id": number, "result": {"message": said}}).encode()

    answers.check_replies([reply(7, "hello 7", "m")])
    with pytest.raises(answers.Unexpected):
        answers.check_replies([reply(number, text, id)])


def test_a_ratio_that_left_its_band_is_shown() -> None:
    quick = loaded("quick")
    expected = {
        name: quick.expectation(name, 1.0) for name in ("direct reply", "task in memory", "gone")
    }
    lines, good = quick.compared({"direct reply": 1.1, "task in memory": 1.2}, expected)
    assert good
    assert [line.split()[-2:] for line in lines[1:]] == [["as", "ever"]] * 2
    for ratio, verdict in ((1.5, "SLOWER"), (0.5, "faster")):
        lines, good = quick.compared({"direct reply": ratio}, expected)
        assert not good
        assert lines[1].split()[-2:] == [f"{ratio:.2f}", verdict]
    assert not quick.compared({"new": 1.0}, expected)[1]


def test_what_was_measured_before_a_run_broke_off_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = loaded("run")
    monkeypatch.setattr(run, "ROOT", tmp_path)
    assert run.Kept("a", again=False).get("row", lambda: 1) == 1
    assert run.Kept("a", again=False).get("row", lambda: 2) == 1
    assert run.Kept("b", again=False).get("row", lambda: 3) == 3
    kept = run.Kept("b", again=True)
    assert kept.get("row", lambda: 4) == 4
    kept.done()
    assert run.Kept("b", again=False).get("row", lambda: 5) == 5


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


def test_the_tables_say_what_is_beside_what(tables: ModuleType, tmp_path: Path) -> None:
    results = {
        "rows": {
            "direct reply": {
                "bare ASGI": figure(40_000, 20),
                "typed ASGI": figure(30_000, 30),
                "Parley": figure(20_000, 45),
                "a2a-rs": figure(25_000, 36),
                "a2a-python": figure(800, 1_000),
            },
            "idle stream with its task": {"Parley": {"bytes": 20_480}},
        },
        "growth": {"1,000 chunks in memory": figure(1, 9.04)},
        "calls": [{"what": "client", "parley_us": 120.0, "typed_us": 100.0, "ratio": 1.2}],
        "choices": {
            "figures": {"TLS": {"beside": "a direct reply", "cpu_us": 60.0, "ratio": 1.3}},
            "missing": {"PostgreSQL": "it is not installed"},
        },
        "import_seconds": 0.05,
        "missing": {"direct reply, a2a-go": "there is no Go"},
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
    text = tables.text(results)
    assert "- Not measured: direct reply, a2a-go: there is no Go" in text
    assert "- Not measured: PostgreSQL: it is not installed" in text

    page = tmp_path / "page.md"
    places = "".join(
        f"<!-- {name} -->\nold\n<!-- /{name} -->\n"
        for name in ("figures", "calls", "better", "choices")
    )
    page.write_text(f"before\n{places}after\n")
    tables.write(results, page)
    tables.write(results, page)
    written = page.read_text("utf-8")
    assert "old" not in written
    for line in (
        "| direct reply | 40,000 (20.0) | 30,000 (30.0) | 20,000 (45.0) | 25,000 (36.0) "
        "| 800 (1,000) | 1.50 | a2a-rs: 0.80 |",
        "| idle stream with its task |  |  | 20.0 KiB |  |  |  |  |",
        "- CPU per chunk by the length of the stream, in memory: 9.0 (1,000) µs.",
        "| client | 120.0 µs | 100.0 µs | 1.20 |",
        "- direct reply: a2a-rs takes 0.80 of what Parley takes.",
        "| TLS | a direct reply | 60.0 µs | 1.30 |",
    ):
        assert written.count(line) == 1, line
    assert written.startswith("before\n<!-- figures -->\n")
    assert written.endswith("<!-- /choices -->\nafter\n")


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


def test_the_comparison_quotes_figures_that_were_measured() -> None:
    docs = ROOT / "docs"
    written = [docs / "internals" / name for name in ("performance.md", "benchmarks.md")]
    measured = " ".join(page.read_text("utf-8") for page in written)
    speed = (docs / "guides" / "comparison.md").read_text("utf-8").split("\n## ")[2]
    assert speed.startswith("Speed")
    figures = re.findall(r"\d+,\d{3}|\b\d{2,3}(?= \|)", speed)
    assert len(figures) > 15
    assert [each for each in figures if not re.search(rf"\b{each}\b", measured)] == []
