"""The ``parley`` command: serve agents, call agents."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command, and end the process with its exit status."""
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        from parley.cli.output.streams import say
        from parley.model.distribution import install_command

        say(
            f"error: the parley command needs its extra; install it with: {install_command('cli')}",
            aside=True,
        )
        sys.exit(2)
    from parley.cli.app import run
    from parley.cli.output.streams import listen_to_python

    listen_to_python()
    # Its C library writes what peers say, a GOAWAY's words, to stderr: past Python, as it came.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))
