"""What is asked and answered in version 0.3, as JSON-RPC carries it (0.3 §6.8-6.10, §7)."""

from __future__ import annotations

from typing import Any

from parley.model import push, requests
from parley.model.struct import A2AStruct, Int32, NonEmpty, WrongField
from parley.wire.v0_3.values import (
    DEFAULT_CONFIG_ID,
    MEANT_BY,
    STATE_OF,
    Message,
    OlderMessage,
    SentMessage,
    State,
    Task,
    moment_of,
)

WHOLE_HISTORY = 2**31 - 1
"""How many messages are asked for where all are wanted: 0.3 leaves open what saying nothing means.

In its proto a length that is left out is 0, and official Python servers then send no history; the
official JavaScript server sends none with a task that is asked for without a length.
"""


def length_of(history_length: int | None) -> int:
    """Return the length that asks for so much of a history; ``None`` for all of it."""
    return WHOLE_HISTORY if history_length is None else history_length


def meant_by(history_length: int | None) -> int | None:
    """Return how much of a history a length asks for."""
    return None if history_length == WHOLE_HISTORY else history_length


class AuthenticationInfo(A2AStruct, frozen=True, kw_only=True):
    """How the agent authenticates at a webhook. Of several schemes the first counts."""

    schemes: tuple[str, ...]
    credentials: str = ""

    @classmethod
    def of(cls, info: push.AuthenticationInfo | None) -> AuthenticationInfo | None:
        """Return the info as 0.3 says it."""
        if info is None:
            return None
        return cls(schemes=(info.scheme,) if info.scheme else (), credentials=info.credentials)

    def meant(self) -> push.AuthenticationInfo | None:
        """Return the info of the data model; ``None`` for one that says nothing."""
        if not self.schemes and not self.credentials:
            return None
        scheme = self.schemes[0] if self.schemes else ""
        return push.AuthenticationInfo(scheme=scheme, credentials=self.credentials)


class PushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """A webhook. Without an id it is the one that ``get`` without an id returns."""

    id: str = ""
    url: NonEmpty
    token: str = ""
    authentication: AuthenticationInfo | None = None

    @classmethod
    def of(cls, config: push.TaskPushNotificationConfig) -> PushNotificationConfig:
        """Return a webhook as 0.3 says it, without the task that it is for."""
        return cls(
            id=config.id,
            url=config.url,
            token=config.token,
            authentication=AuthenticationInfo.of(config.authentication),
        )

    def meant(self, task_id: str = "") -> push.TaskPushNotificationConfig:
        """Return the webhook of the data model."""
        given = self.authentication
        return push.TaskPushNotificationConfig(
            id=self.id or DEFAULT_CONFIG_ID,
            task_id=task_id,
            url=self.url,
            token=self.token,
            authentication=None if given is None else given.meant(),
        )


class TaskPushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """A webhook and its task. ``id`` is what older texts call ``taskId``."""

    task_id: str = ""
    push_notification_config: PushNotificationConfig
    id: str = ""

    def __post_init__(self) -> None:
        if not self.task_id and not self.id:
            raise WrongField("task_id", "required, but missing")

    @classmethod
    def of(cls, config: push.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return a webhook as 0.3 says it."""
        webhook = PushNotificationConfig.of(config)
        return cls(task_id=config.task_id, push_notification_config=webhook)

    def meant(self) -> push.TaskPushNotificationConfig:
        """Return the webhook of the data model."""
        return self.push_notification_config.meant(self.task_id or self.id)


class AnsweredConfig(TaskPushNotificationConfig, frozen=True, kw_only=True):
    """A webhook as an agent answers it, which may leave out its task."""

    def __post_init__(self) -> None:
        pass


class MessageSendConfiguration(A2AStruct, frozen=True, kw_only=True):
    """How a message is to be answered. It waits for its task unless ``blocking`` is false."""

    accepted_output_modes: tuple[str, ...] = ()
    history_length: Int32 | None = None
    push_notification_config: PushNotificationConfig | None = None
    blocking: bool | None = None

    @classmethod
    def of(
        cls, configuration: requests.SendMessageConfiguration | None
    ) -> MessageSendConfiguration | None:
        """Return a configuration as 0.3 says it."""
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

    def meant(self) -> requests.SendMessageConfiguration:
        """Return the configuration of the data model."""
        webhook = self.push_notification_config
        return requests.SendMessageConfiguration(
            accepted_output_modes=self.accepted_output_modes,
            history_length=self.history_length,
            task_push_notification_config=None if webhook is None else webhook.meant(),
            return_immediately=self.blocking is False,
        )


class MessageSendParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent."""

    message: SentMessage
    configuration: MessageSendConfiguration | None = None
    metadata: dict[str, Any] | None = None

    def meant(self) -> requests.SendMessageRequest:
        """Return the request of the data model."""
        given = self.configuration
        return requests.SendMessageRequest(
            message=self.message.meant(),
            configuration=None if given is None else given.meant(),
            metadata=self.metadata,
        )


class WrittenMessageSendParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent, as it is written."""

    message: Message
    configuration: MessageSendConfiguration | None = None
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, request: requests.SendMessageRequest) -> WrittenMessageSendParams:
        """Return a request as 0.3 says it."""
        return cls(
            message=Message.of(request.message),
            configuration=MessageSendConfiguration.of(request.configuration),
            metadata=request.metadata,
        )


class TaskSendParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent in the form of older texts.

    ``id`` is the task that the message continues, ``session_id`` the context, ``message_id`` the
    message's own where that has none.
    """

    id: str = ""
    session_id: str = ""
    message_id: str = ""
    message: OlderMessage
    accepted_output_modes: tuple[str, ...] = ()
    history_length: Int32 | None = None
    push_notification: PushNotificationConfig | None = None
    configuration: MessageSendConfiguration | None = None
    metadata: dict[str, Any] | None = None

    def meant(self) -> requests.SendMessageRequest:
        """Return the request of the data model."""
        configuration = self.configuration or MessageSendConfiguration(
            accepted_output_modes=self.accepted_output_modes,
            history_length=self.history_length,
            push_notification_config=self.push_notification,
        )
        message = self.message
        message = OlderMessage(
            message_id=message.message_id or self.message_id,
            context_id=message.context_id or self.session_id,
            task_id=message.task_id or self.id,
            role=message.role,
            parts=message.parts,
            metadata=message.metadata,
            extensions=message.extensions,
            reference_task_ids=message.reference_task_ids,
        )
        return requests.SendMessageRequest(
            message=message.meant(), configuration=configuration.meant(), metadata=self.metadata
        )


class TaskQueryParams(A2AStruct, frozen=True, kw_only=True):
    """Ask for a task; how much of its history is always said."""

    id: NonEmpty
    history_length: Int32 | None = None

    @classmethod
    def of(cls, request: requests.GetTaskRequest) -> TaskQueryParams:
        """Return a request as 0.3 says it."""
        return cls(id=request.id, history_length=length_of(request.history_length))

    def meant(self) -> requests.GetTaskRequest:
        """Return the request of the data model."""
        return requests.GetTaskRequest(id=self.id, history_length=meant_by(self.history_length))


class ListTasksParams(A2AStruct, frozen=True, kw_only=True):
    """Ask for a page of tasks: the filters of 1.0, with states as 0.3 names them."""

    context_id: str = ""
    status: State = State.UNSPECIFIED
    page_size: Int32 | None = None
    page_token: str = ""
    history_length: Int32 | None = None
    status_timestamp_after: str | None = None
    include_artifacts: bool | None = None

    def __post_init__(self) -> None:
        try:
            moment_of(self.status_timestamp_after)
        except ValueError as error:
            raise WrongField("status_timestamp_after", str(error)) from None

    @classmethod
    def of(cls, request: requests.ListTasksRequest) -> ListTasksParams:
        """Return a request as this says it."""
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

    def meant(self) -> requests.ListTasksRequest:
        """Return the request of the data model."""
        return requests.ListTasksRequest(
            context_id=self.context_id,
            status=MEANT_BY[self.status],
            page_size=self.page_size,
            page_token=self.page_token,
            history_length=self.history_length,
            status_timestamp_after=moment_of(self.status_timestamp_after),
            include_artifacts=self.include_artifacts,
        )


class ListTasksResult(A2AStruct, frozen=True, kw_only=True):
    """A page of tasks."""

    tasks: tuple[Task, ...]
    next_page_token: str
    page_size: Int32
    total_size: Int32

    @classmethod
    def of(cls, page: requests.ListTasksResponse) -> ListTasksResult:
        """Return a page with tasks as 0.3 says them."""
        return cls(
            tasks=tuple([Task.of(task) for task in page.tasks]),
            next_page_token=page.next_page_token,
            page_size=page.page_size,
            total_size=page.total_size,
        )

    def meant(self) -> requests.ListTasksResponse:
        """Return the page of the data model. Raises ``ValueError``."""
        return requests.ListTasksResponse(
            tasks=tuple([task.meant() for task in self.tasks]),
            next_page_token=self.next_page_token,
            page_size=self.page_size,
            total_size=self.total_size,
        )


class GetConfigParams(A2AStruct, frozen=True, kw_only=True):
    """Ask for a webhook of a task; without its id, for the one that was given none."""

    id: NonEmpty
    push_notification_config_id: str = ""

    @classmethod
    def of(cls, request: requests.GetTaskPushNotificationConfigRequest) -> GetConfigParams:
        """Return a request as 0.3 says it."""
        return cls(id=request.task_id, push_notification_config_id=request.id)

    def meant(self) -> requests.GetTaskPushNotificationConfigRequest:
        """Return the request of the data model."""
        return requests.GetTaskPushNotificationConfigRequest(
            task_id=self.id, id=self.push_notification_config_id or DEFAULT_CONFIG_ID
        )


class DeleteConfigParams(A2AStruct, frozen=True, kw_only=True):
    """Ask for a webhook to be removed."""

    id: NonEmpty
    push_notification_config_id: NonEmpty

    @classmethod
    def of(cls, request: requests.DeleteTaskPushNotificationConfigRequest) -> DeleteConfigParams:
        """Return a request as 0.3 says it."""
        return cls(id=request.task_id, push_notification_config_id=request.id)

    def meant(self) -> requests.DeleteTaskPushNotificationConfigRequest:
        """Return the request of the data model."""
        return requests.DeleteTaskPushNotificationConfigRequest(
            task_id=self.id, id=self.push_notification_config_id
        )


class ListConfigsParams(A2AStruct, frozen=True, kw_only=True):
    """Ask for all webhooks of a task: 0.3 has no pages of them."""

    id: NonEmpty

    @classmethod
    def of(cls, request: requests.ListTaskPushNotificationConfigsRequest) -> ListConfigsParams:
        """Return a request as 0.3 says it."""
        return cls(id=request.task_id)

    def meant(self) -> requests.ListTaskPushNotificationConfigsRequest:
        """Return the request of the data model."""
        return requests.ListTaskPushNotificationConfigsRequest(task_id=self.id)
