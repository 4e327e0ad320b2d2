"""The travel planner with its frameworks, each in its environment, started by one command."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from threading import Event, Thread
from typing import Any

import pytest

import parley
from parley import RemoteAgent, Task, TaskState
from parley.llm import ModelRequest, ScriptedReply
from parley.testing.model_endpoint import ModelEndpoint
from tests.integrations.frameworks import FRAMEWORKS, asked
from tests.kit.processes import free_port
from tests.kit.waiting import SECONDS
from tests.peers.environments import python_of

DESKS = {
    "flights": "openai_agents", "hotels": "pydantic_ai", "cars": "strands", "exchange": "langgraph",
}  # fmt: skip
PLAIN = ("planner", "guide")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.peer,
    pytest.mark.skipif(
        not set(DESKS.values()) <= set(asked()), reason="not all of its frameworks are asked"
    ),
]
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "travel_planner"
NAMES = {"Flights": "flights", "Hotels": "hotels", "Cars": "cars", "Currency agent": "exchange",
         "Trip planner": "planner", "Local guide": "guide", "Travel planner": "travel"}  # fmt: skip


class Planner:
    """The seven agents, as the command starts them, and the model behind the frameworks.

    ``deadly`` has the moments at which an agent is killed, once each: its requests to the model.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.deadly: list[str] = []
        self.pids: dict[str, int] = {}
        self.lines: list[str] = []
        self._all_serve = Event()
        self.model = ModelEndpoint(self._answer)
        ports = {name: f"http://127.0.0.1:{free_port()}" for name in (*DESKS, *PLAIN, "travel")}
        self.url = ports["travel"]
        pythons = {
            f"{name.upper()}_PYTHON": str(
                os.environ.get(peer.variable) or python_of(peer.name, peer.packages)
            )
            for name, framework in DESKS.items()
            for peer in (FRAMEWORKS[framework].peer,)
        }
        plain = folder / "python"
        plain.write_text(f'#!/bin/sh\nunset PARLEY_MODEL_URL\nexec "{sys.executable}" "$@"\n')
        plain.chmod(0o700)  # the other agents follow their own rules, without a model
        self._env = {
            **os.environ,
            **pythons,
            **{f"{name.upper()}_PYTHON": str(plain) for name in PLAIN},
            **{name.upper(): url for name, url in ports.items()},
            "TRAVEL_HOME": str(folder),
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONWARNINGS": "ignore",
            "PARLEY_MODEL_URL": self.model.url,
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        words = [sys.executable, str(FOLDER)]
        process = Popen(words, env=self._env, stdout=PIPE, stderr=STDOUT, text=True)
        reader = Thread(target=self._read, args=(process.stdout,), daemon=True)
        with self.model:
            reader.start()
            try:
                assert self._all_serve.wait(5 * SECONDS), "".join(self.lines)
                yield
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)
                reader.join(10)
                process.stdout.close()  # type: ignore[union-attr]

    def _read(self, output: Any) -> None:
        for line in output:
            self.lines.append(line)
            if found := re.match(r"([\w ]+): http\S+ \(process (\d+)\)", line):
                self.pids[NAMES[found[1]]] = int(found[2])
            if len(self.pids) == len(NAMES):
                self._all_serve.set()

    def _answer(self, request: ModelRequest) -> ScriptedReply | str:
        reply = _rules(request)
        for moment in moments(request, reply):
            if moment in self.deadly:
                self.deadly.remove(moment)
                os.kill(self.pids[moment.split()[0]], signal.SIGKILL)
        return reply

    def log(self) -> str:
        return "".join(self.lines)[-3000:]

    def acts(self) -> list[tuple[str, str]]:
        """Return the actions of the booking office: acts and codes."""
        with closing(sqlite3.connect(self.folder / "bookings.db")) as office:
            if not office.execute("SELECT 1 FROM sqlite_master WHERE name = 'journal'").fetchone():
                return []  # nothing was booked yet
            return office.execute("SELECT act, code FROM journal ORDER BY id").fetchall()


