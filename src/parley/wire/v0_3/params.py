"""Parameters and results of JSON-RPC in version 0.3 (0.3 §6.8-6.10, §7)."""

from __future__ import annotations

from typing import Any

from parley.model import operations
from parley.model.struct import A2AStruct, Int32, InvalidField, NonEmpty
from parley.wire.v0_3.values import (
    DEFAULT_CONFIG_ID,
    STATE_OF,
    TASK_STATE_OF,
    LegacyMessage,
    Message,
    RequestMessage,
    State,
    Task,
    parse_timestamp,
)

WHOLE_HISTORY = 2**31 - 1
"""The history length that asks for all messages: 0.3 leaves open what none means.

In its proto a missing length is 0, and official Python servers then send no history; the official
JavaScript server sends none for GetTask without a length.
"""


def explicit_length(history_length: int | None) -> int:
    """Return the length to send; ``None`` stands for the whole history."""
    return WHOLE_HISTORY if history_length is None else history_length


def optional_length(history_length: int | None) -> int | None:
    """Return a length that was received; ``None`` for the whole history."""
    return None if history_length == WHOLE_HISTORY else history_length


class AuthenticationInfo(A2AStruct, frozen=True, kw_only=True):
    """The agent's authentication at a webhook. Of several schemes the first counts."""

    schemes: tuple[str, ...]
    credentials: str = ""

    @classmethod
    def of(cls, info: operations.AuthenticationInfo | None) -> AuthenticationInfo | None:
        """Return the 0.3 form of the info."""
        if info is None:
            return None
        return cls(schemes=(info.scheme,) if info.scheme else (), credentials=info.credentials)

    def to_model(self) -> operations.AuthenticationInfo | None:
        """Return the info of the data model; ``None`` for an empty one."""
        if not self.schemes and not self.credentials:
            return None
        scheme = self.schemes[0] if self.schemes else ""
        return operations.AuthenticationInfo(scheme=scheme, credentials=self.credentials)


class PushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """A webhook. One without an id gets ``DEFAULT_CONFIG_ID``."""

    id: str = ""
    url: NonEmpty
    token: str = ""
    authentication: AuthenticationInfo | None = None

    @classmethod
    def of(cls, config: operations.TaskPushNotificationConfig) -> PushNotificationConfig:
        """Return the 0.3 form of a webhook, without the task that it is for."""
        return cls(
            id=config.id,
            url=config.url,
            token=config.token,
            authentication=AuthenticationInfo.of(config.authentication),
        )

    def to_model(self, task_id: str = "") -> operations.TaskPushNotificationConfig:
        """Return the webhook of the data model."""
        authentication = self.authentication
        return operations.TaskPushNotificationConfig(
            id=self.id or DEFAULT_CONFIG_ID,
            task_id=task_id,
            url=self.url,
            token=self.token,
            authentication=None if authentication is None else authentication.to_model(),
        )


class TaskPushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """A webhook and its task, whose id older texts call ``id``."""

    task_id: str = ""
    push_notification_config: PushNotificationConfig
    id: str = ""

    def __post_init__(self) -> None:
        if not self.task_id and not self.id:
            raise InvalidField("task_id", "required, but missing")

    @classmethod
    def of(cls, config: operations.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return the 0.3 form of a webhook."""
        webhook = PushNotificationConfig.of(config)
        return cls(task_id=config.task_id, push_notification_config=webhook)

    def to_model(self) -> operations.TaskPushNotificationConfig:
        """Return the webhook of the data model."""
        return self.push_notification_config.to_model(self.task_id or self.id)


class AnswerConfig(TaskPushNotificationConfig, frozen=True, kw_only=True):
    """A webhook in an answer, which may lack its task."""

    def __post_init__(self) -> None:
        pass


class MessageSendConfiguration(A2AStruct, frozen=True, kw_only=True):
    """Options for the answer. The call waits for its task unless ``blocking`` is false."""

    accepted_output_modes: tuple[str, ...] = ()
    history_length: Int32 | None = None
    push_notification_config: PushNotificationConfig | None = None
    blocking: bool | None = None

    @classmethod
    def of(
        cls, configuration: operations.SendMessageConfiguration | None
    ) -> MessageSendConfiguration | None:
        """Return the 0.3 form of a configuration."""
        if configuration is None:
            return None
        webhook = configuration.task_push_notification_config
        return cls(
            accepted_output_modes=configuration.accepted_output_modes,
            history_length=configuration.history_length,
            push_notification_config=None
            if webhook is None
            else PushNotificationConfig.of(webhook),
            blocking=not configuration.return_immediately,
        )

    def to_model(self) -> operations.SendMessageConfiguration:
        """Return the configuration of the data model."""
        webhook = self.push_notification_config
        return operations.SendMessageConfiguration(
            accepted_output_modes=self.accepted_output_modes,
            history_length=self.history_length,
            task_push_notification_config=None if webhook is None else webhook.to_model(),
            return_immediately=self.blocking is False,
        )


class MessageSendParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent."""

    message: RequestMessage
    configuration: MessageSendConfiguration | None = None
    metadata: dict[str, Any] | None = None

    def to_model(self) -> operations.SendMessageRequest:
        """Return the request of the data model."""
        given = self.configuration
        return operations.SendMessageRequest(
            message=self.message.to_model(),
            configuration=None if given is None else given.to_model(),
            metadata=self.metadata,
        )


class OutgoingMessageSendParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent, as a client sends it."""

    message: Message
    configuration: MessageSendConfiguration | None = None
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, request: operations.SendMessageRequest) -> OutgoingMessageSendParams:
        """Return the 0.3 form of a request."""
        return cls(
            message=Message.of(request.message),
            configuration=MessageSendConfiguration.of(request.configuration),
            metadata=request.metadata,
        )


class LegacyTaskSendParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent in the form of older texts.

    ``id`` is the task of the message, ``session_id`` its context, and ``message_id`` its id, each
    if the message itself has none.
    """

    id: str = ""
    session_id: str = ""
    message_id: str = ""
    message: LegacyMessage
    accepted_output_modes: tuple[str, ...] = ()
    history_length: Int32 | None = None
    push_notification: PushNotificationConfig | None = None
    configuration: MessageSendConfiguration | None = None
    metadata: dict[str, Any] | None = None

    def to_model(self) -> operations.SendMessageRequest:
        """Return the request of the data model."""
        configuration = self.configuration or MessageSendConfiguration(
            accepted_output_modes=self.accepted_output_modes,
            history_length=self.history_length,
            push_notification_config=self.push_notification,
        )
        message = self.message
        message = LegacyMessage(
            message_id=message.message_id or self.message_id,
            context_id=message.context_id or self.session_id,
            task_id=message.task_id or self.id,
            role=message.role,
            parts=message.parts,
            metadata=message.metadata,
            extensions=message.extensions,
            reference_task_ids=message.reference_task_ids,
        )
        return operations.SendMessageRequest(
            message=message.to_model(),
            configuration=configuration.to_model(),
            metadata=self.metadata,
        )


class TaskQueryParams(A2AStruct, frozen=True, kw_only=True):
    """A request for a task. It always has a history length."""

    id: NonEmpty
    history_length: Int32 | None = None

    @classmethod
    def of(cls, request: operations.GetTaskRequest) -> TaskQueryParams:
        """Return the 0.3 form of a request."""
        return cls(id=request.id, history_length=explicit_length(request.history_length))

    def to_model(self) -> operations.GetTaskRequest:
        """Return the request of the data model."""
        return operations.GetTaskRequest(
            id=self.id, history_length=optional_length(self.history_length)
        )


class ListTasksParams(A2AStruct, frozen=True, kw_only=True):
    """A request for a page of tasks: the filters of 1.0, with states of 0.3."""

    context_id: str = ""
    status: State = State.UNSPECIFIED
    page_size: Int32 | None = None
    page_token: str = ""
    history_length: Int32 | None = None
    status_timestamp_after: str | None = None
    include_artifacts: bool | None = None

    def __post_init__(self) -> None:
        try:
            parse_timestamp(self.status_timestamp_after)
        except ValueError as error:
            raise InvalidField("status_timestamp_after", str(error)) from None

    @classmethod
    def of(cls, request: operations.ListTasksRequest) -> ListTasksParams:
        """Return the 0.3 form of a request."""
        after = request.status_timestamp_after
        return cls(
            context_id=request.context_id,
            status=STATE_OF[request.status],
            page_size=request.page_size,
            page_token=request.page_token,
            history_length=request.history_length,
            status_timestamp_after=None if after is None else str(after),
            include_artifacts=request.include_artifacts,
        )

    def to_model(self) -> operations.ListTasksRequest:
        """Return the request of the data model."""
        return operations.ListTasksRequest(
            context_id=self.context_id,
            status=TASK_STATE_OF[self.status],
            page_size=self.page_size,
            page_token=self.page_token,
            history_length=self.history_length,
            status_timestamp_after=parse_timestamp(self.status_timestamp_after),
            include_artifacts=self.include_artifacts,
        )


class ListTasksResult(A2AStruct, frozen=True, kw_only=True):
    """A page of tasks."""

    tasks: tuple[Task, ...]
    next_page_token: str
    page_size: Int32
    total_size: Int32

    @classmethod
    def of(cls, page: operations.ListTasksResponse) -> ListTasksResult:
        """Return the 0.3 form of a page with tasks."""
        return cls(
            tasks=tuple([Task.of(task) for task in page.tasks]),
            next_page_token=page.next_page_token,
            page_size=page.page_size,
            total_size=page.total_size,
        )

    def to_model(self) -> operations.ListTasksResponse:
        """Return the page of the data model. Raises ``ValueError``."""
        return operations.ListTasksResponse(
            tasks=tuple([task.to_model() for task in self.tasks]),
            next_page_token=self.next_page_token,
            page_size=self.page_size,
            total_size=self.total_size,
        )


class GetConfigParams(A2AStruct, frozen=True, kw_only=True):
    """A request for a webhook of a task; without an id, for that with ``DEFAULT_CONFIG_ID``."""

    id: NonEmpty
    push_notification_config_id: str = ""

    @classmethod
    def of(cls, request: operations.GetTaskPushNotificationConfigRequest) -> GetConfigParams:
        """Return the 0.3 form of a request."""
        return cls(id=request.task_id, push_notification_config_id=request.id)

    def to_model(self) -> operations.GetTaskPushNotificationConfigRequest:
        """Return the request of the data model."""
        return operations.GetTaskPushNotificationConfigRequest(
            task_id=self.id, id=self.push_notification_config_id or DEFAULT_CONFIG_ID
        )


class DeleteConfigParams(A2AStruct, frozen=True, kw_only=True):
    """A request to remove a webhook."""

    id: NonEmpty
    push_notification_config_id: NonEmpty

    @classmethod
    def of(cls, request: operations.DeleteTaskPushNotificationConfigRequest) -> DeleteConfigParams:
        """Return the 0.3 form of a request."""
        return cls(id=request.task_id, push_notification_config_id=request.id)

    def to_model(self) -> operations.DeleteTaskPushNotificationConfigRequest:
        """Return the request of the data model."""
        return operations.DeleteTaskPushNotificationConfigRequest(
            task_id=self.id, id=self.push_notification_config_id
        )


class ListConfigsParams(A2AStruct, frozen=True, kw_only=True):
    """A request for all webhooks of a task: 0.3 has no pages of them."""

    id: NonEmpty

    @classmethod
    def of(cls, request: operations.ListTaskPushNotificationConfigsRequest) -> ListConfigsParams:
        """Return the 0.3 form of a request."""
        return cls(id=request.task_id)

    def to_model(self) -> operations.ListTaskPushNotificationConfigsRequest:
        """Return the request of the data model."""
        return operations.ListTaskPushNotificationConfigsRequest(task_id=self.id)
