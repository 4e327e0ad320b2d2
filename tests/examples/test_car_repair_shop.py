"""The repair shop: its own command starts it with real MCP servers; one kill hits a raised lift."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import parley
from parley import Agent, Part, TaskState, Turn
from parley.testing.model_endpoint import ModelEndpoint
from tests.examples.conftest import EXAMPLES
from tests.kit.processes import free_port
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

PLACE = EXAMPLES / "car_repair_shop"
RATTLE = "My Toyota Camry 2018, XYZ123, is making a rattling noise"


class Shop:
    """A shop that its own command starts, and the files in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = [free_port() for _ in range(4)]
        self.urls = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.printed = (folder / "printed.txt").open("wb")
        words = ["--folder", str(folder), "--ports", *map(str, self.ports)]
        self.process = subprocess.Popen(
            [sys.executable, str(PLACE / "shop.py"), *words],
            env={**os.environ, "PACE": "0.5"},
            stdout=self.printed,
            stderr=self.printed,
        )

    @property
    def said(self) -> str:
        return (self.folder / "printed.txt").read_text("utf-8")

    @property
    def moves(self) -> list[str]:
        """The lift's moves from its journal."""
        journal = self.folder / "lift.txt"
        return journal.read_text("utf-8").splitlines() if journal.exists() else []

    def forget(self) -> None:
        """Reset the car, with the lift down."""
        assert not self.is_up
        for path in self.folder.glob("*.cleared"):
            path.unlink()
        (self.folder / "lift.txt").unlink(missing_ok=True)

    @property
    def is_up(self) -> bool:
        kept = self.folder / "lift.json"
        return kept.exists() and json.loads(kept.read_text("utf-8"))["height_meters"] > 0

    @property
    def mechanics(self) -> list[int]:
        """The process ids of the mechanic, the newest last."""
        return [int(pid) for pid in re.findall(r"mechanic +runs as process (\d+)", self.said)]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.printed.close()


@pytest.fixture(scope="module")
def open_shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(tmp_path_factory.mktemp("repair"))
    try:
        yield shop
    finally:
        shop.close()


