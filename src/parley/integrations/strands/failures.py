"""Errors of Strands as what a caller may see of them."""

from __future__ import annotations

from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    ModelThrottledException,
    StructuredOutputException,
)

_TOLD = {
    ModelThrottledException: "The language model is busy; try again later.",
    MaxTokensReachedException: "The language model's reply reached its longest length.",
    ContextWindowOverflowException: "The conversation is longer than the model can read.",
    StructuredOutputException: "The reply of the language model could not be used.",
}


def told(error: BaseException) -> str:
    """Return what a caller may know of an error of Strands, empty for other errors."""
    while isinstance(error, EventLoopException) and error.original_exception is not None:
        error = error.original_exception
    return next((said for kind, said in _TOLD.items() if isinstance(error, kind)), "")
