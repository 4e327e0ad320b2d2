"""The official SDK that is installed, behind one interface for its versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from typing import Any, Protocol

from parley.integrations.serving import missing
from parley.model.errors import A2AError
from parley.model.requests import SendMessageRequest
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


@cache
def installed() -> OfficialSdk:
    """Return the installed version.

    Raises ``ImportError`` that says how to install one.
    """
    try:
        import a2a.server.agent_execution  # noqa: F401, what a2a-sdk without its server lacks
        import a2a.types as types
    except ImportError as error:
        raise missing("a2a-sdk", error) from error
    if hasattr(types, "MessageSendParams"):
        from parley.integrations.a2a_sdk.sdk_0_3 import Sdk03

        return Sdk03()
    from parley.integrations.a2a_sdk.sdk_1 import Sdk1

    return Sdk1()
