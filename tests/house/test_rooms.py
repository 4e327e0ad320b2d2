"""The structure of the house: floors, names, and the cost of imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.house.sizes import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc", "v2"}
HEAVY = {"aiohttp", "fastapi", "httptools", "pydantic", "rich", "typer", "uvicorn", "watchfiles"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=ROOT)


def test_every_room_uses_only_rooms_below_it() -> None:
    checked = run("-c", "from importlinter.cli import lint_imports as f; raise SystemExit(f())")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_module_is_named_after_what_it_holds() -> None:
    paths = [path.relative_to(ROOT / "src").with_suffix("") for path in SOURCES]
    assert [p for p in paths if {part.strip("_") for part in p.parts} & SAY_NOTHING] == []


def test_one_class_name_has_one_meaning() -> None:
    """Each protocol version has its own types, also for concepts of both versions."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        room = path.relative_to(ROOT / "src" / "parley").as_posix()
        if not room.startswith(("wire/v0_3/", "wire/v1_0/")):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(room)
    assert {name: rooms for name, rooms in places.items() if len(rooms) > 1} == {}


def test_importing_parley_loads_no_server_no_client_and_no_command_line() -> None:
    loaded = run("-c", "import parley, sys; print(*{m.split('.')[0] for m in sys.modules})")
    assert loaded.returncode == 0, loaded.stderr
    assert set(loaded.stdout.split()) & HEAVY == set()


SERVED = r"""
import os, socket, sys, threading
import parley

agent = parley.Agent("Echo", description="Says it again")

@agent.skill
async def echo(text: str) -> str:
    return text

def ask(address):
    body = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":' \
        b'{"messageId":"m","role":"ROLE_USER","parts":[{"text":"hi"}]}}}'
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nA2A-Version: 1.0\r\n" \
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as line:
            line.sendall(head + body)
            answer = line.recv(65536)
    finally:
        print(*sys.modules, flush=True)
        os._exit(b'{"text":"hi"}' not in answer)

def listening(address):
    threading.Thread(target=ask, args=(address,)).start()

parley.serve(agent, port=0, store="memory:", on_listening=listening)
"""
"""A program that serves an agent, calls it once, and prints the loaded modules."""
LEFT_OUT = {
    *("aiohttp", "anyio", "cryptography", "html", "joserfc", "multiprocessing", "pydantic"),
    *("starlette.requests", "starlette.responses", "websockets"),
    *("parley.agent.remote", "parley.client", "parley.database.postgres", "parley.push.receiving"),
    *("parley.envelope.server", "parley.registry.client", "parley.registry.served.catalog"),
}
MOST_MODULES = 223


def test_a_server_of_an_agent_that_calls_nobody_loads_what_it_uses() -> None:
    loaded = run("-c", SERVED)
    assert loaded.returncode == 0, loaded.stderr
    modules = set(loaded.stdout.split())
    assert modules & LEFT_OUT == set()
    assert len([name for name in modules if name.partition(".")[0] == "parley"]) <= MOST_MODULES


def texts() -> list[Path]:
    """Return every text file that people write."""
    rooms = ("src", "tests", "examples", "benchmarks", "deploy", "docs", "skills", ".ci")
    files = [p for room in rooms for p in (ROOT / room).rglob("*") if p.is_file()]
    files += [p for p in ROOT.glob("*") if p.suffix in (".md", ".toml") or p.name == "Makefile"]
    by_machines = {"__pycache__", "regressions"}  # regressions: bytes that the fuzzers found
    files = [p for p in files if not by_machines & set(p.parts)]
    return [p for p in files if p.suffix not in (".binpb", ".db", ".gz", ".png")]


# split, so that this file does not match itself
UNFINISHED = re.compile("|".join(rf"\b{a}{b}\b" for a, b in (("TO", "DO"), ("FIX", "ME"))))
MACHINE = re.compile(r"(?<![\w.])/(?:root|work|home/\w+|Users/\w+)/|[A-Z]:\\Users\\|/tmp/\w")


def found(pattern: re.Pattern[str]) -> list[str]:
    """Return the places that match ``pattern``."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{number}: {line.strip()[:80]}"
        for path in texts()
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line) and path != Path(__file__)
    ]


def test_nothing_is_left_for_later() -> None:
    assert found(UNFINISHED) == []


def test_nothing_names_the_machine_that_it_was_written_on() -> None:
    assert found(MACHINE) == []
