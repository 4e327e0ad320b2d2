"""Commands that a started server prints: each works as it is printed."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

import parley
from parley import Agent, Turn
from parley.host import program
from parley.host.banner import try_command, write_banner
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
SERVED = "import parley, rates\n\nparley.serve(rates.rates, port=0, store='memory:')\n"


def run(command: str, folder: Path) -> str:
    """Run a printed command in another shell, and return its output."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("A2ACLI_", "PARLEY_"))}
    ran = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@posix
def test_every_command_of_the_demo_works(tmp_path):
    with Running(["demo", "--port", "0"], tmp_path) as demo:
        said = demo.until("Serving until Ctrl-C.")
        commands = re.findall(r"^  (\S.* send .*)$", said, re.MULTILINE)
        assert len(commands) == 5
        for command in commands:
            assert "FAILED" not in run(command, tmp_path)


@posix
def test_the_command_for_a_typed_skill_has_its_input(tmp_path):
    (tmp_path / "rates.py").write_text(AGENT)
    flags = ["--port", "0", "--store", "memory:"]
    with Running(["serve", "rates.py", *flags], tmp_path) as server:
        [command] = re.findall(r"  try +(.+)", server.until("Ctrl-C stops the server"))
        assert "1 EUR" in run(command, tmp_path).replace("1.0", "1")


@posix
def test_serve_from_python_says_what_the_command_says(tmp_path):
    (tmp_path / "rates.py").write_text(AGENT)
    (tmp_path / "served.py").write_text(SERVED)
    said = []
    for arguments, command in (
        (
            ["serve", "rates.py", "--port", "0", "--store", "memory:"],
            (sys.executable, "-m", "parley"),
        ),
        (["served.py"], (sys.executable,)),
    ):
        with Running(arguments, tmp_path, command=command) as server:
            text = server.until("Ctrl-C stops the server")
            [command_line] = re.findall(r"  try +(.+)", text)
            assert "EUR" in run(command_line, tmp_path)
        said.append(re.sub(r":\d+", ":PORT", re.sub(r"  try +.* send ", "  try send ", text)))
    assert said[0] == said[1]
    assert "Tasks are gone when the server stops (memory:)" in said[0]


def test_a_banner_shows_what_is_unprintable(capsys, monkeypatch):
    write_banner("Rates\x1b[2J\u202e \U0001f600 \u5317\u4eac")
    assert capsys.readouterr().out == "Rates\\x1b[2J\\u202e \U0001f600 \u5317\u4eac\n"
    monkeypatch.setattr(sys, "stdout", None)
    write_banner("Rates")


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


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "parley-a2a[cli]"),
        ('{"url": "file:///a/p.whl", "archive_info": {}}', "parley-a2a[cli] @ file:///a/p.whl"),
        (
            '{"url": "https://x.example/p", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}',
            "parley-a2a[cli] @ git+https://x.example/p@c0ffee",
        ),
    ],
)
def test_under_uvx_commands_begin_with_uvx(monkeypatch, origin, requirement):
    class Distribution:
        def read_text(self, name: str) -> str | None:
            return origin

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Distribution())
    monkeypatch.setenv("UV", "/usr/bin/uv")
    monkeypatch.setattr(sys, "prefix", "/cache/uv/archive-v0/m5c8xtUgbb4YKewo")
    assert program.invocation() == ["uvx", "--from", requirement, "parley"]
    monkeypatch.delenv("UV")
    assert "uvx" not in program.invocation()
