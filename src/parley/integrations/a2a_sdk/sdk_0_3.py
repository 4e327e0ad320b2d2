"""Version 0.3.x of the official SDK, whose types are pydantic models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

from parley.integrations.a2a_sdk.official_sdk import OfficialSdk, Take, error_named, refuse_event
from parley.model.errors import A2AError
from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.service import StreamItem
from parley.model.tasks import Event, Task
from parley.wire.versions import dialect

_SEND = BY_NAME["SendMessage"]
_EVENTS = (OfficialTask, Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)


class TurnQueue03(EventQueue):
    """An event queue that writes each event to the log of the turn's task."""

    def __init__(self, take: Take) -> None:
        super().__init__()
        self._take = take

    async def enqueue_event(self, event: Any) -> None:
        """Write an event, and forward it to tapping queues. A closed queue drops it."""
        if self.is_closed():
            return
        await self._take(event)
        for child in self._children:
            await child.enqueue_event(event)


class Sdk03(OfficialSdk):
    """Version 0.3.x: conversion between its types and the model's types."""

    queue = TurnQueue03
    knows_tenants = False

    def __init__(self) -> None:
        self._codec = dialect("0.3").jsonrpc

    def event_of(self, value: Any) -> Event:
        """Return an event of the SDK as an event of the model.

        Raises ``TypeError`` for anything else, ``InvalidAgentResponseError`` for an invalid one.
        """
        if not isinstance(value, _EVENTS):
            refuse_event(value)
        return self._codec.read_event(
            value.model_dump_json(by_alias=True, exclude_none=True).encode()
        )

    def task(self, task: Task) -> Any:
        """Return a task as the SDK's type."""
        return OfficialTask.model_validate_json(self._codec.write_event(StreamItem(task)))

    def params(self, request: SendMessageRequest) -> Any:
        """Return a request as the SDK's type, for a ``RequestContext``."""
        return MessageSendParams.model_validate_json(self._codec.write_request(_SEND, request))

    def card(self, card: Any) -> Mapping[str, Any]:
        """Return a card of the SDK as a JSON object. Raises ``TypeError`` for anything else."""
        if not isinstance(card, AgentCard):
            raise TypeError(f"the card must be an AgentCard of a2a.types, not {card!r:.200}")
        members: dict[str, Any] = card.model_dump(mode="json", by_alias=True, exclude_none=True)
        return members

    def error(self, error: BaseException) -> A2AError | None:
        """Return an error of the SDK as an error of the model, ``None`` for any other."""
        if not isinstance(error, ServerError):
            return None
        return error_named(type(error.error).__name__, error.error)
