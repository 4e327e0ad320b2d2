"""Options of the commands that ask a registry."""

from __future__ import annotations

from typing import Any

import typer

ASKING = (
    "insecure",
    "ca_file",
    "client_cert",
    "client_key",
    "proxy",
    "trust_origin",
    "timeout",
    "output",
    "verbose",
    "debug",
    "config",
)
"""The settings of commands that ask a registry."""

PANEL = "Registry"

REGISTRY_EXITS = """\b
Exit status:
  0  done      1  failed, or not found      2  wrong usage
  3  registry out of reach                  4  credentials missing or refused
  5  --timeout ran out"""

SOURCES = """\b
The registry is what --registry or PARLEY_REGISTRY names: its address, a domain
or the address of a catalog that names one, or a catalog file. There is no
default. Its credentials are --bearer or --api-key, a login (parley auth login),
or PARLEY_TOKEN with PARLEY_AUTH_ORIGIN; those of agents never go there."""


def registry_option() -> Any:
    """Return the option that names the registry."""
    return typer.Option(
        "",
        "--registry",
        envvar="PARLEY_REGISTRY",
        metavar="URL|DOMAIN|FILE",
        help="The registry: its address, a domain, or a catalog file. PARLEY_REGISTRY names it "
        "too.",
        show_default=False,
        show_envvar=False,
        rich_help_panel=PANEL,
    )


def bearer_option() -> Any:
    """Return the option with a token for the registry."""
    return typer.Option(
        "",
        "--bearer",
        envvar="PARLEY_REGISTRY_BEARER",
        metavar="TOKEN",
        help="A bearer token for the registry. Better in PARLEY_REGISTRY_BEARER.",
        show_default=False,
        show_envvar=False,
        rich_help_panel=PANEL,
    )


def api_key_option() -> Any:
    """Return the option with an API key for the registry."""
    return typer.Option(
        "",
        "--api-key",
        envvar="PARLEY_REGISTRY_API_KEY",
        metavar="KEY",
        help="An API key for the registry. Better in PARLEY_REGISTRY_API_KEY.",
        show_default=False,
        show_envvar=False,
        rich_help_panel=PANEL,
    )
