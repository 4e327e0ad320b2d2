"""Why a registry refuses what a caller asks. Each message says what would be right."""

from __future__ import annotations


class Refused(Exception):
    """A request is refused. ``status`` is that of HTTP, ``retry_after`` is in seconds."""

    status = 400

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotYours(Refused):
    """It belongs to another caller, or needs a proof that the caller has not given."""

    status = 403


class NotThere(Refused):
    """There is no such thing, or the caller may not know of it."""

    status = 404


class InTheWay(Refused):
    """The state of things does not allow it."""

    status = 409


class TooMuch(Refused):
    """The caller asks for more than it may have; others are not affected."""

    status = 429
