"""``parley chat``: a conversation at a terminal, and line by line in a pipe."""

import os
import re
import signal
import stat
import subprocess
import sys

import pytest

from tests.cli import hostile
from tests.cli.hostile import unsafe_in
from tests.kit.processes import Running, free_port

posix = pytest.mark.skipif(os.name != "posix", reason="terminals as POSIX has them")
pytestmark = [posix, pytest.mark.slow]

AGENT = """
import asyncio
import datetime
import os
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from parley import Agent, Part, Turn

agent = Agent("Desk", description="Plans trips")


class Trip(Struct):
    travel_class: Literal["economy", "first"]
    day: datetime.date
    seats: Annotated[int, Meta(ge=1, le=9)] = 1
    window: bool = False
    stops: tuple[Annotated[str, Meta(pattern="^[A-Z]+$")], ...] = ()
    note: str | None = None


@agent.skill(replies="task")
async def plan(turn: Turn) -> str:
    match turn.text.split():
        case ["trip"]:
            trip = await turn.ask("Which **trip**?", answer=Trip)
            return f"{trip.seats} seats, {trip.travel_class}, {trip.day}, {trip.stops}"
        case ["mail"]:
            credential = await turn.require_auth("May I read your mail?", scopes="mail")
            return f"read with {credential.headers['Authorization'][-3:]}"
        case ["wait"]:
            await turn.working("Waiting for the gate")
            async with turn.stream(name="gates.md") as gates:
                await gates.write(f"# Gates\\n\\nof process {os.getpid()}\\n\\n- one\\n")
                while not Path("gate").exists():
                    await asyncio.sleep(0.02)
                await gates.write("- two\\n\\nSee [the map](https://example.com/map).\\n")
            return "All gates."
        case ["file"]:
            await turn.artifact(Part(raw=b"12", filename="../a.txt", media_type="text/plain"))
    sizes = [len(part.raw) for part in turn.message.parts if part.raw is not None]
    return f"You said {turn.text!r} with {sizes}"
"""
SERVE = ["serve", "agent.py", "--store", "sqlite:///tasks.db", "--port"]


@pytest.fixture
def served(tmp_path):
    (tmp_path / "agent.py").write_text(AGENT)
    port = free_port()
    with Running([*SERVE, str(port)], tmp_path) as server:
        server.until("Ctrl-C stops")
        yield server, port, f"http://127.0.0.1:{port}"


def test_a_conversation_at_a_terminal(served, tmp_path):
    """A2ACLI_CHAT_001"""
    from tests.kit.terminal import At

    _, _, url = served
    (tmp_path / "b.bin").write_bytes(b"12345")
    with At(["chat", url], tmp_path) as chat:
        chat.until("Desk")
        chat.until("›")
        # A typed question: each member by itself, wrong values are refused before they are sent.
        chat.type("trip")
        chat.until("1. economy")
        for wanted, typed in (
            ("travel_class (1 to 2):", "3"),
            ("! give a number from 1 to 2, or one of them", ""),
            ("travel_class (1 to 2):", "First"),
            ("day (date):", "tomorrow"),
            ("! give a date such as 2027-03-14", ""),
            ("day (date):", "2027-03-14"),
            ("seats (at least 1, at most 9) [1]:", "12"),
            ("! give at most 9", ""),
            ("seats (at least 1, at most 9) [1]:", "2"),
            ("window (y/n) [false]:", "n"),
            ("A first value of stops? y/N", "y"),
            ("stops[0]:", "oslo"),
            ("Another value of stops? y/N", ""),
            ("note (optional):", ""),
        ):
            chat.until(wanted)
            if typed or wanted.endswith((":", "N")):
                chat.type(typed)
        # What only the agent knows to be wrong is shown at its member, which alone is asked again.
        between = chat.until("! ")
        assert "That does not fit" in between
        assert "stops[0]" in chat.until("stops[0]:")
        chat.type("OSLO")
        assert "seats (at" not in chat.until("2 seats, first, 2027-03-14, ('OSLO',)")
        chat.until("● completed")
        # A credential is typed without an echo, and is in no message.
        chat.type("mail")
        chat.until("May I read your mail?")
        chat.until("Token:")
        chat.type("sesame")
        chat.until("read with ame")
        chat.until("● completed")
        assert "sesame" not in chat.text
        # Files are sent and saved, below the asked folder, and nothing is replaced.
        chat.type("/attach b.bin")
        chat.until("b.bin (5 bytes) goes with the next message")
        chat.type("file")
        chat.until("1: ../a.txt (text/plain, 2 bytes); /save 1 saves it")
        chat.until("with [5]")
        for name in ("out/a.txt", "out/a (2).txt"):
            chat.type("/save 1 out/")
            chat.until(f"saved {name} (2 bytes)")
        # Ctrl-C during an answer asks what becomes of the task.
        chat.type("wait")
        chat.until("Waiting for the gate")
        chat.press("C")
        chat.until("Cancel the task (c)")
        chat.type("l")
        chat.until("/task follows it")
        chat.type("/cancel")
        chat.until("the task is canceled")
        chat.type("wait")
        chat.until("Waiting for the gate")
        chat.press("C")
        chat.until("keep watching (Enter)?")
        chat.type("x", end="")  # its echo shows that the prompt reads
        chat.until("x")
        chat.interrupt_until("continue it with:")
        left = chat.until("--task-id ")
        assert chat.end() == 0
        task_id = re.search(r"--task-id ([0-9a-f\s]+)", chat.text)[1].replace("\r\n", "").strip()
    assert f"chat -a {url}" in left
    history = tmp_path / ".local/state/parley/chat_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "trip\n" in history.read_text()
    assert "sesame" not in history.read_text()
    with At(["chat", url, "--task-id", task_id, "--no-history"], tmp_path) as chat:
        chat.until("of process")
        (tmp_path / "gate").touch()
        chat.until("All gates.")
        chat.until("›")
        chat.press("D")
        assert chat.end() == 0


