"""Errors of a run as what a caller may see of them."""

from __future__ import annotations

from collections.abc import Callable

import agents
import openai
from agents.exceptions import ModelRefusalError, ModelTimeoutError

from parley.agent.turn import Turn

Refusal = Callable[[Exception], str]


def failed(turn: Turn, error: Exception, refusal: Refusal | None) -> None:
    """End the turn: as REJECTED for a guardrail, as FAILED if callers may know why.

    Does nothing for errors of the agent's own code.
    """
    why = _tripped(error)
    if why:
        turn.log.warning("%s", error)
        turn.reject(why if refusal is None else refusal(error))
    if isinstance(error, ModelRefusalError):
        turn.reject(f"The model refuses: {error.refusal}")
    reason = _reason(error)
    if not reason:
        return
    turn.log.warning("the run failed: %s", error, exc_info=error)
    turn.fail(reason)


def _tripped(error: Exception) -> str:
    """Return the message of a tripwire, empty for other errors."""
    if isinstance(error, agents.InputGuardrailTripwireTriggered):
        return f"The guardrail {error.guardrail_result.guardrail.get_name()} refuses the request."
    if isinstance(error, agents.OutputGuardrailTripwireTriggered):
        return f"The guardrail {error.guardrail_result.guardrail.get_name()} refuses the answer."
    if isinstance(
        error,
        (agents.ToolInputGuardrailTripwireTriggered, agents.ToolOutputGuardrailTripwireTriggered),
    ):
        return f"The guardrail {error.guardrail.get_name()} refuses a call of a tool."
    return ""


def _reason(error: Exception) -> str:
    """Return what a caller may know of a failure, empty for one of the agent's own code."""
    if isinstance(error, agents.MaxTurnsExceeded):
        return "The agent did not come to an end within its limit of model calls."
    if isinstance(error, ModelTimeoutError | openai.APITimeoutError):
        return "The model did not answer in time."
    if isinstance(error, agents.ModelBehaviorError):
        return "The reply of the model could not be used."
    if isinstance(error, openai.APIStatusError):
        return f"The model could not be asked: it answered with status {error.status_code}."
    if isinstance(error, openai.APIConnectionError):
        return "The model could not be reached."
    return ""
