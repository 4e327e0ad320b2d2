"""Version 0.3.x of the official SDK, whose types are pydantic models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.auth.user import User
from a2a.server.agent_execution import SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.types import (
    AgentCard,
    Message,
    MessageSendParams,
    TaskArtifactUpdateEvent,
    TaskStatusUpdateEvent,
)
from a2a.types import Task as OfficialTask
from a2a.utils.errors import ServerError

from parley.integrations.a2a_sdk.official_sdk import Take, error_named
from parley.model.errors import A2AError
from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.service import Caller, StreamItem
from parley.model.tasks import Event, Task
from parley.wire.versions import dialect

_SEND = BY_NAME["SendMessage"]
_EVENTS = (OfficialTask, Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)


class CallerAsUser03(User):
    """The caller of a turn. ``caller`` has all that Parley knows of it."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    @property
    def is_authenticated(self) -> bool:
        """Whether somebody proved to be this caller."""
        return self.caller.authenticated

    @property
    def user_name(self) -> str:
        """The id of the caller."""
        return self.caller.id


class TurnQueue03(EventQueue):
    """An event queue that writes each event to the log of the turn's task."""

    def __init__(self, take: Take) -> None:
        super().__init__()
        self._take = take

    async def enqueue_event(self, event: Any) -> None:
        """Write an event, and give it to the queues that tap this one. A closed queue drops it."""
        if self.is_closed():
            return
        await self._take(event)
        for child in self._children:
            await child.enqueue_event(event)


class Sdk03:
    """Version 0.3.x (``OfficialSdk``)."""

    def __init__(self) -> None:
        self._codec = dialect("0.3").jsonrpc

    def event_of(self, value: Any) -> Event:
        """Return an event of the SDK as one of the model."""
        if not isinstance(value, _EVENTS):
            raise TypeError(
                "an executor enqueues a Task, a Message, a TaskStatusUpdateEvent or a "
                f"TaskArtifactUpdateEvent, not {type(value).__name__}"
            )
        return self._codec.read_event(
            value.model_dump_json(by_alias=True, exclude_none=True).encode()
        )

    def task(self, task: Task) -> Any:
        """Return a task as the SDK's."""
        return OfficialTask.model_validate_json(self._codec.write_event(StreamItem(task)))

    def params(self, request: SendMessageRequest) -> Any:
        """Return a request as the SDK's."""
        return MessageSendParams.model_validate_json(self._codec.write_request(_SEND, request))

    def queue(self, take: Take) -> Any:
        """Return an ``EventQueue`` that gives each event to ``take``."""
        return TurnQueue03(take)

    def call_context(
        self, caller: Caller, tenant: str, extensions: frozenset[str], state: dict[str, Any]
    ) -> Any:
        """Return a ``ServerCallContext``. Versions 0.3.x know no tenant: the state has it."""
        return ServerCallContext(
            state={"tenant": tenant, **state},
            user=CallerAsUser03(caller),
            requested_extensions=set(extensions),
        )

    def builder(self) -> Any:
        """Return the SDK's own ``RequestContextBuilder``."""
        return SimpleRequestContextBuilder()

    def card(self, card: Any) -> Mapping[str, Any]:
        """Return a card of the SDK as a JSON object."""
        if not isinstance(card, AgentCard):
            raise TypeError(f"the card is an AgentCard of a2a.types, not {card!r:.200}")
        members: dict[str, Any] = card.model_dump(mode="json", by_alias=True, exclude_none=True)
        return members

    def error(self, error: BaseException) -> A2AError | None:
        """Return an error of the SDK as one of the model."""
        if not isinstance(error, ServerError):
            return None
        said = error.error
        name = type(said).__name__
        return error_named(name, str(getattr(said, "message", "") or ""))
