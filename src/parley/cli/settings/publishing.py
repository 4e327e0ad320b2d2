"""Options of ``parley serve`` and ``parley catalog`` about whose agents these are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

PUBLISHER_VARIABLE = "PARLEY_PUBLISHER"
NAMESPACE_VARIABLE = "PARLEY_NAMESPACE"

_PANEL = "Catalog"

PUBLISHER_HELP = (
    "A domain of yours, such as example.com: the server publishes a catalog of its agents, as "
    "urn:air:example.com:... (agent.localhost on one machine)."
)
NAMESPACE_HELP = "What is between the publisher and the name in identifiers.  [default: agent]"

Publisher = Annotated[
    str,
    typer.Option(
        help=PUBLISHER_HELP,
        envvar=PUBLISHER_VARIABLE,
        metavar="DOMAIN",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

Namespace = Annotated[
    str,
    typer.Option(
        help=NAMESPACE_HELP,
        envvar=NAMESPACE_VARIABLE,
        metavar="NAME",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

Unlisted = Annotated[
    list[str] | None,
    typer.Option(
        help="The path of an agent, or a tenant, that the catalog leaves out; repeat it.",
        metavar="PATH|TENANT",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


Registry = Annotated[
    str,
    typer.Option(
        help="A registry in which the server publishes its catalog, and sends heartbeats; its "
        "credentials are PARLEY_TOKEN or PARLEY_API_KEY with PARLEY_AUTH_ORIGIN.",
        metavar="URL",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


def catalog_flags(
    publisher: str, namespace: str, unlisted: Sequence[str] | None, registry: str = ""
) -> list[str]:
    """Return the options as they are given to another process."""
    flags = [f"--publisher={publisher}"] if publisher else []
    flags += [f"--namespace={namespace}"] if namespace else []
    flags += [f"--registry={registry}"] if registry else []
    return flags + [f"--unlisted={each}" for each in unlisted or ()]
