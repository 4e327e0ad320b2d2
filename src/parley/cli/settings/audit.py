"""Options of ``parley serve`` for the audit."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from parley.cli.output.failures import UsageFailure
from parley.cli.settings.durations import parse_span

AuditTargets = Annotated[
    list[str] | None,
    typer.Option(
        envvar="PARLEY_AUDIT",
        help="Forward the audit: syslog://HOST, syslog+tcp://HOST, syslog+tls://HOST, "
        "otlp+http://HOST:4318; may be repeated.",
        metavar="URL",
        show_default=False,
    ),
]
AuditKept = Annotated[
    str,
    typer.Option(
        help="How long lines of the audit are kept, such as 400d.  [default: for ever]",
        metavar="SPAN",
        show_default=False,
    ),
]


def audit_kept(text: str) -> timedelta | None:
    """Return how long the audit is kept. Raises ``UsageFailure``."""
    try:
        return timedelta(seconds=parse_span(text)) if text else None
    except (ValueError, OverflowError):
        raise UsageFailure(f"--audit-retention: {text!r} is not a span such as 400d") from None
