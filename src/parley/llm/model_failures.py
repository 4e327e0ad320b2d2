"""What a caller may know of a request to a model that failed: no address, no key, no setting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

BROKE_OFF = (
    "The reply of the language model broke off each time that it was asked for; try again later."
)

MAX_CAUSES = 16
"""How many errors are looked at: causes, and members of groups."""


def told_of(status: int, kind: str = "") -> str:
    """Return what a caller is told of a status of HTTP, 0 without an answer.

    ``kind`` has the name of the error's class.
    """
    if status in (401, 403):
        return "The language model does not accept this agent's credentials."
    if status == 429 or "RateLimit" in kind or "Throttl" in kind:
        return "The language model is busy; try again later."
    if status >= 500:
        return f"The language model failed with status {status}; try again later."
    if status:
        return f"The language model refused the request with status {status}."
    if "Timeout" in kind:
        return "The language model did not answer in time; try again later."
    return "The language model cannot be reached now; try again later."


def model_failure(error: BaseException, failures: Iterable[BaseException]) -> str:
    """Return what a caller may know of an error of a run that a request to a model led to.

    ``failures`` are the errors of the run's requests: one of them is the error, its cause, or a
    member of its group. Empty for other errors.
    """
    known = {id(each) for each in failures}
    failed = next((each for each in causes(error) if id(each) in known), None)
    if failed is None:
        return ""
    found = list(causes(failed))
    status = next((status for each in found if (status := _status(each))), 0)
    return told_of(status, " ".join(type(each).__name__ for each in found))


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, and the members of groups among them."""
    todo: list[BaseException | None] = [error]
    for _ in range(MAX_CAUSES):
        if not todo:
            return
        each = todo.pop(0)
        if each is None:
            continue
        yield each
        todo += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        todo.append(each.__cause__ or (None if each.__suppress_context__ else each.__context__))


def _status(error: BaseException) -> int:
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # of botocore
        response = response.get("ResponseMetadata", {})
        found = response.get("HTTPStatusCode")
    else:
        names = ("status_code", "status", "code")
        known = [getattr(each, name, None) for each in (error, response) for name in names]
        found = next((each for each in known if type(each) is int), None)
    return found if type(found) is int and 100 <= found < 600 else 0
