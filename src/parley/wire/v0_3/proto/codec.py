"""Requests and answers in the JSON of the proto of version 0.3, as plain Python values.

What HTTP+JSON says in paths, queries and bodies is put together into one message of the proto, as
gRPC has it: ``{"name": "tasks/1"}``. So a binding that carries these messages in another way needs
nothing but a mapping of them to JSON: gRPC uses protobuf's own. ``read_request``, ``read_result``
and ``read_event`` take the members of a JSON object, in either spelling of ProtoJSON;
``write_request``, ``write_result`` and ``write_event`` return them, in camelCase, with no value
that JSON lacks. Members that a peer's proto does not have (the metadata of a part and the name of a
file came after 0.3.0) are to be passed over by who reads them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model import push, requests
from parley.model.cards import AgentCard
from parley.model.encoding import encode
from parley.model.errors import A2AError
from parley.model.operations import Operation
from parley.model.requests import Empty, ListTasksResponse, SendMessageRequest, SendMessageResponse
from parley.model.struct import A2AStruct, Int32, WrongField
from parley.model.tasks import Event, Task, TaskStatusUpdateEvent
from parley.wire.json import protojson, tolerance
from parley.wire.v0_3 import cards, values
from parley.wire.v0_3.json import Configs, unreadable
from parley.wire.v0_3.params import ListTasksParams, PushNotificationConfig, length_of, meant_by
from parley.wire.v0_3.proto import messages
from parley.wire.v0_3.values import DEFAULT_CONFIG_ID

Members = dict[str, Any]

_TASKS, _CONFIGS = "tasks/", "/pushNotificationConfigs/"


def task_name(task_id: str) -> str:
    """Return the name of a task."""
    return _TASKS + task_id


def config_name(task_id: str, config_id: str) -> str:
    """Return the name of a webhook of a task."""
    return f"{_TASKS}{task_id}{_CONFIGS}{config_id}"


def _ids(name: str, field: str = "name") -> tuple[str, str]:
    """Return the ids in the name of a task or of one of its webhooks."""
    task_id, _, config_id = name.removeprefix(_TASKS).partition(_CONFIGS)
    if not name.startswith(_TASKS) or not task_id:
        raise WrongField(field, f"expected tasks/ and the id of a task, got {name[:60]!r}")
    return task_id, config_id


class SendMessageConfiguration(A2AStruct, frozen=True, kw_only=True):
    """How a message is to be answered. One that leaves ``blocking`` out says false."""

    accepted_output_modes: tuple[str, ...] = ()
    push_notification: PushNotificationConfig | None = None
    history_length: Int32 | None = None
    blocking: bool | None = None

    @classmethod
    def of(cls, configuration: requests.SendMessageConfiguration) -> SendMessageConfiguration:
        """Return a configuration as 0.3 says it."""
        webhook = configuration.task_push_notification_config
        return cls(
            accepted_output_modes=configuration.accepted_output_modes,
            push_notification=None if webhook is None else PushNotificationConfig.of(webhook),
            history_length=length_of(configuration.history_length),
            blocking=not configuration.return_immediately,
        )

    def meant(self) -> requests.SendMessageConfiguration:
        """Return the configuration of the data model."""
        webhook = self.push_notification
        return requests.SendMessageConfiguration(
            accepted_output_modes=self.accepted_output_modes,
            task_push_notification_config=None if webhook is None else webhook.meant(),
            history_length=meant_by(self.history_length),
            return_immediately=not self.blocking,
        )


class SendParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent."""

    request: messages.SentMessage = msgspec.field(name="message")
    configuration: SendMessageConfiguration | None = None
    metadata: dict[str, Any] | None = None

    def meant(self) -> SendMessageRequest:
        """Return the request of the data model."""
        given = self.configuration
        return SendMessageRequest(
            message=self.request.meant(),
            configuration=None if given is None else given.meant(),
            metadata=self.metadata,
        )


class WrittenSendParams(A2AStruct, frozen=True, kw_only=True):
    """A message for the agent, as it is written.

    That it may wait is always said, and how much of the history is wanted.
    """

    request: messages.Message = msgspec.field(name="message")
    configuration: SendMessageConfiguration
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, request: SendMessageRequest) -> WrittenSendParams:
        """Return a request as 0.3 says it."""
        configuration = request.configuration or requests.SendMessageConfiguration()
        return cls(
            request=messages.Message.of(request.message),
            configuration=SendMessageConfiguration.of(configuration),
            metadata=request.metadata,
        )


