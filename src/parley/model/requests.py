"""Requests and responses of the operations (specification §3.1, §3.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.parts import Message
from parley.model.push import TaskPushNotificationConfig
from parley.model.struct import A2AStruct, Int32, NonEmpty, Timestamp, freeze
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

SKILL_KEY = "skill"
"""The metadata key by which a message names its skill, by the skill's id."""


class SendMessageConfiguration(A2AStruct, frozen=True, kw_only=True):
    """Options for the answer to a message (specification §3.2.2).

    ``history_length``: ``None`` for all of it, 0 for none, n for the last n messages (§3.2.4).
    """

    accepted_output_modes: tuple[str, ...] = ()
    task_push_notification_config: TaskPushNotificationConfig | None = None
    history_length: Int32 | None = None
    return_immediately: bool = False

    def __post_init__(self) -> None:
        freeze(self, "accepted_output_modes")


class SendMessageRequest(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent."""

    tenant: str = ""
    message: Message
    configuration: SendMessageConfiguration | None = None
    metadata: dict[str, Any] | None = None


class GetTaskRequest(A2AStruct, frozen=True, kw_only=True):
    """Ask for one task."""

    tenant: str = ""
    id: NonEmpty
    history_length: Int32 | None = None


class ListTasksRequest(A2AStruct, frozen=True, kw_only=True):
    """Ask for a page of tasks, the last updated first (specification §3.1.4).

    ``status_timestamp_after`` is inclusive. ``status`` UNSPECIFIED filters nothing.
    """

    tenant: str = ""
    context_id: str = ""
    status: TaskState = TaskState.UNSPECIFIED
    page_size: Int32 | None = None
    page_token: str = ""
    history_length: Int32 | None = None
    status_timestamp_after: Timestamp | None = None
    include_artifacts: bool | None = None


class ListTasksResponse(A2AStruct, frozen=True, kw_only=True):
    """One page of tasks. ``next_page_token`` is empty on the last page."""

    tasks: tuple[Task, ...]
    next_page_token: str
    page_size: Int32
    total_size: Int32

    def __post_init__(self) -> None:
        freeze(self, "tasks")


class CancelTaskRequest(A2AStruct, frozen=True, kw_only=True):
    """Ask for a task to be canceled."""

    tenant: str = ""
    id: NonEmpty
    metadata: dict[str, Any] | None = None


class SubscribeToTaskRequest(A2AStruct, frozen=True, kw_only=True):
    """Ask for the events of a task from now on."""

    tenant: str = ""
    id: NonEmpty


class GetTaskPushNotificationConfigRequest(A2AStruct, frozen=True, kw_only=True):
    """Ask for one push notification configuration."""

    tenant: str = ""
    task_id: NonEmpty
    id: NonEmpty


class DeleteTaskPushNotificationConfigRequest(A2AStruct, frozen=True, kw_only=True):
    """Ask for a push notification configuration to be removed."""

    tenant: str = ""
    task_id: NonEmpty
    id: NonEmpty


class ListTaskPushNotificationConfigsRequest(A2AStruct, frozen=True, kw_only=True):
    """Ask for a task's push notification configurations."""

    tenant: str = ""
    task_id: NonEmpty
    page_size: Int32 = 0
    page_token: str = ""


class ListTaskPushNotificationConfigsResponse(A2AStruct, frozen=True, kw_only=True):
    """One page of push notification configurations."""

    configs: tuple[TaskPushNotificationConfig, ...] = ()
    next_page_token: str = ""

    def __post_init__(self) -> None:
        freeze(self, "configs")


class GetExtendedAgentCardRequest(A2AStruct, frozen=True, kw_only=True):
    """Ask for the card that authenticated callers may see."""

    tenant: str = ""


class Empty(A2AStruct, frozen=True, kw_only=True):
    """Nothing to say (``google.protobuf.Empty``)."""


class SendMessageResponse(A2AStruct, frozen=True, kw_only=True):
    """Either the task that works on the message, or a direct reply."""

    task: Task | None = None
    message: Message | None = None

    def __post_init__(self) -> None:
        if (self.task is None) == (self.message is None):
            raise ValueError("a SendMessageResponse has exactly one of task and message")

    @classmethod
    def of(cls, payload: Task | Message) -> SendMessageResponse:
        """Wrap ``payload`` under the name that the specification gives it."""
        return cls(task=payload) if isinstance(payload, Task) else cls(message=payload)

    @property
    def payload(self) -> Task | Message:
        """The one that is set."""
        return self.task if self.task is not None else self.message  # type: ignore[return-value]


class StreamResponse(A2AStruct, frozen=True, kw_only=True):
    """One event of a stream (specification §3.2.3)."""

    task: Task | None = None
    message: Message | None = None
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None

    def __post_init__(self) -> None:
        given = (
            (self.task is not None)
            + (self.message is not None)
            + (self.status_update is not None)
            + (self.artifact_update is not None)
        )
        if given != 1:
            raise ValueError(
                "a StreamResponse has exactly one of task, message, statusUpdate and artifactUpdate"
            )

    @classmethod
    def of(cls, payload: Event) -> StreamResponse:
        """Wrap ``payload`` under the name that the specification gives it."""
        if isinstance(payload, TaskArtifactUpdateEvent):
            return cls(artifact_update=payload)
        if isinstance(payload, TaskStatusUpdateEvent):
            return cls(status_update=payload)
        return cls(task=payload) if isinstance(payload, Task) else cls(message=payload)

    @property
    def payload(self) -> Event:
        """The one that is set."""
        event = self.artifact_update or self.status_update or self.task or self.message
        assert event is not None  # __post_init__ ensures it
        return event


def named_skill(message: Message, metadata: Mapping[str, Any] | None) -> Any:
    """Return what a message, or its request by ``metadata``, names as its skill, if anything."""
    named = message.metadata.get(SKILL_KEY) if message.metadata else None
    return metadata.get(SKILL_KEY) if named is None and metadata else named


def unknown_skill(named: Any, known: Iterable[str]) -> InvalidParamsError:
    """Return the error for a skill that an agent does not have."""
    names = ", ".join(known) or "none"
    return InvalidParamsError(
        f"this agent has no skill {str(named)[:100]!r}; it has {names}",
        violations=(FieldViolation(f"message.metadata.{SKILL_KEY}", f"one of {names}"),),
    )
