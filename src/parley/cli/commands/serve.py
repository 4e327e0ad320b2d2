"""``parley serve``: serves agents from files or modules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import log_to_stderr, print_line

if TYPE_CHECKING:
    from parley.cli.settings.server import ServeCommand

STORE = "sqlite:///parley.db"
STORE_VARIABLE = "PARLEY_STORE"
ENVELOPE_KEYS = "PARLEY_ENVELOPE_KEYS"

EPILOG = """\b
Targets:
  agent.py             the one agent in a file
  agent.py:name        one of several in it
  package.module:name  one that can be imported
  /time=agent.py       any of them, under a path of its own
  Several targets without paths are served under the names of their agents.
  --tenant NAME=TARGET serves one as a tenant of the address that all share.

\b
Examples:
  parley serve agent.py
  parley serve agent.py --reload --store memory:
  parley serve /time=time_agent.py /boats=sailboat.py --port 8000
  parley serve --tenant acme=shop.py --tenant globex=shop.py
  parley serve agents.shop:clerk --host 0.0.0.0 --url https://shop.example.com
  parley serve agent.py --url https://a.example.com --publisher example.com
  parley serve agent.py --tls-cert chain.pem --tls-key key.pem --port 8443
  parley serve agent.py --store postgresql://user@host/database

\b
Options are read from the environment too: --store from PARLEY_STORE, --limit
from PARLEY_LIMITS, where other users of the machine do not see the passwords."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    from parley.cli.settings.server import server_command

    @server_command(app, epilog=EPILOG)
    def serve(
        command: ServeCommand,
        targets: Annotated[
            list[str] | None,
            typer.Argument(metavar="TARGET", help="The agents to serve.", show_default=False),
        ] = None,
        tenant: Annotated[
            list[str] | None,
            typer.Option(
                help="An agent that answers for one tenant of the server's address; repeat it.",
                metavar="NAME=TARGET",
                show_default=False,
            ),
        ] = None,
        reload: Annotated[
            bool, typer.Option("--reload", help="Restart when the agents' code changes.")
        ] = False,
        envelope_keys: Annotated[
            str,
            typer.Option(
                help="The keys of those who sign messages of the envelope protocol (parley keys "
                "share); read again when they change.",
                envvar=ENVELOPE_KEYS,
                metavar="FILE",
                rich_help_panel="Who may call",
                show_default=False,
            ),
        ] = "",
    ) -> int | None:
        """Serve agents over A2A: each with its card, its tasks kept in a durable store.

        Prints the addresses and a command to try, and serves until Ctrl-C: what runs
        then gets ten seconds to end, and the rest goes on after the next start.
        """
        if not targets and not tenant:
            raise UsageFailure("there is nothing to serve", hint="parley serve agent.py")
        if envelope_keys:  # the binding reads its settings, which the server does not know
            os.environ[ENVELOPE_KEYS] = envelope_keys
        if reload:
            return _reload(command.words, targets or [], tenant or [])
        _serve(command, targets or [], tenant or [])
        return None


def _serve(command: ServeCommand, targets: list[str], tenants: list[str]) -> None:
    given = command.options
    has_grpc = given.get("grpc_port") is not None
    if given.get("role") == "worker" and has_grpc:
        raise UsageFailure("--grpc-port: a worker serves nothing; leave it out, or the role")
    if not given["settings"].grpc_on_card and not has_grpc:
        raise UsageFailure("--no-grpc-on-card: gRPC is served where it has a port: --grpc-port")
    from parley.cli.loading import load, load_tenants

    log_to_stderr(command.log_level)
    agents = load(targets)

    from parley.cli.settings.server import reporting
    from parley.host.app import banner_of, open_app, run_app
    from parley.host.options import ServerOptions

    try:
        options = ServerOptions(**given, tenants=load_tenants(tenants))
        app = open_app(agents, options)
    except ValueError as error:
        raise UsageFailure(str(error)) from error
    with reporting(str(options.store)):
        run_app(
            app,
            options,
            access_log=command.log_level == "debug",
            on_listening=lambda address: print_line(banner_of(app, agents, options, address)),
        )


def _reload(words: list[str], targets: list[str], tenants: list[str]) -> int:
    from parley.cli.loading import folders, parse_tenant
    from parley.cli.reload import serve_and_watch

    locations = [parse_tenant(each)[1].location for each in tenants]
    arguments = ["serve", *[word for word in words if word != "--reload"]]
    return serve_and_watch(arguments, folders([*targets, *locations]))
