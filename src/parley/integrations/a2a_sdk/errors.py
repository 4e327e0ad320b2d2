"""Errors of the SDK as those of the model: both are named as in the specification."""

from __future__ import annotations

from parley.model import errors
from parley.model.errors import A2AError


def error_named(name: str, message: str) -> A2AError:
    """Return the error with a name of the specification; an internal error for any other name."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, A2AError) and kind is not A2AError):
        kind = errors.InternalError
    return kind(message or name)
