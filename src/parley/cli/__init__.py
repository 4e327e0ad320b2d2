"""The ``parley`` command: serve agents, call agents."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command, and end the process with its exit status."""
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        print(
            "error: the parley command needs its extra; install it with: pip install 'parley[cli]'",
            file=sys.stderr,
        )
        sys.exit(2)
    from parley.cli.app import run

    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))
