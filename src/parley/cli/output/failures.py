"""What goes wrong in the command itself, and the exit status that says so.

A failure that the protocol names keeps the protocol's name; what happens before or outside a
request has a code of its own (command-line specification, Appendix D). The exit status says only
whether the command did its job, never how the task turned out (§6.6, §11.6).
"""

from __future__ import annotations

from parley.model.errors import A2AError

FAILED = 1
USAGE = 2
UNREACHABLE = 3
UNAUTHENTICATED = 4
TIMED_OUT = 5
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_STATUSES: dict[str, int] = {
    "A2ACLI_ERR_USAGE": USAGE,
    "A2ACLI_ERR_CARD_NOT_FOUND": UNREACHABLE,
    "A2ACLI_ERR_CARD_INVALID": FAILED,
    "A2ACLI_ERR_UNREACHABLE": UNREACHABLE,
    "A2ACLI_ERR_CREDENTIALS_MISSING": UNAUTHENTICATED,
    "A2ACLI_ERR_AUTH_FAILED": UNAUTHENTICATED,
    "A2ACLI_ERR_TIMEOUT": TIMED_OUT,
    "A2ACLI_ERR_INTERNAL": FAILED,
}


class CommandFailure(Exception):
    """A command that could not do its job. ``code`` decides the exit status."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        hint: str | None = None,
        a2a_code: int | str | None = None,
    ) -> None:
        self.code = code
        self.message = message
        self.hint = hint
        self.a2a_code = a2a_code
        super().__init__(message)

    @property
    def exit_status(self) -> int:
        """What the process ends with: 1 for the errors that the protocol names."""
        return EXIT_STATUSES.get(self.code, FAILED)

    def envelope(self, message: str, hint: str | None) -> dict[str, dict[str, str | int | None]]:
        """Return the error object (Appendix B), with its words as they may be shown."""
        return {
            "error": {
                "code": self.code,
                "message": message,
                "hint": hint,
                "a2aCode": self.a2a_code,
            }
        }


class UsageFailure(CommandFailure):
    """The command line, or a configured value, is not right."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__("A2ACLI_ERR_USAGE", message, hint=hint)


def protocol_failure(error: A2AError, *, hint: str | None = None) -> CommandFailure:
    """Return ``error`` under the name and the code that the protocol gives it (§11.4)."""
    return CommandFailure(type(error).__name__, error.message, hint=hint, a2a_code=error.code)