class Named(A2AStruct, frozen=True, kw_only=True):
    """A request that is about a task, or about one of its webhooks."""

    name: str
    history_length: Int32 | None = None

    def __post_init__(self) -> None:
        _ids(self.name)


class NamedConfig(Named, frozen=True, kw_only=True):
    """A request that is about a webhook of a task."""

    def __post_init__(self) -> None:
        if not _ids(self.name)[1]:
            words = f"expected the name of a task{_CONFIGS} and an id, got {self.name[:60]!r}"
            raise WrongField("name", words)


class Below(A2AStruct, frozen=True, kw_only=True):
    """A request that is about all webhooks of a task."""

    parent: str
    page_size: Int32 = 0
    page_token: str = ""

    def __post_init__(self) -> None:
        _ids(self.parent, "parent")


class TaskPushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """A webhook of a task."""

    name: str = ""
    push_notification_config: PushNotificationConfig

    @classmethod
    def of(cls, config: push.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return a webhook as 0.3 says it."""
        return cls(
            name=config_name(config.task_id, config.id),
            push_notification_config=PushNotificationConfig.of(config),
        )

    def meant(self) -> push.TaskPushNotificationConfig:
        """Return the webhook of the data model; one whose name is none is of no task."""
        task_id = config_id = ""
        try:
            task_id, config_id = _ids(self.name)
        except WrongField as wrong:
            tolerance.note([("name", wrong.description)])
        webhook = self.push_notification_config
        meant = webhook.meant(task_id)
        return msgspec.structs.replace(meant, id=webhook.id or config_id or meant.id)


class CreateConfig(A2AStruct, frozen=True, kw_only=True):
    """A further webhook for a task."""

    parent: str
    config_id: str = ""
    config: TaskPushNotificationConfig

    def __post_init__(self) -> None:
        _ids(self.parent, "parent")

    @classmethod
    def of(cls, config: push.TaskPushNotificationConfig) -> CreateConfig:
        """Return a request as 0.3 says it."""
        return cls(
            parent=task_name(config.task_id),
            config_id=config.id,
            config=TaskPushNotificationConfig.of(config),
        )

    def meant(self) -> push.TaskPushNotificationConfig:
        """Return the webhook of the data model."""
        webhook = self.config.push_notification_config
        meant = webhook.meant(_ids(self.parent, "parent")[0])
        return msgspec.structs.replace(meant, id=webhook.id or self.config_id or DEFAULT_CONFIG_ID)


class ListConfigsResponse(A2AStruct, frozen=True, kw_only=True):
    """A page of webhooks."""

    configs: tuple[TaskPushNotificationConfig, ...] = ()
    next_page_token: str = ""


class ListTasksAnswer(A2AStruct, frozen=True, kw_only=True):
    """A page of tasks: 0.3 has no message for it, this is that of 1.0 with tasks of 0.3."""

    tasks: tuple[messages.Task, ...]
    next_page_token: str
    page_size: Int32
    total_size: Int32


def read_request(operation: Operation, members: Members) -> Any:
    """Return what a request asks for. Raises ``A2AError`` with the fields that are wrong."""
    kind = operation.request
    if kind is SendMessageRequest:
        return protojson.read(members, SendParams).meant()
    if kind is push.TaskPushNotificationConfig:
        return protojson.read(members, CreateConfig).meant()
    if kind is requests.ListTasksRequest:
        return protojson.read(members, ListTasksParams).meant()
    if kind is requests.GetExtendedAgentCardRequest:
        return requests.GetExtendedAgentCardRequest()
    if kind is requests.ListTaskPushNotificationConfigsRequest:
        below = protojson.read(members, Below)
        return requests.ListTaskPushNotificationConfigsRequest(
            task_id=_ids(below.parent)[0],
            page_size=below.page_size,
            page_token=below.page_token,
        )
    if kind in (
        requests.GetTaskPushNotificationConfigRequest,
        requests.DeleteTaskPushNotificationConfigRequest,
    ):
        task_id, config_id = _ids(protojson.read(members, NamedConfig).name)
        return kind(task_id=task_id, id=config_id)
    named = protojson.read(members, Named)
    task_id = _ids(named.name)[0]
    if kind is requests.GetTaskRequest:
        length = meant_by(named.history_length)
        return requests.GetTaskRequest(id=task_id, history_length=length)
    return kind(id=task_id)


def write_request(operation: Operation, request: Any) -> Members:
    """Return the request as a message of the proto."""
    return _members(_request(request))


def _request(request: Any) -> A2AStruct:
    match request:
        case SendMessageRequest():
            return WrittenSendParams.of(request)
        case push.TaskPushNotificationConfig():
            return CreateConfig.of(request)
        case requests.ListTasksRequest():
            return ListTasksParams.of(request)
        case requests.GetExtendedAgentCardRequest():
            return Empty()
        case requests.ListTaskPushNotificationConfigsRequest():
            parent = task_name(request.task_id)
            size, token = request.page_size, request.page_token
            return Below(parent=parent, page_size=size, page_token=token)
        case (
            requests.GetTaskPushNotificationConfigRequest()
            | requests.DeleteTaskPushNotificationConfigRequest()
        ):
            return NamedConfig(name=config_name(request.task_id, request.id))
        case requests.GetTaskRequest():
            length = length_of(request.history_length)
            return Named(name=task_name(request.id), history_length=length)
    return Named(name=task_name(request.id))


def write_result(operation: Operation, answer: Any) -> Members:
    """Return the answer to an operation as a message of the proto."""
    if isinstance(answer, AgentCard):
        return cards.proto_members_of(answer)
    return _members(result_of(operation, answer))


def result_of(operation: Operation, answer: Any) -> A2AStruct:
    """Return the message of the proto that is the answer to an operation, if it is no card."""
    match answer:
        case ListTasksResponse():
            return ListTasksAnswer(
                tasks=tuple([messages.Task.of(task) for task in answer.tasks]),
                next_page_token=answer.next_page_token,
                page_size=answer.page_size,
                total_size=answer.total_size,
            )
        case push.TaskPushNotificationConfig():
            return TaskPushNotificationConfig.of(answer)
        case requests.ListTaskPushNotificationConfigsResponse():
            found = tuple([TaskPushNotificationConfig.of(config) for config in answer.configs])
            return ListConfigsResponse(configs=found, next_page_token=answer.next_page_token)
        case Empty():
            return answer
    if operation.response is SendMessageResponse:
        return messages.Response.of(answer)
    return messages.Task.of(answer)


def read_result(operation: Operation, members: Any) -> Any:
    """Return what an answer says. Raises ``InvalidAgentResponseError``."""
    kind = operation.response
    asked = f"the answer to {operation.name}"
    try:
        with tolerance.noted(asked):
            return _read_result(kind, members)
    except (A2AError, ValueError, RecursionError) as error:
        raise unreadable(asked, kind, error) from None


def _read_result(kind: type, members: Any) -> Any:
    if kind is Empty:
        return Empty()
    if kind is AgentCard:
        return cards.read_card(protojson.read_answer(members, dict))
    if kind is Task:
        return protojson.read_answer(members, messages.Task).meant()
    if kind is SendMessageResponse:
        return protojson.read_answer(members, messages.Response).meant()
    if kind is push.TaskPushNotificationConfig:
        return protojson.read_answer(members, TaskPushNotificationConfig).meant()
    # Some say null for an empty list, or the items without the page around them.
    items = [] if members is None else members
    if kind is Configs:
        page = protojson.read_answer(
            {"configs": items} if isinstance(items, list) else items, ListConfigsResponse
        )
        return Configs(
            configs=tuple([config.meant() for config in page.configs]),
            next_page_token=page.next_page_token,
        )
    answer = protojson.read_answer(
        {"tasks": items} if isinstance(items, list) else items, ListTasksAnswer
    )
    return ListTasksResponse(
        tasks=tuple([task.meant() for task in answer.tasks]),
        next_page_token=answer.next_page_token,
        page_size=answer.page_size,
        total_size=answer.total_size,
    )


def write_event(event: Event) -> Members:
    """Return one event of a stream, or the answer to a message, as a message of the proto."""
    return _members(messages.Response.of(event))


def read_event(members: Any) -> Event:
    """Return what an event of a stream says. Raises ``InvalidAgentResponseError``."""
    try:
        with tolerance.noted("an event of a stream"):
            return protojson.read_answer(members, messages.Response).meant()
    except (A2AError, ValueError, RecursionError) as error:
        raise unreadable("an event of a stream", requests.StreamResponse, error) from None


def ends_stream(event: Event) -> bool:
    """Whether the event is a final one (0.3 §7.2.2)."""
    return isinstance(event, TaskStatusUpdateEvent) and values.is_final(event.status)


def _members(message: A2AStruct) -> Members:
    members: Members = protojson.parse(encode(message))
    return members
