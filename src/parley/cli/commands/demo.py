"""``parley demo``: serves five example agents, calls them, and shows the calls.

``parley demo-server`` serves one agent, to practise commands with.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from parley import Agent, Turn, __version__
from parley.cli.command import Commands
from parley.cli.demo_view import STEPS, PlainView
from parley.cli.loading import load
from parley.cli.output.failures import INTERRUPTED
from parley.cli.output.streams import Output, print_line
from parley.cli.output.text import shell_words
from parley.cli.settings.options import CommandOption
from parley.cli.settings.server import reporting
from parley.cli.settings.table import CommandSettings
from parley.host.app import asgi, open_app, run_app
from parley.host.banner import try_command
from parley.host.options import ServerOptions
from parley.host.program import invocation
from parley.model.parts import Part
from parley.server.app import App
from parley.server.run import ListenError, serving
from parley.server.settings import Settings

PORT = 9999
AGENTS = {
    "/hello": "hello.py",
    "/time": "time_agent.py",
    "/report": "streaming_report.py",
    "/flights": "flight_booking.py",
    "/boats": "sailboat.py",
}
TEXTS = Settings(missing_version="1.0")  # for texts that are typed in

COMMANDS = Commands()


class Demo(msgspec.Struct, frozen=True):
    """The options of ``parley demo``."""

    once: Annotated[bool, CommandOption("End when everything was shown.")] = False
    port: Annotated[int, CommandOption("Port to listen on; a free one if it is taken.", "PORT")] = (
        PORT
    )


@COMMANDS.add("demo", "debug")
def demo(settings: CommandSettings, output: Output, options: Demo) -> int:
    """Serve five example agents and show them at work.

    The agents are real, and so are the calls, over HTTP: a card, direct replies, a
    task that streams, one that asks a question, and a picture. Then prints commands
    to try, and serves until Ctrl-C. Their tasks are kept in a temporary folder.
    """
    agents = load([f"{path}={folder() / file}" for path, file in AGENTS.items()])
    with tempfile.TemporaryDirectory(prefix="parley-demo-", ignore_cleanup_errors=True) as kept:
        app = asgi(agents, store=f"sqlite:///{Path(kept, 'parley.db')}", settings=TEXTS)
        try:
            asyncio.run(_run(app, agents, options.port, once=options.once))
        except KeyboardInterrupt:
            return INTERRUPTED if options.once else 0
    return 0


def folder() -> Path:
    """Return the folder of the example agents: in the package, or in its repository."""
    shipped = Path(__file__).parents[1] / "demo_agents"
    return shipped if shipped.is_dir() else Path(__file__).parents[4] / "examples"


class DemoServer(msgspec.Struct, frozen=True):
    """The options of ``parley demo-server``."""

    port: Annotated[int, CommandOption("Port to listen on; 0 takes a free one.", "PORT")] = PORT


@COMMANDS.add("demo-server", "debug")
def demo_server(settings: CommandSettings, output: Output, options: DemoServer) -> None:
    """Serve an agent to practise commands with, until Ctrl-C.

    The first word of a message says what it does: task, stream, file, ask, slow, fail or
    reject; it answers anything else at once. Its tasks are gone when it stops.
    """
    agent = practice_agent()
    served = ServerOptions(store="memory:", port=options.port, settings=TEXTS, publisher="")

    def said(address: str) -> str:
        words = (("Hello",), ("task",), ("ask",), ("--stream", "stream"))
        tries = [["card", "get", address], *[["send", address, *each] for each in words]]
        lines = [f"  {shell_words([*invocation(), *words])}" for words in tries]
        return "\n".join([f"{agent.name}: {address}", *lines, "Ctrl-C stops it."])

    with reporting("memory:"):
        run_app(
            open_app(agent, served), served, on_listening=lambda address: print_line(said(address))
        )


def practice_agent() -> Agent:
    """Return an agent whose callers say what it does."""
    agent = Agent(
        name="Practice agent",
        description="Does what the first word of a message says, to try commands with",
        version=__version__,
    )

    @agent.skill(tags=["demo"], examples=["Hello", "task", "stream", "file", "ask", "slow", "fail"])
    async def practise(turn: Turn) -> str:
        """Answers at once, or does: task, stream, file, ask, slow, fail, reject."""
        word = (turn.text.lower().split() or [""])[0]
        if word in ("task", "slow"):
            await turn.working("Working on it")
            await turn.sleep(60 if word == "slow" else 0.2)
        elif word == "stream":
            async with turn.stream(name="story") as story:
                for number in range(1, 6):
                    await asyncio.sleep(0.2)
                    await story.write(f"Piece {number}. ")
        elif word == "file":
            await turn.artifact(Part(raw=b"Hello\n", filename="hello.txt", media_type="text/plain"))
        elif word == "ask":
            return f"You like {(await turn.ask('Which colour do you like?')).text}."
        elif word == "fail":
            raise RuntimeError("it was told to fail")
        elif word == "reject":
            turn.reject("It was told to reject.")
        return f"You said: {turn.text}"

    return agent


async def _run(app: App, agents: Mapping[str, Agent], port: int, *, once: bool) -> None:
    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(serving(app, port=port))
        except ListenError:
            address = await stack.enter_async_context(serving(app, port=0))
        await _show(_view(), agents, address, once=once)


def _view() -> PlainView:
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from parley.cli.rich_view import RichView

        return RichView()
    return PlainView()


async def _show(view: PlainView, agents: Mapping[str, Agent], address: str, *, once: bool) -> None:
    view.begin(address, list(agents))
    for step in STEPS:
        await step(view, address)
        await view.pause()
    commands = [try_command(agent, address + path) for path, agent in agents.items()]
    port = urlsplit(address).port
    view.end(commands, serving=not once, options=() if port == PORT else ("--port", str(port)))
    if not once:
        await asyncio.Event().wait()
