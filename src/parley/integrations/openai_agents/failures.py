"""Errors of the SDK as what a caller may see of them."""

from __future__ import annotations

from collections.abc import Callable

import agents
from agents.exceptions import ModelTimeoutError

from parley.agent.turn import Turn

Refusal = Callable[[Exception], str]

_TRIPWIRES = {
    agents.InputGuardrailTripwireTriggered: "the request",
    agents.OutputGuardrailTripwireTriggered: "the answer",
    agents.ToolInputGuardrailTripwireTriggered: "a call of a tool",
    agents.ToolOutputGuardrailTripwireTriggered: "a call of a tool",
}


def reject_tripped(turn: Turn, error: Exception, refusal: Refusal | None) -> None:
    """End the turn as REJECTED for a tripwire of a guardrail; do nothing for other errors."""
    for kind, what in _TRIPWIRES.items():
        if isinstance(error, kind):
            guardrail = getattr(error, "guardrail_result", error).guardrail
            turn.log.warning("%s", error)
            why = f"The guardrail {guardrail.get_name()} refuses {what}."
            turn.reject(why if refusal is None else refusal(error))


def told(error: Exception) -> str:
    """Return what a caller may know of an error of the SDK, empty for other errors."""
    if isinstance(error, agents.MaxTurnsExceeded):
        return "The agent reached its most model requests (max_turns) without an answer."
    if isinstance(error, ModelTimeoutError):
        return "The language model did not answer in time; try again later."
    if isinstance(error, agents.ModelBehaviorError):
        return "The reply of the language model could not be used."
    return ""
