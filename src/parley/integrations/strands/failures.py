"""Errors and stop reasons of Strands as what a caller may see of them."""

from __future__ import annotations

from strands.types.exceptions import (
    ContextWindowOverflowException,
    EventLoopException,
    MaxTokensReachedException,
    ModelThrottledException,
    StructuredOutputException,
)

from parley.agent.turn import Turn
from parley.integrations.serving import fail_with
from parley.llm.model_failures import model_failure


def failed(turn: Turn, error: Exception) -> None:
    """End the turn as FAILED if callers may know why; do nothing for errors of the agent's code."""
    cause: BaseException = error
    while isinstance(cause, EventLoopException) and cause.original_exception is not None:
        cause = cause.original_exception
    if reason := _reason(cause):
        fail_with(turn, reason, error)


def check_end(turn: Turn, stop_reason: str, said: str) -> None:
    """End the turn if a run stopped for a reason that is no success."""
    if stop_reason in ("guardrail_intervened", "content_filtered"):
        turn.reject(said or "A guardrail refuses this.")
    if stop_reason == "cancelled":
        turn.fail("The run was cancelled by the agent itself.")
    if stop_reason.startswith("limit_"):
        turn.fail("The agent did not come to an end within its limits.")


def _reason(error: BaseException) -> str:
    if isinstance(error, ModelThrottledException):
        return "The model takes no more requests for now."
    if isinstance(error, MaxTokensReachedException):
        return "The model's reply was longer than it may be."
    if isinstance(error, ContextWindowOverflowException):
        return "The conversation is longer than the model can read."
    if isinstance(error, StructuredOutputException):
        return "The reply of the model could not be used."
    return model_failure(error)
