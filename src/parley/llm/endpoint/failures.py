"""What went wrong at an endpoint: whether to try again, and how to say it without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from parley.llm.model import ModelFailed, ModelRequest, ReplyBroken

QUOTED = 300
"""How many characters of an endpoint's own words an error quotes."""

_OPTIONAL = ("stream_options", "response_format")


class NamedEndpoint(Protocol):
    """What an error says about the endpoint."""

    name: str

    @property
    def place(self) -> str:
        """The address, without secrets."""
        ...

    def without_secrets(self, text: str) -> str:
        """Return a text without the key."""
        ...


def is_temporary(error: Exception) -> bool:
    """Return whether a request may succeed when it is sent again."""
    import openai

    if isinstance(error, openai.APIStatusError):
        return error.status_code in (408, 409, 425, 429) or error.status_code >= 500
    is_broken = isinstance(error, openai.APIConnectionError | ReplyBroken)
    return is_broken or _is_broken(error)


def _is_broken(error: Exception) -> bool:
    """Return whether a stream broke, or its endpoint said in it that something failed."""
    import httpx2
    import openai

    return isinstance(error, httpx2.TransportError) or type(error) is openai.APIError


def later(error: Exception) -> float | None:
    """Return how many seconds the endpoint asks to wait (``Retry-After``), ``None`` for no word."""
    response = getattr(error, "response", None)
    try:
        seconds = float(response.headers.get("retry-after", ""))  # type: ignore[union-attr]
    except (AttributeError, ValueError):
        return None
    return seconds if 0 <= seconds < float("inf") else None


def unsupported(error: Exception, sent: Mapping[str, Any]) -> str | None:
    """Return the optional member of a request that the endpoint refuses, ``None`` for none."""
    import openai

    if not isinstance(error, openai.APIStatusError) or error.status_code not in (400, 404, 422):
        return None
    said = _words(error)
    if "max_tokens" in sent and "max_completion_tokens" in said:
        return "max_tokens"
    return next((option for option in _OPTIONAL if option in sent and option in said), None)


def failure_of(error: Exception, endpoint: NamedEndpoint, request: ModelRequest) -> ModelFailed:
    """Return an error as one that says what was wrong, what would be right, and no secrets.

    Raise it ``from None``: the words of the endpoint may quote the key.
    """
    failure = _failure(error, endpoint, request)
    kind = type(failure)
    return kind(endpoint.without_secrets(str(failure)), status=failure.status)


def _failure(error: Exception, endpoint: NamedEndpoint, request: ModelRequest) -> ModelFailed:
    import openai

    if isinstance(error, ModelFailed):
        return error
    place, model = endpoint.place, request.model or endpoint.name
    if isinstance(error, openai.APITimeoutError):
        return ModelFailed(f"{place} was silent for longer than the timeout; give a longer one")
    if isinstance(error, openai.APIConnectionError):
        hint = "; is `ollama serve` running?" if place.endswith(":11434/v1") else ""
        cause = type(error.__cause__).__name__ if error.__cause__ is not None else "no connection"
        return ModelFailed(f"cannot reach the model's endpoint {place} ({cause}){hint}")
    if not isinstance(error, openai.APIStatusError):
        words = f": {_quoted(str(error))}" if isinstance(error, openai.APIError) else ""
        return ReplyBroken(f"the reply of {place} broke off ({type(error).__name__}){words}")
    status = error.status_code
    if status in (401, 403):  # endpoints quote the key in their own words
        said = f"{place} refuses the key ({status}); set OPENAI_API_KEY, or give api_key="
    elif 300 <= status < 400:
        said = f"{place} redirects ({status}), which is not followed; give the address it leads to"
    elif status == 404:
        said = (
            f"{place} does not know the model {model!r}, or is not the address of the API (it "
            f"usually ends in /v1); with Ollama: ollama pull {model}. It says: {_quoted_of(error)}"
        )
    elif status == 429:
        said = f"{place} is busy, or the quota is used up (429): {_quoted_of(error)}"
    else:
        said = f"{place} answered {status}: {_quoted_of(error)}"
    return ModelFailed(said, status=status)


def _words(error: Any) -> str:
    body = getattr(error, "body", None)
    return f"{getattr(error, 'message', '')} {body}"


def _quoted_of(error: Any) -> str:
    body = getattr(error, "body", None)
    said = body.get("message") if isinstance(body, Mapping) else None
    return _quoted(said if isinstance(said, str) else str(getattr(error, "message", "")))


def _quoted(text: str) -> str:
    return " ".join(text.split())[:QUOTED] or "nothing"