@pytest.fixture
async def shop(open_shop: Shop) -> Shop:
    await until(lambda: "The shop is open" in open_shop.said or open_shop.process.poll(), 120, 0.1)
    assert open_shop.process.poll() is None, open_shop.said
    open_shop.forget()
    return open_shop


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):
    def loaded(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(PLACE)
        spec = importlib.util.spec_from_file_location(name, PLACE / f"{name}.py")
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return loaded


async def test_the_customer_s_car_is_repaired_although_the_mechanic_is_killed_below_it(
    shop: Shop, load, monkeypatch, capsys
) -> None:
    customer = load("customer")
    monkeypatch.setattr(customer, "SHOP", shop.urls[0])
    talk = asyncio.create_task(customer.main())
    try:
        # The lift writes its journal before it reports its position.
        await until(lambda: (len(shop.moves) == 3 and shop.is_up) or talk.done(), 120, 0.02)
        os.kill(shop.mechanics[-1], signal.SIGKILL)
        await asyncio.wait_for(talk, 120)
    finally:
        talk.cancel()
        await asyncio.gather(talk, return_exceptions=True)
    assert len(shop.mechanics) == 2
    assert shop.moves == ["up 2 m", "down 2 m", "up 2 m", "down 2 m"]
    printed = capsys.readouterr().out
    asked = re.findall(r"shop: +(?:(Which car)|(Can you send)|(Part #12345)|(For you))", printed)
    assert len(asked) == 4
    assert "customer: Here it is (engine.avi)" in printed
    assert printed.count("The scanner says P0300.") == printed.count("Step 4 of 4") == 1
    assert "it knocks unevenly, 7.5 times a second; error code P0300;" in printed
    assert "Done: new ignition coils, part #12345; error codes cleared." in printed
    assert printed.strip().endswith("It is 191.55 EUR.")  # 129.00 less 5 %, express, 50 minutes


async def test_the_lift_comes_down_when_the_customer_cancels(shop: Shop, load) -> None:
    video = Part(raw=b"\x00\x00\x00\x18ftypmp42", media_type="video/mp4", filename="noise.mp4")
    async with parley.connect(shop.urls[0]) as manager:
        task = await manager.send(["My Toyota Camry 2018, XYZ123, rattles", video])
        assert "is in stock" in task.status.message.text
        task = await manager.send("standard", task=task, return_immediately=True)
        await until(lambda: len(shop.moves) == 3, 60, 0.02)
        assert (await manager.cancel(task.id)).state is TaskState.CANCELED
    await until(lambda: len(shop.moves) == 4 and not shop.is_up, 60, 0.02)
    assert shop.moves[-1] == "down 2 m"


async def test_questions_repeat_until_they_are_answered_and_a_refusal_is_told(shop: Shop) -> None:
    text = Part(raw=b"brrr", media_type="text/plain", filename="noise.txt")
    async with parley.connect(shop.urls[0]) as manager:

        async def says(message, task=None):
            task = await manager.send(message, task=task)
            return task, task.status.message.text if task.status.message else task.text

        task, question = await says(RATTLE)
        assert question == "Can you send a picture or a video of the noise?"
        task, question = await says(["brrr", text], task)
        assert question.startswith("That is no picture")
        task, question = await says("I have none", task)
        assert question.startswith("Part #12345, ignition coils, is in stock for a Toyota Camry")
        task, question = await says("What?", task)
        assert question.startswith("129.00 EUR")
        task, reason = await says("No", task)
        assert task.state is TaskState.FAILED
        assert reason.startswith("The repair needs part #12345. Part #12345 was not ordered.")
        assert shop.moves == ["up 2 m", "down 2 m"]

        task, reason = await says("My Ford Focus, ABC789, smells")
        assert task.state is TaskState.COMPLETED
        assert reason == "Found: no error code. Nothing to repair, nothing to pay."
        task, reason = await says("My Honda Civic, AAA111, smells")
        assert task.state is TaskState.FAILED
        assert "no car AAA111 is connected; there are XYZ123, ABC789." in reason


async def test_the_lift_comes_down_after_a_failure_and_when_it_was_forgotten(
    shop: Shop, load, monkeypatch
) -> None:
    port = free_port()
    monkeypatch.setenv("LIFT", f"{shop.urls[3]}/lift")
    monkeypatch.setenv("MECHANIC", f"http://127.0.0.1:{port}")
    mechanic = load("mechanic")
    monkeypatch.setattr(mechanic, "LOOKS_EVERY", 0.3)
    clumsy = Agent("Clumsy", lifespan=mechanic.lifespan)

    @clumsy.skill(replies="task")
    async def work(turn: Turn) -> None:
        async def break_something() -> str:
            turn.fail("The bolt broke.")

        async with turn.tools(mechanic.LIFT) as tools:
            if turn.text == "forget":
                await mechanic.raised(turn, tools, "forget")
            else:
                await mechanic.on_the_lift(turn, tools, "fit", break_something)

    async with parley.connect(clumsy) as remote:  # its own observation finds no task of this agent
        task = await remote.send("fail")
    assert (task.state, task.text) == (TaskState.FAILED, "The bolt broke.")
    assert shop.moves == ["up 2 m", "down 2 m"]
    app = parley.asgi(clumsy, store="memory:")
    async with under_uvicorn(app, port=port) as url, parley.connect(url) as remote:
        task = await remote.send("forget")
        assert task.state is TaskState.COMPLETED
        await until(lambda: shop.moves == ["up 2 m", "down 2 m"] * 2, 60)


async def test_a_model_reads_what_customers_write(load, monkeypatch) -> None:
    said = {"make": "Škoda", "model": "Octavia", "year": 2020, "vehicle_id": "HEL-1"}
    with ModelEndpoint(lambda request: json.dumps({**said, "is_noise": True})) as endpoint:
        monkeypatch.setenv("PARLEY_MODEL_URL", endpoint.url)
        monkeypatch.setenv("PARLEY_MODEL", "qwen3:8b")
        async with parley.connect(load("shop_manager").agent) as remote:
            task = await remote.send("Autoni, Octavia vuodelta 2020, kolisee.")
    assert task.status.message.text == "Can you send a picture or a video of the noise?"
    assert "number on the registration" in str(endpoint.requests[0].messages)


def test_ports_that_are_taken_are_named(open_shop: Shop, tmp_path: Path) -> None:
    shop = [sys.executable, str(PLACE / "shop.py"), "--folder", str(tmp_path), "--ports"]
    taken = [str(port) for port in open_shop.ports]
    refused = subprocess.run([*shop, *taken], capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr.endswith("taken. Name four free ports with --ports.\n")
