"""Requests, answers and events of version 0.3 as members of its proto's JSON messages.

``http_json`` puts paths, queries and bodies together into one message, as gRPC has it
(``{"name": "tasks/1"}``); ``grpc`` maps protobuf messages to members and back. Reading accepts both
spellings of ProtoJSON; writing gives camelCase.
"""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model import operations
from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.model.operations import (
    Empty,
    ListTasksResponse,
    Operation,
    SendMessageRequest,
    SendMessageResponse,
)
from parley.model.struct import A2AStruct, Int32, InvalidField, encode
from parley.model.tasks import Event, Task
from parley.wire.json import protojson, tolerance
from parley.wire.v0_3 import cards
from parley.wire.v0_3.json import Configs, invalid_answer
from parley.wire.v0_3.params import (
    ListTasksParams,
    PushNotificationConfig,
    explicit_length,
    optional_length,
)
from parley.wire.v0_3.proto import messages
from parley.wire.v0_3.values import DEFAULT_CONFIG_ID

Members = dict[str, Any]

_TASKS, _CONFIGS = "tasks/", "/pushNotificationConfigs/"


def task_name(task_id: str) -> str:
    """Return the resource name of a task."""
    return _TASKS + task_id


def config_name(task_id: str, config_id: str) -> str:
    """Return the resource name of a webhook of a task."""
    return f"{_TASKS}{task_id}{_CONFIGS}{config_id}"


def _parse_name(name: str, field: str = "name") -> tuple[str, str]:
    """Return the ids in the resource name of a task or of one of its webhooks."""
    task_id, _, config_id = name.removeprefix(_TASKS).partition(_CONFIGS)
    if not name.startswith(_TASKS) or not task_id:
        raise InvalidField(field, f"expected tasks/ and the id of a task, got {name[:60]!r}")
    return task_id, config_id


class SendMessageConfiguration(A2AStruct, frozen=True, kw_only=True):
    """Options for the answer. A missing ``blocking`` is false."""

    accepted_output_modes: tuple[str, ...] = ()
    push_notification: PushNotificationConfig | None = None
    history_length: Int32 | None = None
    blocking: bool | None = None

    @classmethod
    def of(cls, configuration: operations.SendMessageConfiguration) -> SendMessageConfiguration:
        """Return the 0.3 form of a configuration."""
        webhook = configuration.task_push_notification_config
        return cls(
            accepted_output_modes=configuration.accepted_output_modes,
            push_notification=None if webhook is None else PushNotificationConfig.of(webhook),
            history_length=explicit_length(configuration.history_length),
            blocking=not configuration.return_immediately,
        )

    def to_model(self) -> operations.SendMessageConfiguration:
        """Return the configuration of the data model."""
        webhook = self.push_notification
        return operations.SendMessageConfiguration(
            accepted_output_modes=self.accepted_output_modes,
            task_push_notification_config=None if webhook is None else webhook.to_model(),
            history_length=optional_length(self.history_length),
            return_immediately=not self.blocking,
        )


class SendMessageParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent."""

    request: messages.RequestMessage = msgspec.field(name="message")
    configuration: SendMessageConfiguration | None = None
    metadata: dict[str, Any] | None = None

    def to_model(self) -> SendMessageRequest:
        """Return the request of the data model."""
        given = self.configuration
        return SendMessageRequest(
            message=self.request.to_model(),
            configuration=None if given is None else given.to_model(),
            metadata=self.metadata,
        )


class OutgoingSendMessageParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent, as a client sends it: always with a configuration."""

    request: messages.Message = msgspec.field(name="message")
    configuration: SendMessageConfiguration
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, request: SendMessageRequest) -> OutgoingSendMessageParams:
        """Return the 0.3 form of a request."""
        configuration = request.configuration or operations.SendMessageConfiguration()
        return cls(
            request=messages.Message.of(request.message),
            configuration=SendMessageConfiguration.of(configuration),
            metadata=request.metadata,
        )


class NamedRequest(A2AStruct, frozen=True, kw_only=True):
    """A request about a task, or about one of its webhooks."""

    name: str
    history_length: Int32 | None = None

    def __post_init__(self) -> None:
        _parse_name(self.name)


