"""``parley demo``: serves five example agents, calls them, and shows the calls.

``parley demo-server`` serves one agent for trying out commands.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from parley.cli.command import Commands
from parley.cli.output.streams import Output, draws
from parley.cli.settings.options import CommandOption
from parley.cli.settings.table import CommandSettings

PORT = 9999

COMMANDS = Commands()


class Demo(msgspec.Struct, frozen=True):
    """The options of ``parley demo``."""

    once: Annotated[bool, CommandOption("Exit after the last step.")] = False
    port: Annotated[
        int, CommandOption("Port to listen on; a free port if it is in use.", "PORT")
    ] = PORT


@COMMANDS.add("demo", "debug")
def demo(settings: CommandSettings, output: Output, options: Demo) -> int:
    """Serve five example agents and show them at work.

    The agents are real, and so are the calls, over HTTP: a card, direct replies, a task that
    streams, a task that asks a question, and a picture. Then prints commands to try, and serves
    until Ctrl-C. Their tasks are stored in a temporary folder.
    """
    from parley.cli.demo_run import PlainView, run_demo

    view = PlainView
    if draws():
        from parley.cli.rich_view import RichView as view
    return run_demo(view(), options.port, once=options.once)


class DemoServer(msgspec.Struct, frozen=True):
    """The options of ``parley demo-server``."""

    port: Annotated[int, CommandOption("Port to listen on; 0 selects a free port.", "PORT")] = PORT


@COMMANDS.add("demo-server", "debug")
def demo_server(settings: CommandSettings, output: Output, options: DemoServer) -> None:
    """Serve an agent for trying out commands, until Ctrl-C.

    The first word of a message selects its behaviour: task, stream, file, ask, slow, fail or
    reject; it answers other messages at once. Its tasks are lost when it stops.
    """
    from parley.cli.demo_run import serve_practice_agent

    serve_practice_agent(options.port)
