"""Options of ``parley serve`` for where requests may go that others cause."""

from __future__ import annotations

from typing import Annotated

import typer

PrivateAgents = Annotated[
    bool,
    typer.Option(
        "--allow-private-agents",
        help="Let agents call others in private networks and on this machine. [default: "
        "on this machine, if nobody else reaches the server]",
    ),
]
EgressAllow = Annotated[
    list[str] | None,
    typer.Option(
        help="A host (*.example.com for all below), an address or a network, with a port "
        "or without, that requests may go to which others cause; repeat it. "
        "[env: PARLEY_EGRESS_ALLOW]",
        metavar="PLACE",
        show_default=False,
    ),
]
EgressDeny = Annotated[
    list[str] | None,
    typer.Option(
        help="One that they must not go to, whatever allows it; repeat it. "
        "[env: PARLEY_EGRESS_DENY]",
        metavar="PLACE",
        show_default=False,
    ),
]
EgressOnly = Annotated[
    bool,
    typer.Option(
        "--egress-only-allowed",
        help="Send such requests nowhere but where --egress-allow says, not to the "
        "public internet. [env: PARLEY_EGRESS_ONLY_ALLOWED]",
    ),
]
