"""Version 1.x of the official SDK, whose types are protobuf messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from a2a.server.events import EventQueue
from a2a.types import a2a_pb2
from a2a.utils.errors import A2AError as OfficialError
from google.protobuf import json_format

from parley.integrations.a2a_sdk.official_sdk import OfficialSdk, Take, error_named, refuse_event
from parley.model.errors import A2AError
from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.service import StreamItem
from parley.model.tasks import Event, Task
from parley.wire.versions import dialect

_SEND = BY_NAME["SendMessage"]
_MEMBERS = {
    a2a_pb2.Task: "task",
    a2a_pb2.Message: "message",
    a2a_pb2.TaskStatusUpdateEvent: "status_update",
    a2a_pb2.TaskArtifactUpdateEvent: "artifact_update",
}


class TurnQueue1(EventQueue):
    """An event queue that writes each event to the log of the turn's task."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._is_closed = False

    async def enqueue_event(self, event: Any) -> None:
        """Write an event. A closed queue drops it."""
        if not self._is_closed:
            await self._take(event)

    async def close(self, immediate: bool = False) -> None:
        """Take no more events."""
        self._is_closed = True

    def is_closed(self) -> bool:
        """Return whether the executor closed the queue."""
        return self._is_closed


class Sdk1(OfficialSdk):
    """Version 1.x: conversion between its types and the model's types."""

    queue = TurnQueue1

    def __init__(self) -> None:
        self._codec = dialect("1.0").grpc()

    def event_of(self, value: Any) -> Event:
        """Return an event of the SDK as an event of the model.

        Raises ``TypeError`` for anything else, ``InvalidAgentResponseError`` for an invalid one.
        """
        member = _MEMBERS.get(type(value))
        if member is None:
            refuse_event(value)
        response = a2a_pb2.StreamResponse(**{member: value})
        return self._codec.read_event(response.SerializeToString())

    def task(self, task: Task) -> Any:
        """Return a task as the SDK's type."""
        data = self._codec.write_event(StreamItem(task))
        return a2a_pb2.StreamResponse.FromString(data).task

    def params(self, request: SendMessageRequest) -> Any:
        """Return a request as the SDK's type, for a ``RequestContext``."""
        return a2a_pb2.SendMessageRequest.FromString(self._codec.write_request(_SEND, request))

    def card(self, card: Any) -> Mapping[str, Any]:
        """Return a card of the SDK as a JSON object. Raises ``TypeError`` for anything else."""
        if not isinstance(card, a2a_pb2.AgentCard):
            raise TypeError(f"the card must be an AgentCard of a2a.types, not {card!r:.200}")
        members: dict[str, Any] = json_format.MessageToDict(card)
        return members

    def error(self, error: BaseException) -> A2AError | None:
        """Return an error of the SDK as an error of the model, ``None`` for any other."""
        if not isinstance(error, OfficialError):
            return None
        return error_named(type(error).__name__, error)
