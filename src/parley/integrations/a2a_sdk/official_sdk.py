"""What the versions of the official SDK have in common here: an interface, and errors by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from parley.model import errors
from parley.model.errors import A2AError
from parley.model.operations import SendMessageRequest
from parley.model.service import Caller
from parley.model.tasks import Event, Task

Take = Callable[[Any], Awaitable[None]]
"""Takes an event of the SDK that an executor enqueues."""


class OfficialSdk(Protocol):
    """One version of the official SDK: its types from and to those of the model."""

    def event_of(self, value: Any) -> Event:
        """Return an event of the SDK as one of the model.

        Raises ``TypeError`` for anything else, ``InvalidAgentResponseError`` for an invalid one.
        """
        ...

    def task(self, task: Task) -> Any:
        """Return a task as the SDK's."""
        ...

    def params(self, request: SendMessageRequest) -> Any:
        """Return a request as the SDK's: what ``RequestContext`` is made of."""
        ...

    def queue(self, take: Take) -> Any:
        """Return an ``EventQueue`` that gives each event to ``take``."""
        ...

    def call_context(
        self, caller: Caller, tenant: str, extensions: frozenset[str], state: dict[str, Any]
    ) -> Any:
        """Return a ``ServerCallContext``."""
        ...

    def builder(self) -> Any:
        """Return the SDK's own ``RequestContextBuilder``."""
        ...

    def card(self, card: Any) -> Mapping[str, Any]:
        """Return a card of the SDK as a JSON object. Raises ``TypeError`` for anything else."""
        ...

    def error(self, error: BaseException) -> A2AError | None:
        """Return an error of the SDK as one of the model, ``None`` for any other exception."""
        ...


def error_named(name: str, message: str) -> A2AError:
    """Return the error with a name of the specification; an internal error for any other name."""
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, A2AError) and kind is not A2AError):
        kind = errors.InternalError
    return kind(message or name)
