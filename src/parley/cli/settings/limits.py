"""Options of ``parley serve`` that say how much callers may take."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

VARIABLE = "PARLEY_LIMITS"
_PANEL = "How much"

Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help='How much callers may take of all agents together, such as "60/minute per caller", '
        '"20 streams per caller" (in each process) or "artifact 10 MB"; repeat it.  '
        "[env var: PARLEY_LIMITS, with semicolons between them]",
        metavar="LIMIT",
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]

Usage = Annotated[
    bool,
    typer.Option(
        "--usage",
        help="Count what callers use, for parley usage.",
        envvar="PARLEY_USAGE",
        rich_help_panel=_PANEL,
    ),
]


def read_limits(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return the limits of the options, else those of the environment."""
    if given:
        return tuple(given)
    parts = [part.strip() for part in os.environ.get(VARIABLE, "").split(";")]
    return tuple([part for part in parts if part])


def limit_flags(limits: Sequence[str] | None, *, usage: bool) -> list[str]:
    """Return the options as they are given to another process."""
    return [f"--limit={each}" for each in limits or ()] + (["--usage"] if usage else [])
