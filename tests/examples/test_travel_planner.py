"""The travel planner: its three conversations, and kills of its agents at every step."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import parley
from parley import RemoteAgent, Task, TaskState
from tests.examples.conftest import EXAMPLES
from tests.kit.processes import free_port
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio

FOLDER = EXAMPLES / "travel_planner"
FLIGHT = "Flight Berlin to London and back, business class"
HOTEL = "Hotel Central London"
CAR = "Convertible in London, automatic"
LONDON = "Five days in London from Berlin on 2027-07-10, 2 people, 4,000 USD"
DESKS = {
    "planner": "trip_planner", "flights": "flights", "hotels": "hotels", "cars": "cars",
    "exchange": "exchange", "guide": "guide",
}  # fmt: skip


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Make fresh imports of the example's modules possible, with their own booking office."""
    monkeypatch.syspath_prepend(FOLDER)
    names = [path.stem for path in FOLDER.glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("PARLEY_MODEL_URL", "OPENAI_BASE_URL", "PARLEY_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAVEL_OFFICE", str(tmp_path / "bookings.db"))
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in names:
        sys.modules.pop(name, None)


@asynccontextmanager
async def desks() -> AsyncIterator[dict[str, str]]:
    """Serve the specialists, and yield their addresses."""
    served = {f"/{name}": __import__(module).agent for name, module in DESKS.items()}
    async with under_uvicorn(parley.asgi(served, store="memory:")) as url:
        addresses = {name: f"{url}/{name}" for name in DESKS}
        __import__("desks").ADDRESSES.update(addresses)
        yield addresses


@pytest.fixture
async def planner(modules: None) -> AsyncIterator[RemoteAgent]:
    async with desks():
        app = parley.asgi(
            __import__("orchestrator").agent, store="memory:", allow_private_agents=True
        )
        async with under_uvicorn(app) as url, parley.connect(url) as remote:
            yield remote


def journal(folder: Path) -> list[tuple[str, str]]:
    """Return the booking office's journal: acts and titles of bookings."""
    with closing(sqlite3.connect(folder / "bookings.db")) as office:
        return office.execute("SELECT act, title FROM journal ORDER BY id").fetchall()


def codes(folder: Path) -> list[tuple[str, str]]:
    """Return the booking office's journal: acts and codes of bookings."""
    with closing(sqlite3.connect(folder / "bookings.db")) as office:
        return office.execute("SELECT act, code FROM journal ORDER BY id").fetchall()


def still_booked(folder: Path) -> set[str]:
    """Return the codes of bookings without a cancellation, and check that no act is repeated."""
    acts = Counter(codes(folder))
    assert set(acts.values()) <= {1}
    return {code for act, code in acts if act == "book" and ("cancel", code) not in acts}


def data_of(task: Task) -> Any:
    (data,) = [part.data for each in task.artifacts for part in each.parts if part.data]
    return data


def lines_of(task: Task) -> list[str]:
    """Return the lines of a task's text."""
    message = task.status.message
    return (message.text if message and not task.artifacts else task.text).split("\n")


async def test_five_days_in_london_are_booked_within_the_budget(
    planner: RemoteAgent, tmp_path: Path
) -> None:
    asked = await planner.send("Five days in London in July, 4,000 USD")
    assert asked.state is TaskState.INPUT_REQUIRED
    assert lines_of(asked) == [
        "Please tell me from which city you leave, on which day (2027-07-10), and how many you are."
    ]
    asked = await planner.send("From Berlin on 2027-07-10, 2 people", task=asked)
    assert lines_of(asked) == ["Which gearbox shall the car have, manual or automatic?"]
    assert {title for _, title in journal(tmp_path)} == {FLIGHT, HOTEL}  # the car waits alone
    asked = await planner.send("automatic, please", task=asked)
    assert lines_of(asked) == [
        "Booked:",
        f"- {FLIGHT} (FLIGHT-1): 1,380.00 EUR",
        f"- {HOTEL} (HOTEL-2): 728.00 GBP",
        f"- {CAR} (CAR-3): 617.50 GBP",
        "Total: 3,243.08 USD of 4,000.00 USD.",
        "In London I suggest the Tower, a walk along the South Bank, and a play at the Globe.",
        "Is that right? Say yes, or what to change.",
    ] or {"FLIGHT-2", "HOTEL-1"} < set(asked.status.message.text.split())
    done = await planner.send("yes", task=asked)
    assert done.state is TaskState.COMPLETED
    assert [each["kind"] for each in data_of(done)["booked"]] == ["flight", "hotel", "car"]
    assert Counter(journal(tmp_path)) == dict.fromkeys(
        [("book", FLIGHT), ("book", HOTEL), ("book", CAR)], 1
    )


async def test_what_costs_too_much_is_not_booked_unless_the_traveller_wants_it(
    planner: RemoteAgent, tmp_path: Path
) -> None:
    said = "Five days in London from Berlin on 2027-07-10, 2 people, 900 USD, manual gearbox"
    asked = await planner.send(said)
    assert lines_of(asked) == [
        "The cheapest that I find costs 917.14 USD, 17.14 more than you have. "
        "Shall I book it nevertheless, or what shall I change?"
    ]
    assert journal(tmp_path) == []
    asked = await planner.send("Then no car", task=asked)
    assert any(line.endswith(" of 900.00 USD.") for line in lines_of(asked))
    assert [act for act, _ in journal(tmp_path)] == ["book", "book"]


async def test_helsinki_step_by_step_each_in_a_task_of_one_conversation(
    planner: RemoteAgent, tmp_path: Path
) -> None:
    """The hotel and the tour wait for the flight, which arrives a day later; the spa is added."""
    asked = await planner.send("A flight from Berlin to Helsinki on 2027-02-10, 5 days, 2 people")
    done = await planner.send("yes", task=asked)
    assert done.state is TaskState.COMPLETED
    context = done.context_id
    asked = await planner.send("Now a hotel and a snowmobile tour", context_id=context)
    assert {
        "- Hostel Helsinki (HOTEL-2): 198.00 EUR",
        "- Hostel Helsinki (HOTEL-3): 198.00 EUR",
    } & (set(lines_of(asked)))  # three nights, not four
    refused = await planner.send("Add a spa", context_id=context)
    assert refused.state is TaskState.REJECTED
    assert "waits for you" in refused.text
    asked = await planner.send("Add a spa to the hotel", task=asked)
    (spa,) = [each for each in lines_of(asked) if "Spa" in each]
    assert spa.startswith("- Spa of the hotel in Helsinki, added to HOTEL-")
    done = await planner.send("yes", task=asked)
    acts = journal(tmp_path)
    assert [act for act, _ in acts] == ["book"] * 4
    assert acts[0][1].startswith("Flight Berlin to Helsinki and back, one stop, overnight")
    assert {acts[1][1], acts[2][1]} == {"Hostel Helsinki", "Snowmobile tour near Helsinki"}
    assert {each["starts"] for each in data_of(done)["booked"]} == {"2027-02-11"}


async def test_a_goal_that_changes_half_way_cancels_what_is_booked_in_reverse_order(
    planner: RemoteAgent, tmp_path: Path
) -> None:
    asked = await planner.send(LONDON)
    assert "gearbox" in lines_of(asked)[0]  # flight and hotel are booked, the car is not
    asked = await planner.send("Make it Rome instead, with a manual car", task=asked)
    said = lines_of(asked)
    assert said[0] == "Cancelled:"
    assert [line.split(" (")[0] for line in said[1:3]] == [f"- {HOTEL}", f"- {FLIGHT}"]
    assert said[3] == "Booked:"
    acts = journal(tmp_path)
    assert acts[2:4] == [("cancel", HOTEL), ("cancel", FLIGHT)]
    rome = {"Flight Berlin to Rome and back, business class", "Grand Hotel Rome"}
    assert {title for _, title in acts[4:]} > rome
    assert len(acts) == 7
    done = await planner.send("yes", task=asked)
    six = await planner.send("Make it six days", context_id=done.context_id)
    assert [act for act, _ in journal(tmp_path)[7:]] == ["cancel"] * 3 + ["book"] * 3
    off = await planner.send("Cancel everything", task=six)
    assert (off.state, lines_of(off)[-1]) == (TaskState.COMPLETED, "Nothing is booked.")
    assert still_booked(tmp_path) == set()


@contextmanager
def refusing(kind: str) -> Iterator[None]:
    """Make the booking office fail bookings of one kind."""
    office = __import__("booking_office")
    book = office.book

    def refuse(reference: str, offer: str, note: str = "") -> Any:
        if f"/{kind} " in reference:
            raise ValueError(f"the last {kind} is gone")
        return book(reference, offer, note)

    office.book = refuse
    yield
    office.book = book


@pytest.mark.parametrize("answer", ["at once", "after a question"])
async def test_a_desk_that_refuses_undoes_the_round_and_the_traveller_is_asked(
    planner: RemoteAgent, tmp_path: Path, answer: str
) -> None:
    with refusing("car"):
        asked = await planner.send(f"{LONDON}{', manual' * (answer == 'at once')}")
        if answer == "after a question":
            assert "gearbox" in lines_of(asked)[0]
            asked = await planner.send("manual", task=asked)
        assert asked.state is TaskState.INPUT_REQUIRED
        assert lines_of(asked) == [
            "the last car is gone. Nothing new is booked. What shall I change?"
        ]
        assert Counter(journal(tmp_path)[:2]) == {("book", FLIGHT): 1, ("book", HOTEL): 1}
        assert journal(tmp_path)[2:] == [("cancel", HOTEL), ("cancel", FLIGHT)]
        asked = await planner.send("Without a car", task=asked)
    assert len(still_booked(tmp_path)) == 2
    with refusing("spa"):
        asked = await planner.send("Add a spa", task=asked)
        assert "the last spa is gone" in lines_of(asked)[0]
        assert len(still_booked(tmp_path)) == 2  # from the earlier rounds
    done = await planner.send("No spa", task=asked)
    done = await planner.send("yes", task=done)
    assert {each["kind"] for each in data_of(done)["booked"]} == {"flight", "hotel"}


async def test_a_message_to_the_running_task_changes_what_it_has_done(
    planner: RemoteAgent, tmp_path: Path
) -> None:
    running = await planner.send(f"{LONDON}, automatic", return_immediately=True)
    asked = await planner.send("Without a car", task=running)
    assert "Total" in asked.status.message.text
    assert len(still_booked(tmp_path)) == 2


@pytest.fixture
def command(modules: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return the module of the command; its agents have their own ports and fail to start."""
    spec = importlib.util.spec_from_file_location("travel_command", FOLDER / "__main__.py")
    assert spec
    assert spec.loader
    command = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(command)
    for name in DESKS:
        monkeypatch.setitem(command.ADDRESSES, name, f"http://localhost:{free_port()}")
        monkeypatch.setenv(f"{name.upper()}_PYTHON", "false")
    monkeypatch.setenv("TRAVEL_PYTHON", "false")
    monkeypatch.setattr(command, "FRONT", f"http://localhost:{free_port()}")
    monkeypatch.setattr(command, "HOME", tmp_path / "home")
    signals = SimpleNamespace(signal=lambda *_: None, SIGTERM=0, default_int_handler=None)
    monkeypatch.setattr(command, "signal", signals)
    monkeypatch.setattr(command, "time", SimpleNamespace(sleep=lambda seconds: None))
    return command


def test_the_command_names_ports_that_are_taken(command: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command.ADDRESSES["cars"] = f"http://localhost:{port}"
        with pytest.raises(SystemExit, match=rf"taken: cars \({port}\)\. End what listens there"):
            command.main()


def test_the_command_names_a_python_that_is_none(
    command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTELS_PYTHON", "/nowhere/python")
    with pytest.raises(SystemExit, match=r"HOTELS_PYTHON names no Python: .*/nowhere/python"):
        command.main()


def test_the_command_ends_when_an_agent_cannot_stay(
    command: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="does not stay: what it said is above"):
        command.main()
    assert " has ended (1); it is started again." in capfd.readouterr().out


def log(folder: Path) -> str:
    return (folder / "log").read_text()[-3000:]


async def settled(remote: RemoteAgent, task_id: str, asked: str = "") -> Task:
    """Return a task that has ended or asks a new question; retry while its agent restarts."""
    while True:
        with suppress(parley.ClientError, parley.A2AError):
            task = await remote.get(task_id)
            message = task.status.message
            if task.state.is_terminal or (
                task.state.is_interrupted and message is not None and message.text != asked
            ):
                return task
        await let_time_pass(0.05)


@contextmanager
def dying(
    module: str, folder: Path, addresses: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Serve an agent that dies at every step; yield its address and a list of deaths."""
    port, deaths = free_port(), []
    words = [sys.executable, str(Path(__file__).with_name("travel_killed.py")), module]
    words += [
        str(port),
        f"sqlite:///{folder}/tasks.db",
        "5" if module in ("hotels", "cars") else "1",
    ]
    env = {**os.environ, **{name.upper(): url for name, url in addresses.items()}}
    env["SSL_CERT_FILE"] = os.devnull  # reading certificates would slow the start of each process
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdin
    assert process.stdout
    try:
        yield f"http://127.0.0.1:{port}", deaths
    finally:
        process.stdin.close()
        with process.stdout:
            deaths += process.stdout.read().split()
        process.wait()


async def test_an_orchestrator_that_dies_at_every_step_books_everything_once(
    modules: None, tmp_path: Path
) -> None:
    async with desks() as addresses:
        with dying("orchestrator", tmp_path, addresses) as (url, deaths):
            async with asyncio.timeout(300), parley.connect(url, retries=100) as remote:
                task = await remote.send(LONDON, return_immediately=True)
                task = await settled(remote, task.id)
                for answer in ("automatic", "Make it Rome instead", "yes"):
                    asked = task.status.message.text
                    await remote.send(answer, task=task, return_immediately=True)
                    task = await settled(remote, task.id, asked)
    assert task.state is TaskState.COMPLETED, log(tmp_path)
    assert len(deaths) > 50
    acts = codes(tmp_path)
    assert Counter(acts) == dict.fromkeys(acts, 1)
    kinds = [f"{act} {code.split('-')[0].lower()}" for act, code in acts]
    assert sorted(kinds[:2]) == ["book flight", "book hotel"]
    assert kinds[2:6] == ["book car", "cancel car", "cancel hotel", "cancel flight"]
    assert sorted(kinds[6:]) == ["book car", "book flight", "book hotel"]
    kept = {each["code"] for each in data_of(task)["booked"]}
    assert kept == still_booked(tmp_path)


@pytest.mark.parametrize("name", ["planner", "hotels", "cars"])
async def test_a_specialist_that_dies_at_every_step_books_everything_once(
    modules: None, tmp_path: Path, name: str
) -> None:
    async with desks() as addresses:
        with dying(DESKS[name], tmp_path, {}) as (url, deaths):
            __import__("desks").ADDRESSES.update({**addresses, name: url})
            planner = __import__("orchestrator").agent
            async with asyncio.timeout(300), parley.connect(planner) as remote:
                asked = await remote.send(LONDON)
                asked = await remote.send("automatic", task=asked)
                assert "Total: 3,243.08 USD of 4,000.00 USD." in lines_of(asked), log(tmp_path)
                done = await remote.send("Cancel everything", task=asked)
    assert done.state is TaskState.COMPLETED, log(tmp_path)
    assert len(deaths) > 3
    acts = codes(tmp_path)
    assert Counter(acts) == dict.fromkeys(acts, 1)
    assert len(acts) == 6
    assert still_booked(tmp_path) == set()