class NamedConfigRequest(NamedRequest, frozen=True, kw_only=True):
    """A request about a webhook of a task."""

    def __post_init__(self) -> None:
        if not _parse_name(self.name)[1]:
            words = f"expected the name of a task{_CONFIGS} and an id, got {self.name[:60]!r}"
            raise InvalidField("name", words)


class ParentRequest(A2AStruct, frozen=True, kw_only=True):
    """A request about all webhooks of a task."""

    parent: str
    page_size: Int32 = 0
    page_token: str = ""

    def __post_init__(self) -> None:
        _parse_name(self.parent, "parent")


class TaskPushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """A webhook of a task."""

    name: str = ""
    push_notification_config: PushNotificationConfig

    @classmethod
    def of(cls, config: operations.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return the 0.3 form of a webhook."""
        return cls(
            name=config_name(config.task_id, config.id),
            push_notification_config=PushNotificationConfig.of(config),
        )

    def to_model(self) -> operations.TaskPushNotificationConfig:
        """Return the webhook of the data model; without a valid name it has no task."""
        task_id = config_id = ""
        try:
            task_id, config_id = _parse_name(self.name)
        except InvalidField as wrong:
            tolerance.report([("name", wrong.description)])
        webhook = self.push_notification_config
        config = webhook.to_model(task_id)
        return msgspec.structs.replace(config, id=webhook.id or config_id or config.id)


class CreateConfig(A2AStruct, frozen=True, kw_only=True):
    """A further webhook for a task."""

    parent: str
    config_id: str = ""
    config: TaskPushNotificationConfig

    def __post_init__(self) -> None:
        _parse_name(self.parent, "parent")

    @classmethod
    def of(cls, config: operations.TaskPushNotificationConfig) -> CreateConfig:
        """Return the 0.3 form of a request."""
        return cls(
            parent=task_name(config.task_id),
            config_id=config.id,
            config=TaskPushNotificationConfig.of(config),
        )

    def to_model(self) -> operations.TaskPushNotificationConfig:
        """Return the webhook of the data model."""
        webhook = self.config.push_notification_config
        config = webhook.to_model(_parse_name(self.parent, "parent")[0])
        return msgspec.structs.replace(config, id=webhook.id or self.config_id or DEFAULT_CONFIG_ID)


class ListConfigsResponse(A2AStruct, frozen=True, kw_only=True):
    """A page of webhooks."""

    configs: tuple[TaskPushNotificationConfig, ...] = ()
    next_page_token: str = ""


class ListTasksResult(A2AStruct, frozen=True, kw_only=True):
    """A page of tasks: 0.3 has no message for it, so this is that of 1.0 with tasks of 0.3."""

    tasks: tuple[messages.Task, ...]
    next_page_token: str
    page_size: Int32
    total_size: Int32


def read_request(operation: Operation, members: Members) -> Any:
    """Read the members of a request. Raises ``A2AError`` with the fields that are wrong."""
    kind = operation.request
    if kind is SendMessageRequest:
        return protojson.read(members, SendMessageParams).to_model()
    if kind is operations.TaskPushNotificationConfig:
        return protojson.read(members, CreateConfig).to_model()
    if kind is operations.ListTasksRequest:
        return protojson.read(members, ListTasksParams).to_model()
    if kind is operations.GetExtendedAgentCardRequest:
        return operations.GetExtendedAgentCardRequest()
    if kind is operations.ListTaskPushNotificationConfigsRequest:
        below = protojson.read(members, ParentRequest)
        return operations.ListTaskPushNotificationConfigsRequest(
            task_id=_parse_name(below.parent)[0],
            page_size=below.page_size,
            page_token=below.page_token,
        )
    if kind in (
        operations.GetTaskPushNotificationConfigRequest,
        operations.DeleteTaskPushNotificationConfigRequest,
    ):
        task_id, config_id = _parse_name(protojson.read(members, NamedConfigRequest).name)
        return kind(task_id=task_id, id=config_id)
    named = protojson.read(members, NamedRequest)
    task_id = _parse_name(named.name)[0]
    if kind is operations.GetTaskRequest:
        length = optional_length(named.history_length)
        return operations.GetTaskRequest(id=task_id, history_length=length)
    return kind(id=task_id)


def write_request(operation: Operation, request: Any) -> Members:
    """Return the members of a request."""
    return _members(_request(request))


def _request(request: Any) -> A2AStruct:
    match request:
        case SendMessageRequest():
            return OutgoingSendMessageParams.of(request)
        case operations.TaskPushNotificationConfig():
            return CreateConfig.of(request)
        case operations.ListTasksRequest():
            return ListTasksParams.of(request)
        case operations.GetExtendedAgentCardRequest():
            return Empty()
        case operations.ListTaskPushNotificationConfigsRequest():
            parent = task_name(request.task_id)
            size, token = request.page_size, request.page_token
            return ParentRequest(parent=parent, page_size=size, page_token=token)
        case (
            operations.GetTaskPushNotificationConfigRequest()
            | operations.DeleteTaskPushNotificationConfigRequest()
        ):
            return NamedConfigRequest(name=config_name(request.task_id, request.id))
        case operations.GetTaskRequest():
            length = explicit_length(request.history_length)
            return NamedRequest(name=task_name(request.id), history_length=length)
    return NamedRequest(name=task_name(request.id))


def write_result(operation: Operation, answer: Any) -> Members:
    """Return the members of the answer to an operation."""
    if isinstance(answer, AgentCard):
        return cards.proto_members_of(answer)
    return _members(result_of(operation, answer))


def result_of(operation: Operation, answer: Any) -> A2AStruct:
    """Return the message of the answer to an operation other than a card."""
    match answer:
        case ListTasksResponse():
            return ListTasksResult(
                tasks=tuple([messages.Task.of(task) for task in answer.tasks]),
                next_page_token=answer.next_page_token,
                page_size=answer.page_size,
                total_size=answer.total_size,
            )
        case operations.TaskPushNotificationConfig():
            return TaskPushNotificationConfig.of(answer)
        case operations.ListTaskPushNotificationConfigsResponse():
            found = tuple([TaskPushNotificationConfig.of(config) for config in answer.configs])
            return ListConfigsResponse(configs=found, next_page_token=answer.next_page_token)
        case Empty():
            return answer
    if operation.response is SendMessageResponse:
        return messages.Response.of(answer)
    return messages.Task.of(answer)


def read_result(operation: Operation, members: Any) -> Any:
    """Read the answer to an operation. Raises ``InvalidAgentResponseError``."""
    kind = operation.response
    asked = f"the answer to {operation.name}"
    try:
        with tolerance.logging_problems(asked):
            return _read_result(kind, members)
    except (A2AError, ValueError, RecursionError) as error:
        raise invalid_answer(asked, kind, error) from None


def _read_result(kind: type, members: Any) -> Any:
    if kind is Empty:
        return Empty()
    if kind is AgentCard:
        return cards.read_card(protojson.read_answer(members, dict))
    if kind is Task:
        return protojson.read_answer(members, messages.Task).to_model()
    if kind is SendMessageResponse:
        return protojson.read_answer(members, messages.Response).to_model()
    if kind is operations.TaskPushNotificationConfig:
        return protojson.read_answer(members, TaskPushNotificationConfig).to_model()
    # Some agents send null for an empty list, or the items without the page around them.
    name = "configs" if kind is Configs else "tasks"
    if members is None or isinstance(members, list):
        members = {name: members or []}
    if kind is Configs:
        page = protojson.read_answer(members, ListConfigsResponse)
        return Configs(
            configs=tuple([config.to_model() for config in page.configs]),
            next_page_token=page.next_page_token,
        )
    answer = protojson.read_answer(members, ListTasksResult)
    return ListTasksResponse(
        tasks=tuple([task.to_model() for task in answer.tasks]),
        next_page_token=answer.next_page_token,
        page_size=answer.page_size,
        total_size=answer.total_size,
    )


def write_event(event: Event) -> Members:
    """Return the members of one event of a stream."""
    return _members(messages.Response.of(event))


def read_event(members: Any) -> Event:
    """Read one event of a stream. Raises ``InvalidAgentResponseError``."""
    try:
        with tolerance.logging_problems("an event of a stream"):
            return protojson.read_answer(members, messages.Response).to_model()
    except (A2AError, ValueError, RecursionError) as error:
        raise invalid_answer("an event of a stream", operations.StreamResponse, error) from None


def _members(message: A2AStruct) -> Members:
    members: Members = protojson.parse(encode(message))
    return members