def test_a_killed_server_is_resumed_and_what_it_begins_again_is_said(served, tmp_path):
    from tests.kit.terminal import At

    server, port, url = served
    with At(["chat", url], tmp_path) as chat:
        chat.until("›")
        chat.type("wait")
        chat.until("one")
        server.end(signal.SIGKILL)
        chat.until("connection lost, resuming after event ")
        (tmp_path / "gate").touch()
        with Running([*SERVE, str(port)], tmp_path) as again:
            again.until("Ctrl-C stops")
            chat.until("resumed")
            chat.until("gates.md is replaced: the agent began it again")
            chat.until("the map (https://example.com/map)")
            chat.until("All gates.")
            chat.until("● completed")
            chat.until("›")
            chat.press("D")
            assert chat.end() == 0


def test_a_pipe_gives_a_message_in_each_line_and_plain_output(served, tmp_path):
    _, _, url = served
    typed = (
        'trip\n{"travel_class": "first", "day": "2027-03-14"}\nmail\nsesame\nfile\n/save\n/nope\n'
    )
    for agent in (url, "agent.py"):
        done = subprocess.run(
            [sys.executable, "-m", "parley.cli", "chat", agent],
            input=typed, cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)},
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        assert "\x1b" not in done.stdout
        assert "  agent    Which **trip**?\n  task     input required\n" in done.stdout
        assert "1 seats, first, 2027-03-14, ()\n  task     completed" in done.stdout
        assert "read with ame" in done.stdout
        assert "(2 bytes)\n" in done.stdout
        assert "/nope is no command" in done.stderr
        assert done.returncode == 2
    assert sorted(path.name for path in tmp_path.glob("a*.txt")) == ["a (2).txt", "a.txt"]


def test_a_hostile_agent_writes_text_alone_on_the_terminal(tmp_path):
    from tests.kit.terminal import STYLES, At

    scripted = hostile.hostile_agent()
    try:
        with At(["chat", scripted.url, "--no-history"], tmp_path, NO_COLOR="") as chat:
            chat.until("›")
            chat.type("go")
            chat.until("›")
            chat.type("/task")
            chat.until("›")
            chat.press("D")
            chat.end()
    finally:
        scripted.close()
    written = STYLES.sub(b"", chat.raw)
    assert unsafe_in(written) <= {"\r", "\x1b"}
    assert b"\x1b]" not in chat.raw
    assert b"\\x1b]0;title" in written
