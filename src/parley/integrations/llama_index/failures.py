"""Errors of LlamaIndex as what a caller may see of them."""

from __future__ import annotations

from workflows.errors import WorkflowTimeoutError

from parley.agent.turn import Turn
from parley.integrations.serving import fail_with
from parley.llm.model_failures import model_failure


def failed(turn: Turn, error: Exception) -> None:
    """End the turn as FAILED if callers may know why; do nothing for errors of the agent's code."""
    if isinstance(error, WorkflowTimeoutError):
        fail_with(turn, "The workflow did not come to an end in time.", error)
    if reason := model_failure(error):
        fail_with(turn, reason, error)
