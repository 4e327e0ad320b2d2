"""Serves the agents of a framework for the adapter suite, in that framework's environment.

``python served/langgraph.py STORE`` prints the address, then serves until its input closes. The
endpoint of the model is in ``OPENAI_BASE_URL``; files that tools write in ``PARLEY_TEST_FILES``.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai

import parley
from parley import Agent

MODEL_URL = os.environ["OPENAI_BASE_URL"]
FILES = Path(os.environ["PARLEY_TEST_FILES"])

UNREACHABLE = 404
"""The number that the tool ``add`` cannot add: it fails as if it had asked a model of its own."""


def note(name: str, text: str) -> None:
    """Let the test know: add a line to a file."""
    with (FILES / name).open("a") as file:
        file.write(f"{text}\n")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    note("add", f"{a}+{b}")
    if b == UNREACHABLE:
        raise RuntimeError("no such shop") from openai.OpenAIError("http://shop.example")
    return a + b


def book(city: str) -> str:
    """Book a room in a city. It has to be approved."""
    note("book", city)
    return f"booked {city}"


async def wait() -> str:
    """Wait for ever."""
    note("wait", "begun")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note("wait", "cancelled")
        raise
    return "waited"


def page(name: str) -> dict[str, Any]:
    """Return what the Python blocks of ``docs/guides/frameworks/NAME.md`` define."""
    path = Path(__file__).parents[3] / "docs" / "guides" / "frameworks" / f"{name}.md"
    code = re.findall(r"^```python\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)
    defined: dict[str, Any] = {"__name__": "page"}
    exec(compile("\n".join(code), str(path), "exec"), defined)
    return defined


COMING_FROM = "../coming-from"
"""The page on moving from other servers."""


def documented(name: str, file: str) -> dict[str, Any]:
    """Return what a block of a framework's page, or of ``COMING_FROM``, defines: the block that
    begins with the file."""
    page = Path(__file__).parents[3] / "docs" / "guides" / "frameworks" / f"{name}.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    (block,) = [each for each in blocks if each.startswith(f"# {file}\n")]
    names: dict[str, Any] = {"__name__": file.removesuffix(".py")}
    exec(compile(block, file, "exec", dont_inherit=True), names)
    return names


def serve(agents: Mapping[str, Agent]) -> None:
    """Serve agents, by the names of their features."""

    def end() -> None:
        sys.stdin.read()
        os._exit(0)

    def listening(url: str) -> None:
        print(url, flush=True)
        os.dup2(2, 1)  # unread output of frameworks would fill the pipe and stop them

    threading.Thread(target=end, daemon=True).start()
    parley.serve(
        {f"/{name}": agent for name, agent in agents.items()},
        port=0,
        store=f"sqlite:///{sys.argv[1]}",
        on_listening=listening,
    )
