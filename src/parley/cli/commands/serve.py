"""``parley serve``: serves agents from files or modules, and restarts when their code changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from parley.cli.output.failures import UsageFailure, wrong_usage
from parley.cli.output.streams import log_to_stderr, print_line, set_log_level
from parley.cli.output.text import one_line
from parley.cli.settings.options import Argument, CommandOption
from parley.cli.settings.server import ServeCommand, reporting, server_command
from parley.model.distribution import install_command

if TYPE_CHECKING:
    from parley.agent.agent import Agent
    from parley.host.configuration import Configuration
    from parley.host.options import ServerOptions

ENVELOPE_KEYS = "PARLEY_ENVELOPE_KEYS"
STOP_TIMEOUT = 30.0  # seconds; longer than the grace period of turns

EPILOG = """\b
Targets:
  agent.py             the one agent in a file
  agent.py:name        an agent in a file with several
  package.module:name  an agent in an importable module
  /time=agent.py       any target, under its own path
  Several targets without paths are served under the names of their agents.
  --tenant NAME=TARGET serves an agent as a tenant of the shared address.

\b
Examples:
  parley serve agent.py
  parley serve agent.py --reload --store memory:
  parley serve /time=time_agent.py /boats=sailboat.py --port 8000
  parley serve --tenant acme=shop.py --tenant globex=shop.py
  parley serve agents.shop:clerk --host 0.0.0.0 --url https://shop.example.com
  parley serve agent.py --url https://a.example.com --publisher example.com
  parley serve agent.py --tls-cert chain.pem --tls-key key.pem --port 8443
  parley serve agent.py --store postgresql://user@host/database --workers 4

\b
Options can also come from the environment (--store from PARLEY_STORE), where
passwords are hidden from other users of the machine, and from parley.toml:
  targets = ["agent.py"]
  store = "sqlite:///tasks.db"
  drain = "30s"
SIGHUP reads the file, certificates and keys again. See: parley config check"""


class Serve(msgspec.Struct, frozen=True):
    """The options of ``parley serve`` in addition to the options of a server."""

    targets: Annotated[tuple[str, ...], Argument("The agents to serve.", "[TARGET]...")] = ()
    reload: Annotated[bool, CommandOption("Restart when the agents' code changes.")] = False


def register(app: typer.Typer) -> None:
    """Add the command."""
    server_command(app, epilog=EPILOG)(serve)


def serve(command: ServeCommand, own: Serve) -> int | None:
    """Serve agents over A2A: each with its card, its tasks kept in a durable store.

    Prints the addresses and a command to try, and serves until Ctrl-C: running turns then get ten
    seconds to finish, and unfinished turns resume after the next start.
    """
    values = command.settings.values
    targets, tenants = own.targets or values.get("targets", ()), values.get("tenants", {})
    if not targets and not tenants:
        raise UsageFailure(
            "there is nothing to serve",
            hint='parley serve agent.py, or targets = ["agent.py"] in parley.toml',
        )
    if keys := values.get("envelope_keys"):  # for the binding, which reads its own settings
        os.environ[ENVELOPE_KEYS] = keys
    from parley.cli.loading import folders, load, load_tenants, parse_tenant

    if own.reload:
        locations = [parse_tenant(*each).location for each in tenants.items()]
        arguments = ["serve", *[word for word in command.words if word != "--reload"]]
        return serve_and_watch(arguments, folders([*targets, *locations]))
    given = command.options
    has_grpc = given.get("grpc_port") is not None
    if given.get("role") == "worker" and has_grpc:
        raise UsageFailure(
            "--grpc-port: a worker serves no requests; leave out --grpc-port or the role"
        )
    if not given["settings"].grpc_on_card and not has_grpc:
        raise UsageFailure("--no-grpc-on-card: gRPC is served only with --grpc-port")
    debugs = command.log_level == "debug"
    release = log_to_stderr(command.log_level, command.log_format, holds=not debugs)
    agents = load(targets)

    options = msgspec.structs.replace(command.settings.checked(), tenants=load_tenants(tenants))
    serve_agents(agents, options, release, access_log=debugs, settings=command.settings)
    return None


def serve_agents(
    agents: Mapping[str, Agent],
    options: ServerOptions,
    release: Callable[[], None],
    *,
    access_log: bool = False,
    shows_errors: bool = False,
    said: str = "",
    settings: Configuration | None = None,
) -> None:
    """Serve agents until Ctrl-C; ``said`` follows the banner. See ``open_app``.

    ``release`` writes the log that waits for the banner (``log_to_stderr``). The server reloads
    ``settings`` on SIGHUP.
    """
    from parley.host.app import banner_of, open_app, run_app

    with wrong_usage():
        app = open_app(
            agents,
            options,
            shows_errors=shows_errors,
            settings=settings,
            apply={"log_level": set_log_level},
        )

    def listening(address: str) -> None:
        print_line(banner_of(app, agents, options, address) + said)
        release()

    if options.workers > 1:
        release()  # otherwise each worker would write what it holds
    with reporting(str(options.store)):
        run_app(app, options, access_log=access_log, on_listening=listening)


def serve_and_watch(arguments: Sequence[str], folders: Sequence[Path]) -> int:
    """Run ``parley`` with ``arguments`` until Ctrl-C, and restart it when Python code changes.

    After a failed start, such as an error in the code, the next change starts the server again.
    Each server has exited, and released port and store, before the next one starts.

    Raises ``UsageFailure`` if the file watcher is not installed.
    """
    try:
        from watchfiles import PythonFilter, watch
    except ModuleNotFoundError:
        raise UsageFailure(
            "--reload needs its extra", hint=f"install it with: {install_command('reload')}"
        ) from None
    signal.signal(signal.SIGTERM, _interrupt)
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, _interrupt)  # the terminal has closed
    server = _start(arguments)
    try:
        for changes in watch(*folders, watch_filter=PythonFilter()):
            names = sorted({Path(path).name for _, path in changes})
            print_line(f"{one_line(', '.join(names))} changed; restarting", err=True)
            _stop(server)
            server = _start(arguments)
    except KeyboardInterrupt:
        pass
    finally:
        _stop(server)
    return 0


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "parley", *arguments]
    if sys.platform == "win32":  # only a process group can get CTRL_BREAK
        return subprocess.Popen(command, creationflags=subprocess.CREATE_NEW_PROCESS_GROUP)
    return subprocess.Popen(command)


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        if sys.platform == "win32":
            server.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            server.send_signal(signal.SIGTERM)
    try:
        server.wait(STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
