"""Options of ``parley serve`` that decide who reaches agents, and whether encrypted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from parley.cli.output.failures import UsageFailure

_PANEL = "Who may call"

TlsCert = Annotated[
    str,
    typer.Option(
        help="Certificate for HTTPS, with its chain (PEM); read again when it changes. gRPC has it "
        "too, unless it has its own.",
        envvar="PARLEY_TLS_CERT",
        metavar="FILE",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

TlsKey = Annotated[
    str,
    typer.Option(
        help="Its private key (PEM). The passphrase of an encrypted one is in "
        "PARLEY_TLS_KEY_PASSWORD.",
        envvar="PARLEY_TLS_KEY",
        metavar="FILE",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

TlsClientCa = Annotated[
    str,
    typer.Option(
        help="Authorities of callers' certificates (PEM): callers need one, unless agents accept "
        "other credentials too.",
        envvar="PARLEY_TLS_CLIENT_CA",
        metavar="FILE",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

NoHsts = Annotated[
    bool,
    typer.Option(
        "--no-hsts",
        help="Do not tell browsers to use HTTPS alone for this host.",
        envvar="PARLEY_NO_HSTS",
        rich_help_panel=_PANEL,
    ),
]

AllowAnonymous = Annotated[
    bool,
    typer.Option(
        "--allow-anonymous",
        help="Let everyone call agents that require no credentials, from other machines too.",
        envvar="PARLEY_ALLOW_ANONYMOUS",
        rich_help_panel=_PANEL,
    ),
]

Restrict = Annotated[
    list[str] | None,
    typer.Option(
        help="Who may see an endpoint (card, docs, health, agents or callbacks): authenticated "
        "callers, or networks, as in docs=authenticated or health=10.0.0.0/8,127.0.0.1; repeat it.",
        envvar="PARLEY_RESTRICT",
        metavar="ENDPOINT=WHO",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


def read_restrict(given: Sequence[str]) -> dict[str, str | tuple[str, ...]]:
    """Return the setting ``restrict`` of a server. Raises ``UsageFailure``."""
    found: dict[str, str | tuple[str, ...]] = {}
    for each in given:
        endpoint, equals, value = each.partition("=")
        if not equals or not value:
            raise UsageFailure(
                f"--restrict: {each!r} is not ENDPOINT=WHO", hint="--restrict docs=authenticated"
            )
        if endpoint in found:
            raise UsageFailure(
                f"--restrict: {endpoint} is given twice; list its networks with commas"
            )
        found[endpoint] = value if value == "authenticated" else tuple(value.split(","))
    return found


def access_flags(
    *,
    cert: str,
    key: str,
    client_ca: str,
    no_hsts: bool,
    allow_anonymous: bool,
    restrict: Sequence[str],
) -> list[str]:
    """Return the options as they are given to another process."""
    flags = [
        f"--{name}={value}"
        for name, value in (("tls-cert", cert), ("tls-key", key), ("tls-client-ca", client_ca))
        if value
    ]
    flags += ["--no-hsts"] if no_hsts else []
    flags += ["--allow-anonymous"] if allow_anonymous else []
    return flags + [f"--restrict={each}" for each in restrict]
