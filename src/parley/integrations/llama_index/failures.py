"""Errors of LlamaIndex as what a caller may see of them."""

from __future__ import annotations

from workflows.errors import WorkflowTimeoutError

from parley.agent.turn import Turn

_CLIENTS = ("openai", "anthropic", "httpx", "google", "botocore")


def failed(turn: Turn, error: Exception) -> None:
    """End the turn as FAILED if callers may know why; do nothing for errors of the agent's code."""
    reason = ""
    if isinstance(error, WorkflowTimeoutError):
        reason = "The workflow did not come to an end in time."
    elif isinstance(status := getattr(error, "status_code", None), int):
        reason = f"The model could not be asked: it answered with status {status}."
    elif type(error).__module__.partition(".")[0] in _CLIENTS:
        reason = "The model could not be asked."
    if not reason:
        return
    turn.log.warning("the run failed: %s", error, exc_info=error)
    turn.fail(reason)
