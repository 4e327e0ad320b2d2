"""The failures of a command, and their exit statuses.

An error of the protocol keeps its name; an error before or outside a request has its own code
(command-line specification, Appendix D). The exit status shows only whether the command worked,
never the outcome of the task (§6.6, §11.6).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from parley.model.errors import A2AError

FAILED = 1
"""Any other failure, or a check that was not passed.

Read the message and its hint; ``--debug`` shows the exchange.
"""
USAGE = 2
"""The command line or a configured value is wrong. Nothing was sent.

See ``parley COMMAND --help`` and ``parley config show``.
"""
UNREACHABLE = 3
"""The agent, its card, a registry or a catalog cannot be reached.

Check the address, and whether the server runs.
"""
UNAUTHENTICATED = 4
"""Credentials are missing or rejected.

Log in with ``parley auth login``, or set ``A2ACLI_BEARER`` or ``A2ACLI_API_KEY``.
"""
TIMED_OUT = 5
"""``--timeout`` is over; the task continues.

Wait for it with ``parley task get --wait``.
"""
INTERRUPTED = 130
"""Ctrl-C stopped the command; the task continues.

Follow it with the id that was printed.
"""
BROKEN_PIPE = 141
"""The reader of the output closed it, as ``head`` does.

Nothing: the command has stopped.
"""

EXIT_STATUSES: dict[str, int] = {
    "A2ACLI_ERR_USAGE": USAGE,
    "A2ACLI_ERR_CARD_NOT_FOUND": UNREACHABLE,
    "A2ACLI_ERR_CARD_INVALID": FAILED,
    "A2ACLI_ERR_UNREACHABLE": UNREACHABLE,
    "A2ACLI_ERR_CREDENTIALS_MISSING": UNAUTHENTICATED,
    "A2ACLI_ERR_AUTH_FAILED": UNAUTHENTICATED,
    "A2ACLI_ERR_TIMEOUT": TIMED_OUT,
    "A2ACLI_ERR_INTERNAL": FAILED,
    "PARLEY_ERR_CATALOG_NOT_FOUND": UNREACHABLE,
}


class CommandFailure(Exception):
    """A failed command. ``code`` determines the exit status."""

    def __init__(
        self, code: str, message: str, *, hint: str | None = None, a2a_code: int | str | None = None
    ) -> None:
        self.code = code
        self.message = message
        self.hint = hint
        self.a2a_code = a2a_code
        super().__init__(message)

    @property
    def exit_status(self) -> int:
        """The exit status of the process: 1 for errors of the protocol."""
        return EXIT_STATUSES.get(self.code, FAILED)

    def envelope(self, message: str, hint: str | None) -> dict[str, dict[str, str | int | None]]:
        """Return the error object (Appendix B), with a redacted message and hint."""
        return {
            "error": {"code": self.code, "message": message, "hint": hint, "a2aCode": self.a2a_code}
        }


class UsageFailure(CommandFailure):
    """An invalid command line or configured value."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("A2ACLI_ERR_USAGE", message, hint=hint)


@contextmanager
def wrong_usage(before: str = "") -> Iterator[None]:
    """Report a ``ValueError`` as wrong usage, with the prefix ``before``."""
    try:
        yield
    except ValueError as error:
        raise UsageFailure(f"{before}{error}") from error


class OutputLost(CommandFailure):
    """Stdout cannot be written: the disk is full, for instance."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            "PARLEY_ERR_OUTPUT",
            f"the output cannot be written: {reason}; the command may have taken effect",
        )


def protocol_failure(error: A2AError, *, hint: str | None = None) -> CommandFailure:
    """Return ``error`` with the protocol's name and code for it (§11.4)."""
    return CommandFailure(type(error).__name__, error.message, hint=hint, a2a_code=error.code)
