"""Errors of models as what a caller may see of them."""

from __future__ import annotations

from typing import NoReturn

from parley.agent.turn import Turn

CLIENTS = (
    "openai", "anthropic", "httpx", "google", "botocore", "litellm",
    "ollama", "mistralai", "groq", "cohere", "writerai", "llama_api_client",
)  # fmt: skip
"""The packages whose errors are those of a model that was asked."""


def model_failure(error: BaseException) -> str:
    """Return what a caller may know of a failed request to a model, empty for other errors.

    The answer's text is left out: it may name addresses and keys.
    """
    if type(error).__module__.partition(".")[0] not in CLIENTS:
        return ""  # also with a status: tools ask others than the model
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and not isinstance(status, bool):
        return f"The model could not be asked: it answered with status {status}."
    name = type(error).__name__
    if "Timeout" in name:
        return "The model did not answer in time."
    if "Connect" in name:
        return "The model could not be reached."
    return "The model could not be asked."


def fail_with(turn: Turn, reason: str, error: BaseException) -> NoReturn:
    """End the turn as FAILED with a reason that callers may know; the log has the error."""
    turn.log.warning("the run failed: %s", error, exc_info=error)
    turn.fail(reason)
