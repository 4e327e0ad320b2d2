"""``parley dev``: serves an agent while it is written, for this machine alone."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec

from parley.cli.command import Commands
from parley.cli.commands.serve import serve_agents, serve_and_watch
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output, log_to_stderr
from parley.cli.settings.options import Argument, CommandOption
from parley.cli.settings.table import CommandSettings
from parley.host.options import ServerOptions, options_of

STORE = "sqlite:///parley-dev.db"

COMMANDS = Commands()


class Dev(msgspec.Struct, frozen=True):
    """The options of ``parley dev``."""

    targets: Annotated[
        tuple[str, ...], Argument("The agents to serve, as for parley serve.", "TARGET...")
    ] = ()
    port: Annotated[int, CommandOption("Port to listen on; 0 takes a free one.", "PORT")] = 9999
    store: Annotated[
        str, CommandOption(options_of(ServerOptions)["store"].help, "URL", variable="")
    ] = STORE
    no_reload: Annotated[bool, CommandOption("Do not restart when the code changes.")] = False


@COMMANDS.add("dev", "debug")
def dev(settings: CommandSettings, output: Output, options: Dev) -> int | None:
    """Serve agents on this machine while you write them.

    The server restarts when the code changes, and a failed task tells its caller the exception and
    the last lines of the traceback. parley serve keeps them in its log.
    """
    from parley.cli.loading import folders, load

    if not options.targets:
        raise UsageFailure("there is nothing to serve", hint="parley dev agent.py")
    if not options.no_reload:
        words = ["--port", str(options.port), "--store", options.store, "--no-reload"]
        words += ["--debug"] if settings.debug else []
        return serve_and_watch(["dev", *words, *options.targets], folders(options.targets))
    release = log_to_stderr("debug" if settings.debug else "info", holds=not settings.debug)
    sys.dont_write_bytecode = True  # a file that changes twice in a second is read again
    agents = load(options.targets)
    served = ServerOptions(store=options.store, port=options.port, host="127.0.0.1")
    said = "\nDevelopment: callers on this machine see the exceptions of failed tasks."
    serve_agents(agents, served, release, shows_errors=True, said=said)
    return None
