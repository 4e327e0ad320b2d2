"""Commands that a starting server prints: each works exactly as printed."""

import os
import re
import subprocess
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

import parley
from parley import Agent, Turn
from parley.host import program
from parley.host.banner import try_command
from tests.kit.processes import Running

posix = pytest.mark.skipif(os.name != "posix", reason="a shell as POSIX has it")

AGENT = '''
from dataclasses import dataclass
from parley import Agent, Turn

rates = Agent("Rates", description="Knows rates", version="1.0.0")

@dataclass
class Conversion:
    amount: float
    currency: str = "EUR"

@rates.skill
async def convert(request: Conversion) -> str:
    """Converts money."""
    return f"{request.amount} {request.currency}"

@rates.skill(examples=["What's new?"])
async def news(turn: Turn) -> str:
    """Knows the news."""
    return "none"
'''


def run(command: str, folder: Path) -> str:
    """Run a printed command in a separate shell, and return its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("A2ACLI_", "PARLEY_"))}
    ran = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.mark.slow
@posix
def test_the_command_for_a_typed_skill_has_its_input(tmp_path):
    (tmp_path / "rates.py").write_text(AGENT)
    flags = ["--port", "0", "--store", "memory:"]
    with Running(["serve", "rates.py", *flags], tmp_path) as server:
        [command] = re.findall(r"  try +(.+)", server.until("Ctrl-C stops the server"))
        assert "1 EUR" in run(command, tmp_path).replace("1.0", "1")


@dataclass
class Everything:
    day: date
    kind: Literal["one", "two"]
    name: Annotated[str, msgspec.Meta(min_length=10, max_length=12)]
    share: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    count: Annotated[int, msgspec.Meta(multiple_of=7, ge=10)]
    words: Annotated[list[str], msgspec.Meta(min_length=2)]
    pair: tuple[int, str]
    maybe: int | None
    inner: "Inner"
    more: dict[str, int]
    left_out: int = 3


@dataclass
class Inner:
    is_it: bool
    above: Annotated[int, msgspec.Meta(ge=18)]


def of_one_skill(function, **options) -> Agent:
    agent = Agent("One")
    agent.skill(**options)(function)
    return agent


async def everything(value: Everything) -> str:
    return "fits"


async def a_number(n: Annotated[int, msgspec.Meta(gt=100)]) -> str:
    return "fits"


async def a_text(query: str) -> str:
    return "fits"


async def a_code(code: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")]) -> str:
    return "fits"


async def anything(turn: Turn) -> str:
    return "fits"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "function", [everything, a_number, a_text, anything], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("examples", [(), ("Hello there",), ("101",)], ids=str)
async def test_a_command_is_made_of_what_fits_the_skill(function, examples):
    agent = of_one_skill(function, examples=examples)
    command = try_command(agent, program.DEFAULT_ADDRESS)
    *_, text = parsed(command)
    async with parley.connect(agent) as remote:
        assert (await remote.send(text)).text == "fits"


def test_a_skill_among_several_is_named():
    agent = of_one_skill(a_code)
    agent.skill(examples=["Say it"])(anything)
    assert parsed(try_command(agent, "http://a.example"))[-4:] == [
        "http://a.example", "--skill", "anything", "Say it",
    ]  # fmt: skip


def test_a_skill_without_a_message_that_fits_shows_the_card():
    for agent in (of_one_skill(a_code), of_one_skill(anything, input_modes=["image/png"])):
        assert parsed(try_command(agent, "http://a.example"))[-4:] == [
            "card", "get", "-a", "http://a.example",
        ]  # fmt: skip


def parsed(command: str) -> list[str]:
    import shlex

    return shlex.split(command)
