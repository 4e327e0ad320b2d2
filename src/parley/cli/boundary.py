"""The boundary of every command: an exception becomes a report and an exit status."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from parley.cli.output.failures import BROKEN_PIPE, INTERRUPTED, CommandFailure, OutputLost
from parley.cli.output.streams import Output, give_up


def exit_status_of(output: Output, action: Callable[[], int | None]) -> int:
    """Run ``action`` and return its exit status, or that of its failure."""
    try:
        status = action() or 0
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        give_up(sys.stdout)
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


def leave_stdout() -> None:
    """Write what is kept back, or drop it: the interpreter would complain of it once more."""
    try:
        sys.stdout.flush()
    except (OutputLost, OSError):
        give_up(sys.stdout)


def _report(output: Output, failure: CommandFailure) -> int:
    if isinstance(failure, OutputLost):
        return _report_loss(output, failure)
    try:
        output.failure(failure)
    except BrokenPipeError:
        give_up(sys.stdout)
    except OutputLost as lost:
        _report_loss(output, lost)
        return _report_loss(output, failure)
    return failure.exit_status


def _report_loss(output: Output, failure: CommandFailure) -> int:
    """Report a failure on stderr, whatever the format is: stdout cannot be written."""
    give_up(sys.stdout)
    Output(is_json=False, redact=output.redact).failure(failure)
    return failure.exit_status