def moments(request: ModelRequest, reply: ScriptedReply | str) -> Iterator[str]:
    """Yield the names of a moment: the agent, and its next or last action."""
    names = {str(each["function"]["name"]) for each in request.tools}
    who = next(
        (name for name, tool in (
            ("flights", "book_flight"), ("hotels", "book_hotel"), ("cars", "book_car"),
            ("exchange", "Wish"),
        ) if tool in names),
        "",
    )  # fmt: skip
    if isinstance(reply, ScriptedReply) and who:
        yield from (f"{who} before {name}" for name, _ in reply.tool_calls)
    called = [
        call["function"]["name"]
        for message in request.messages
        for call in message.get("tool_calls") or ()
    ]
    if request.tool_results and who:
        yield f"{who} after {called[-1]}"


def _rules(request: ModelRequest) -> ScriptedReply | str:
    """Reply by the example's own rules, which know the caller."""
    import models

    names = {str(each["function"]["name"]) for each in request.tools}
    if "Wish" in names:
        amount, source, target = re.findall(r"[\d.]+|[A-Z]{3}", request.said)
        wish = {"amount": float(amount), "source": source, "target": target}
        return ScriptedReply(tool_calls=[("Wish", wish)])
    if not request.messages[0].get("content", "").startswith("Call one tool"):
        return f"{request.said}."
    return models.rules(request)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planner]:
    before = list(sys.path)
    sys.path.insert(0, str(FOLDER))
    planner = Planner(tmp_path_factory.mktemp("travel"))
    try:
        with planner.running():
            yield planner
    finally:
        sys.path[:] = before
        for path in FOLDER.glob("*.py"):
            sys.modules.pop(path.stem, None)


@pytest.fixture
async def remote(command: Planner) -> AsyncIterator[RemoteAgent]:
    async with parley.connect(command.url, retries=60) as remote:
        yield remote


def said(task: Task) -> str:
    message = task.status.message
    return message.text if message is not None else task.text


async def test_a_trip_that_changes_while_every_desk_dies_is_booked_once(
    command: Planner, remote: RemoteAgent
) -> None:
    """Each desk is killed when its tool has booked, before its model reports the booking."""
    command.deadly = [
        "flights after book_flight", "hotels after book_hotel", "cars after book_car",
        "exchange before Wish",
    ]  # fmt: skip
    first = command.pids.copy()
    asked = await remote.send("Five days in London in July, 4,000 USD")
    assert said(asked).startswith("Please tell me from which city you leave"), command.log()
    asked = await remote.send("From Berlin on 2027-07-10, 2 people", task=asked)
    assert said(asked) == "Which gearbox shall the car have, manual or automatic?", command.log()
    asked = await remote.send("automatic", task=asked)
    assert "Total: 3,243.08 USD of 4,000.00 USD." in said(asked)
    assert command.deadly == []
    again = {name for name, pid in command.pids.items() if pid != first[name]}
    assert again == set(DESKS)
    asked = await remote.send("Make it Rome instead", task=asked)
    assert said(asked).startswith("Cancelled:\n- Convertible in London, automatic")
    done = await remote.send("yes", task=asked)
    assert done.state is TaskState.COMPLETED
    acts = command.acts()
    assert Counter(acts) == dict.fromkeys(acts, 1)
    kinds = [f"{act} {code.split('-')[0].lower()}" for act, code in acts]
    assert kinds[3:6] == ["cancel car", "cancel hotel", "cancel flight"]
    assert sorted(kinds[:3]) == sorted(kinds[6:]) == ["book car", "book flight", "book hotel"]


async def test_what_depends_on_a_flight_is_booked_after_it(
    command: Planner, remote: RemoteAgent
) -> None:
    before = len(command.acts())
    asked = await remote.send(
        "Fly from Berlin to Helsinki on 2027-02-10, 5 days, 2 people, then a hotel and a tour"
    )
    assert "Hostel Helsinki" in said(asked), command.log()
    asked = await remote.send("Add a spa to the hotel", task=asked)
    assert "Spa of the hotel in Helsinki, added to HOTEL-" in said(asked)
    asked = await remote.send("Cancel everything", task=asked)
    assert said(asked).endswith("Nothing is booked.") or asked.text.endswith("Nothing is booked.")
    kinds = [f"{act} {code.split('-')[0].lower()}" for act, code in command.acts()[before:]]
    assert kinds[0] == "book flight"
    assert sorted(kinds[1:3]) == ["book hotel", "book tour"]
    assert kinds[3:] == ["book spa", "cancel spa", "cancel tour", "cancel hotel", "cancel flight"]
