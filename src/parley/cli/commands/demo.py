"""``parley demo``: serves five example agents, calls them, and shows the calls."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from parley.cli.boundary import exit_status_of
from parley.cli.output.failures import INTERRUPTED
from parley.cli.output.streams import Output
from parley.cli.settings.options import GroupedCommand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parley import Agent
    from parley.cli.demo.view import DemoView
    from parley.server.app import App

PORT = 9999
AGENTS = {
    "/hello": "hello.py",
    "/time": "time_agent.py",
    "/report": "streaming_report.py",
    "/flights": "flight_booking.py",
    "/boats": "sailboat.py",
}


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("demo", cls=GroupedCommand)
    def demo(
        once: Annotated[
            bool, typer.Option("--once", help="End when everything was shown.")
        ] = False,
        port: Annotated[
            int, typer.Option(help="Port to listen on; a free one if it is taken.", metavar="PORT")
        ] = PORT,
        debug: Annotated[
            bool, typer.Option("--debug", help="Show tracebacks of what goes wrong.")
        ] = False,
    ) -> None:
        """Serve five example agents and show them at work.

        The agents are real, and so are the calls, over HTTP: a card, direct replies, a
        task that streams, one that asks a question, and a picture. Then prints commands
        to try, and serves until Ctrl-C. Their tasks are kept in a temporary folder.
        """
        status = exit_status_of(Output(is_json=False, debug=debug), lambda: _demo(port, once=once))
        if status:
            raise typer.Exit(status)


def folder() -> Path:
    """Return the folder of the example agents: in the package, or in its repository."""
    shipped = Path(__file__).parents[1] / "demo_agents"
    return shipped if shipped.is_dir() else Path(__file__).parents[4] / "examples"


def _demo(port: int, *, once: bool) -> int:
    import asyncio

    from parley.cli.loading import load
    from parley.host.app import asgi
    from parley.server.settings import Settings

    agents = load([f"{path}={folder() / file}" for path, file in AGENTS.items()])
    with tempfile.TemporaryDirectory(prefix="parley-demo-", ignore_cleanup_errors=True) as kept:
        app = asgi(
            agents,
            store=f"sqlite:///{Path(kept, 'parley.db')}",
            settings=Settings(missing_version="1.0"),  # for texts that are typed in
        )
        try:
            asyncio.run(_run(app, agents, port, once=once))
        except KeyboardInterrupt:
            return INTERRUPTED if once else 0
    return 0


async def _run(app: App, agents: Mapping[str, Agent], port: int, *, once: bool) -> None:
    from parley.server.run import ListenError, serving

    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(serving(app, port=port))
        except ListenError:
            address = await stack.enter_async_context(serving(app, port=0))
        await _show(_view(), agents, address, once=once)


def _view() -> DemoView:
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from parley.cli.demo.rich_view import RichView

        return RichView()
    from parley.cli.demo.view import PlainView

    return PlainView()


async def _show(view: DemoView, agents: Mapping[str, Agent], address: str, *, once: bool) -> None:
    import asyncio

    from parley.cli.demo.view import STEPS
    from parley.host.banner import try_command

    view.begin(address, list(agents))
    for step in STEPS:
        await step(view, address)
        await view.pause()
    commands = [try_command(agent, address + path) for path, agent in agents.items()]
    port = urlsplit(address).port
    view.end(commands, serving=not once, options=() if port == PORT else ("--port", str(port)))
    if not once:
        await asyncio.Event().wait()
