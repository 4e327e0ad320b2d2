"""The ``parley`` command: serves agents, calls agents."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with its status."""
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        from parley.cli.output.streams import print_line
        from parley.model.distribution import install_command

        print_line(
            f"error: the parley command needs its extra; install it with: {install_command('cli')}",
            err=True,
        )
        sys.exit(2)
    from parley.cli.app import run
    from parley.cli.output.streams import log_python_errors

    log_python_errors()
    # gRPC's C library would print texts of peers, such as a GOAWAY message, to stderr unescaped.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))
