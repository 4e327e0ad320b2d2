"""The boundary of every command: an exception becomes a report and an exit status."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from parley.cli.output.failures import BROKEN_PIPE, INTERRUPTED, CommandFailure
from parley.cli.output.streams import Output


def exit_status_of(output: Output, action: Callable[[], int | None]) -> int:
    """Run ``action`` and return its exit status, or that of its failure."""
    try:
        status = action() or 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone; the interpreter must find nothing to flush at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except CommandFailure as failure:
        if failure.__cause__ is not None:
            output.debug(traceback.format_exc())
        return _report(output, failure)
    except Exception as error:
        output.debug(traceback.format_exc())
        return _report(
            output,
            CommandFailure(
                "A2ACLI_ERR_INTERNAL",
                f"parley failed: {type(error).__name__}: {error}",
                hint="the same command with --debug shows where; please report it",
            ),
        )


def _report(output: Output, failure: CommandFailure) -> int:
    try:
        output.failure(failure)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return failure.exit_status
