"""The log of ``parley serve``: a line for each turn on a terminal, JSON objects elsewhere."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import parley
from parley import Agent, Turn
from parley.cli.output.streams import JsonLines, TextLines
from parley.engine.turn import turn_log
from parley.model.errors import InternalError
from tests.cli.hostile import unsafe_in
from tests.kit.processes import Running

posix = pytest.mark.skipif(os.name != "posix", reason="terminals as POSIX has them")

AGENT = '''
import logging

from parley import Agent, Turn

logging.getLogger("shop").info("loaded before the banner")

other = Agent("Other")


@other.skill
async def answer(turn: Turn) -> str:
    """Answers."""
    return "42"


agent = Agent("Shop", uses=[other])


@agent.skill(default=True)
async def echo(turn: Turn) -> str:
    """Says it again."""
    return turn.text


@agent.skill
async def order(turn: Turn) -> str:
    """Asks."""
    return (await turn.ask("Which?")).text


@agent.skill
async def naps(turn: Turn) -> str:
    """Sleeps."""
    await turn.sleep(1.2)
    return "awake"


@agent.skill
async def calls(turn: Turn) -> str:
    """Calls."""
    async with turn.connect(other) as remote:
        return (await remote.send("hi")).text


@agent.skill
async def breaks(turn: Turn) -> None:
    """Fails."""
    await turn.working("soon")
    raise RuntimeError("boom")
'''
WORDS = ["serve", "shop.py:agent", "--port", "0", "--store", "memory:"]
EVENTS = {
    ("echo", "replied"), ("order", "asked"), ("naps", "slept"), ("naps", "completed"),
    ("calls", "called"), ("answer", "replied"), ("calls", "completed"), ("breaks", "failed"),
}  # fmt: skip
LINE = re.compile(
    r"\d\d:\d\d:\d\d (?P<skill>\w+) +(?P<task>[0-9a-f]{16}|-) +anonymous +"
    r"(?P<event>[a-z]+)(?: agent:other)? *(?:[\d.]+ m?s)?"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(AGENT)
    return tmp_path


async def talk(url: str) -> str:
    """Send a message to each skill. Return the reference of the failure."""
    async with parley.connect(url) as agent:
        skills = ("echo", "order", "naps", "calls", "breaks")
        *_, failed = await asyncio.gather(*[agent.send("x", skill=skill) for skill in skills])
    assert failed.id
    assert failed.status.message is not None
    return failed.status.message.text.rpartition(" ")[2]


@posix
@pytest.mark.slow
def test_a_terminal_shows_a_line_for_what_happens_to_each_turn(folder: Path) -> None:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
    server = subprocess.Popen(
        [sys.executable, "-m", "parley.cli", *WORDS],
        cwd=folder,
        env=environment | {"TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    said = ""
    try:
        with open(ours, encoding="utf-8", newline="", closefd=False) as screen:
            while "Ctrl-C stops the server" not in said:
                said += screen.readline()
            banner = said.replace("\r", "")
            found = re.match(r"Shop\n  address  (\S+)\n  page     \1/\n  card     \1/", banner)
            assert found, banner
            reference = asyncio.run(talk(found[1]))
            said = ""
            while len(re.findall("completed", said)) < 2:
                said += screen.readline()
            assert re.match(r"\d\d:\d\d:\d\d INFO    shop: loaded before the banner\r\n", said)
            said = said.partition("\n")[2]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
        os.close(ours)
    assert "\x1b[31mfailed" in said
    lines = re.sub(r"\x1b\[\d*m", "", said).replace("\r", "").splitlines()
    turns = [LINE.fullmatch(line) for line in lines if re.match(r"\d\d:", line)]
    assert {(each["skill"], each["event"]) for each in turns if each} == EVENTS
    assert None not in turns, lines
    assert max(len(line) for line in lines if re.match(r"\d\d:", line)) <= 80
    at = next(number for number, line in enumerate(lines) if "failed" in line)
    assert re.fullmatch(rf"  reference {reference} of task [0-9a-f]{{32}}", lines[at + 1])
    assert re.fullmatch(r"  context [0-9a-f]{32}, skill breaks", lines[at + 2])
    assert lines[at + 3] == "  Traceback (most recent call last):"
    assert "retention" not in said.lower()


@pytest.mark.slow
def test_a_pipe_gets_json_lines_and_the_banner_stays_text(folder: Path) -> None:
    with Running(WORDS, folder) as server:
        banner = server.until("Ctrl-C stops the server")
        found = re.match(r"Shop\n  address  (\S+)\n", banner)
        assert found
        reference = asyncio.run(talk(found[1]))
        server.until('"event":"completed"', times=2)
        assert server.end(signal.SIGTERM) == 0
    assert server.stdout == banner
    records = [json.loads(line) for line in server.stderr.splitlines()]
    turns = [record for record in records if record["logger"] == "parley.turns"]
    assert {(turn["skill"], turn["event"]) for turn in turns} == EVENTS
    [failure] = [turn for turn in turns if turn["event"] == "failed"]
    assert failure["reference"] == reference
    assert failure["task_id"].startswith(reference.partition("-")[0])
    assert {"context_id", "caller", "attempt", "agent"} <= failure.keys()
    assert failure["duration"] > 0
    assert "RuntimeError: boom" in failure["exception"]
    assert failure["level"] == "ERROR"
    for name in (failure["task_id"], failure["context_id"], "'breaks'", reference):
        assert name in failure["message"]


@pytest.mark.parametrize(
    "caller", ["\x1b[2J\x9b2J\u202e", "a\n12:00:00 forged", "漢字" * 20, "x" * 99]
)
def test_a_caller_can_neither_forge_nor_break_a_line(caller: str) -> None:
    fields = {
        "event": "completed", "caller": caller, "task_id": "0" * 32, "skill": "é" * 30,
        "duration": 3700.0,
    }  # fmt: skip
    record = logging.makeLogRecord({"name": "parley.turns", "msg": caller, **fields})
    line = TextLines(colors=False).format(record)
    assert unsafe_in(line.encode()) == set()
    assert len(line) + sum("\u2e80" < each < "\ua000" for each in line) <= 80
    assert line.endswith("  1h 1m")
    written = JsonLines().format(record)
    assert unsafe_in(written.encode()) == set()
    assert json.loads(written)["caller"] == caller


def test_many_turns_are_counted_and_every_failure_keeps_its_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = Agent("Crowd")

    @agent.skill(replies="message")
    async def works(turn: Turn) -> str:
        if turn.text == "fail":
            raise ValueError("no")
        return "done"

    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines())
    second = turn_log._Second()
    monkeypatch.setattr(turn_log, "_second", second)
    monkeypatch.setattr(turn_log.log, "propagate", False)
    monkeypatch.setattr(turn_log.log, "handlers", [handler])
    turn_log.log.setLevel(logging.INFO)
    told = []

    async def crowd() -> None:
        second.loop = asyncio.get_running_loop()
        second.ends_at = second.loop.time() + 1000  # one second, however long the test takes
        async with parley.connect(agent) as remote:
            for _ in range(3 * turn_log.MOST_RECORDS):
                await remote.send("work")
                with pytest.raises(InternalError) as failure:
                    await remote.send("fail")
                told.append(str(failure.value).split()[-1])

    try:
        asyncio.run(crowd())
        second.report()
    finally:
        turn_log.log.setLevel(logging.NOTSET)
    records = [json.loads(line) for line in written.getvalue().splitlines()]
    most = turn_log.MOST_RECORDS
    assert sum(record.get("event") == "replied" for record in records) == most
    failures = [record for record in records if record.get("event") == "failed"]
    assert [record["reference"] for record in failures] == told
    assert [("exception" in record) for record in failures] == [True] * most + [False] * 2 * most
    assert "(ValueError; many failures" in failures[-1]["message"]
    assert records[-1]["message"] == f"and {2 * most} more: {2 * most} replied"
    assert records[-1]["left_out"] == {"replied": 2 * most}
