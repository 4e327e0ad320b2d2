"""Refusals of a registry that A2A has no error for. Each message says what would be right."""

from __future__ import annotations

from parley.model.errors import InvalidParamsError


class NotFound(InvalidParamsError):
    """There is no such thing, or the caller may not know of it."""

    http_status = 404


class Conflict(InvalidParamsError):
    """The state of things does not allow it."""

    http_status = 409
