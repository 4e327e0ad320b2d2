"""Options of ``parley serve`` that decide who reaches agents, and whether encrypted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from parley.cli.output.failures import UsageFailure

if TYPE_CHECKING:
    from parley.push.proofs.proofs import WebhookCertificate

_PANEL = "Who may call"
_SENDING = "What is sent"

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

SigningKeysFile = Annotated[
    str,
    typer.Option(
        "--signing-keys",
        help="The private keys that sign cards and webhooks (parley keys generate); read again "
        "when they change. Without it PARLEY_SIGNING_KEYS_FILE names the file, or "
        "PARLEY_SIGNING_KEYS has the keys, as JSON.",
        metavar="FILE",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

EnvelopeKeysFile = Annotated[
    str,
    typer.Option(
        "--envelope-keys",
        help="The keys of those who sign messages of the envelope protocol (parley keys share); "
        "read again when they change.",
        envvar="PARLEY_ENVELOPE_KEYS",
        metavar="FILE",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

WebhookCert = Annotated[
    str,
    typer.Option(
        help="Certificate to show to webhooks that ask for it (MutualTLS), with its chain (PEM); "
        "read again when it changes.",
        envvar="PARLEY_WEBHOOK_CERT",
        metavar="FILE",
        rich_help_panel=_SENDING,
        show_default=False,
    ),
]

WebhookKey = Annotated[
    str,
    typer.Option(
        help="Its private key (PEM), not encrypted; by default in the file of --webhook-cert.",
        envvar="PARLEY_WEBHOOK_KEY",
        metavar="FILE",
        rich_help_panel=_SENDING,
        show_default=False,
    ),
]

WebhookCa = Annotated[
    str,
    typer.Option(
        help="Authorities of the certificates of these webhooks (PEM), in place of the system's.",
        envvar="PARLEY_WEBHOOK_CA",
        metavar="FILE",
        rich_help_panel=_SENDING,
        show_default=False,
    ),
]

WebhookChallenge = Annotated[
    bool,
    typer.Option(
        "--webhook-challenge",
        help="Send a webhook nothing before its receiver has answered a challenge.",
        envvar="PARLEY_WEBHOOK_CHALLENGE",
        rich_help_panel=_SENDING,
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
        help="Who may see an endpoint (card, docs, health, agents, callbacks or jwks): "
        "authenticated callers, or networks, as in docs=authenticated or "
        "health=10.0.0.0/8,127.0.0.1; repeat it.",
        envvar="PARLEY_RESTRICT",
        metavar="ENDPOINT=WHO",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


_WEBHOOK_FLAGS = ("webhook-cert", "webhook-key", "webhook-ca")


def read_webhook_certificate(files: Sequence[str]) -> WebhookCertificate | None:
    """Return the certificate for webhooks from its file, its key's and its authorities'.

    Raises ``UsageFailure`` for a key or authorities without a certificate.
    """
    if not any(files):
        return None
    if not files[0]:
        raise UsageFailure("--webhook-key and --webhook-ca go with a certificate: --webhook-cert")
    from parley.push.proofs.proofs import WebhookCertificate

    cert, key, ca = files
    return WebhookCertificate(cert, key or None, ca or None)


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
    signing_keys: str = "",
    envelope_keys: str = "",
    webhook_files: Sequence[str] = (),
    webhook_challenge: bool = False,
) -> list[str]:
    """Return the options as they are given to another process."""
    flags = [
        f"--{name}={value}"
        for name, value in (
            ("tls-cert", cert),
            ("tls-key", key),
            ("tls-client-ca", client_ca),
            ("signing-keys", signing_keys),
            ("envelope-keys", envelope_keys),
            *zip(_WEBHOOK_FLAGS, webhook_files, strict=False),
        )
        if value
    ]
    flags += ["--webhook-challenge"] if webhook_challenge else []
    flags += ["--no-hsts"] if no_hsts else []
    flags += ["--allow-anonymous"] if allow_anonymous else []
    return flags + [f"--restrict={each}" for each in restrict]
