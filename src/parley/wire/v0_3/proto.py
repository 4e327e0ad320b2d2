"""Version 0.3 in the JSON of its proto: objects, and requests, answers and events as members.

HTTP+JSON bodies have this form, and gRPC carries it: ``http_json`` puts paths, queries and bodies
together into one message, as gRPC has it (``{"name": "tasks/1"}``); ``grpc`` maps protobuf messages
to members and back. Reading accepts both spellings of ProtoJSON; writing gives camelCase.

The proto's field for the bytes of a file holds raw bytes, but the official SDKs for Python, Go and
Java send and expect base64 text there. Both are read; raw bytes are sent, unless the peer is known
to expect text.
"""

from __future__ import annotations

import binascii
from enum import Enum
from typing import Annotated, Any, Self

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from parley.model import operations
from parley.model import parts as core_parts
from parley.model import tasks as core_tasks
from parley.model.cards import AgentCard
from parley.model.errors import A2AError
from parley.model.operations import (
    Empty,
    ListTasksResponse,
    Operation,
    SendMessageRequest,
    SendMessageResponse,
)
from parley.model.parts import Role
from parley.model.struct import A2AStruct, Int32, InvalidField, NonEmpty, encode
from parley.model.tasks import Event
from parley.wire.json import problems, protojson
from parley.wire.v0_3 import cards
from parley.wire.v0_3.json import Configs, invalid_answer
from parley.wire.v0_3.values import (
    DEFAULT_CONFIG_ID,
    ArtifactForm,
    Form,
    ListTasksParams,
    MessageForm,
    PushNotificationConfig,
    explicit_length,
    is_final,
    optional_length,
    parse_answer_timestamp,
    repair_file,
    unwrap,
    wrap,
)

Members = dict[str, Any]

_TASKS, _CONFIGS = "tasks/", "/pushNotificationConfigs/"


def task_name(task_id: str) -> str:
    """Return the resource name of a task."""
    return _TASKS + task_id


def config_name(task_id: str, config_id: str) -> str:
    """Return the resource name of a webhook of a task."""
    return f"{_TASKS}{task_id}{_CONFIGS}{config_id}"


def _parse_name(name: str, field: str = "name") -> tuple[str, str]:
    """Return the ids in the resource name of a task or of its webhook."""
    task_id, _, config_id = name.removeprefix(_TASKS).partition(_CONFIGS)
    if not name.startswith(_TASKS) or not task_id:
        raise InvalidField(field, f"expected tasks/ and the id of a task, got {name[:60]!r}")
    return task_id, config_id


# User-Agent or Server of what these SDKs are built on: the libraries of their clients, and Python's
# servers. Servers in Go and Java give no name.
_TEXT_PEERS = (
    *("python-httpx", "grpc-python", "uvicorn", "hypercorn", "granian"),
    *("Go-http-client", "grpc-go", "Java-http-client", "grpc-java"),
)


def expects_base64_text(peer: str) -> bool:
    """Return whether a peer of this name (``User-Agent`` or ``Server``) expects base64 text."""
    return peer.startswith(_TEXT_PEERS)


def decode_content(given: bytes, media_type: str) -> bytes:
    """Return the content of a file, from the bytes that were received.

    Valid base64 is decoded, unless it is declared as text and decodes to something else.
    """
    if not given or len(given) % 4:
        return given
    try:
        content = binascii.a2b_base64(given, strict_mode=True)
    except ValueError:
        return given
    if media_type.lower().startswith("text/"):
        try:
            content.decode()
        except UnicodeDecodeError:
            return given
    return content


def with_base64_text(value: Any) -> Any:
    """Return a message, an answer or an event with base64 text for the bytes of its files."""
    match value:
        case core_parts.Part(raw=bytes() as raw):
            return replace(value, raw=binascii.b2a_base64(raw, newline=False))
        case core_parts.Message() | core_parts.Artifact():
            return replace(value, parts=_each(value.parts))
        case core_tasks.TaskStatus(message=core_parts.Message()):
            return replace(value, message=with_base64_text(value.message))
        case core_tasks.TaskStatusUpdateEvent():
            return replace(value, status=with_base64_text(value.status))
        case core_tasks.TaskArtifactUpdateEvent():
            return replace(value, artifact=with_base64_text(value.artifact))
        case SendMessageRequest():
            return replace(value, message=with_base64_text(value.message))
        case core_tasks.Task():
            return replace(
                value,
                status=with_base64_text(value.status),
                artifacts=_each(value.artifacts),
                history=_each(value.history),
            )
        case ListTasksResponse():
            return replace(value, tasks=_each(value.tasks))
    return value


def _each(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([with_base64_text(value) for value in values])


class State(Enum):
    """A task's state, in the order of its numbers. 1.0 spells CANCELLED with one L."""

    UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELLED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"


_STATE_OF = {state: State[state.name] for state in core_tasks.TaskState}


class ProtoForm(Form, frozen=True, kw_only=True):
    """A message of the proto that has a counterpart in the data model."""

    FORMS = {}


class FilePart(Form, frozen=True, kw_only=True):
    """A file, by its bytes or its URI."""

    MODEL = core_parts.Part
    NAMES = {
        "file_with_uri": "url",
        "file_with_bytes": "raw",
        "mime_type": "media_type",
        "name": "filename",
    }

    file_with_uri: str | None = None
    file_with_bytes: bytes | None = None
    mime_type: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if (self.file_with_uri is None) == (self.file_with_bytes is None):
            raise ValueError("a file has exactly one of fileWithBytes and fileWithUri")


class DataPart(A2AStruct, frozen=True, kw_only=True):
    """A JSON object."""

    data: dict[str, Any]


class Part(Form, frozen=True, kw_only=True):
    """A text part, a file part or a data part."""

    text: str | None = None
    file: FilePart | None = None
    data: DataPart | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("text", "file", "data") if getattr(self, name) is not None]
        if len(given) != 1:
            has = " and ".join(given) or "none of them"
            raise ValueError(f"a part has exactly one of text, file and data; this one has {has}")

    @classmethod
    def of(cls, part: core_parts.Part, /, **_: Any) -> Self:
        """Return the 0.3 form of a part, without the name and media type of text and data."""
        if part.text is not None:
            return cls(text=part.text, metadata=part.metadata)
        if not part.has_data:
            return cls(file=FilePart.of(part), metadata=part.metadata)
        data, metadata = wrap(part)
        return cls(data=DataPart(data=data), metadata=metadata)

    def to_model(self, **_: Any) -> Any:
        """Return the part of the data model."""
        file = self.file
        if file is not None:
            given = file.file_with_bytes
            raw = None if given is None else decode_content(given, file.mime_type)
            return file.to_model(raw=raw, metadata=self.metadata)
        if self.data is not None:
            return unwrap(self.data.data, self.metadata)
        return core_parts.Part(text=self.text, metadata=self.metadata)


@problems.repairs(FilePart)
def _file(given: dict[str, Any]) -> bool:
    return repair_file(given, "file_with_bytes", "file_with_uri")


@problems.repairs(Part)
def _part(given: dict[str, Any]) -> bool:
    """Keep the first content that is not empty; a part without any is an empty text."""
    if not given:
        return False
    content = [name for name in ("text", "file", "data") if given.get(name) is not None]
    kept = ([name for name in content if given[name] != ""] or content or ["text"])[0]
    for name in content:
        if name != kept:
            del given[name]
    given.setdefault(kept, "")
    return True


class Message(MessageForm, ProtoForm, frozen=True, kw_only=True):
    """A message, as it may be in an answer. The proto has no references to tasks."""

    NAMES = {"content": "parts"}
    PARTS = "content"

    message_id: str = ""
    context_id: str = ""
    task_id: str = ""
    role: Role = Role.UNSPECIFIED
    content: tuple[Part, ...] = ()
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()


class RequestMessage(Message, frozen=True, kw_only=True):
    """A message in a request."""

    message_id: NonEmpty
    role: Role
    content: Annotated[tuple[Part, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if self.role is Role.UNSPECIFIED:
            raise InvalidField("role", "expected ROLE_USER or ROLE_AGENT")


class Artifact(ArtifactForm, ProtoForm, frozen=True, kw_only=True):
    """An artifact, or a chunk of one."""

    parts: tuple[Part, ...] = ()
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()


class TaskStatus(ProtoForm, frozen=True, kw_only=True):
    """A task's status."""

    MODEL = core_tasks.TaskStatus
    NAMES = {"update": "message"}

    state: State = State.UNSPECIFIED
    update: Message | None = msgspec.field(default=None, name="message")
    timestamp: str | None = None

    def to_model(self, **_: Any) -> Any:
        """Return the status of the data model. Raises ``ValueError``."""
        return super().to_model(timestamp=parse_answer_timestamp(self.timestamp))


class Task(ProtoForm, frozen=True, kw_only=True):
    """A task."""

    MODEL = core_tasks.Task

    id: NonEmpty
    context_id: str = ""
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: dict[str, Any] | None = None


class TaskStatusUpdateEvent(ProtoForm, frozen=True, kw_only=True):
    """A change of status."""

    MODEL = core_tasks.TaskStatusUpdateEvent

    task_id: NonEmpty
    context_id: str = ""
    status: TaskStatus
    final: bool = False
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, event: core_tasks.TaskStatusUpdateEvent, /, **_: Any) -> Self:
        """Return the 0.3 form of a change of status."""
        return super().of(event, final=is_final(event.status))


class TaskArtifactUpdateEvent(ProtoForm, frozen=True, kw_only=True):
    """A new artifact, or a further chunk of one."""

    MODEL = core_tasks.TaskArtifactUpdateEvent

    task_id: NonEmpty
    context_id: str = ""
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: dict[str, Any] | None = None


class Response(A2AStruct, frozen=True, kw_only=True):
    """Exactly one event: the answer to a message, or an event of a stream."""

    task: Task | None = None
    msg: Message | None = msgspec.field(default=None, name="message")
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None

    def __post_init__(self) -> None:
        given = (self.task, self.msg, self.status_update, self.artifact_update)
        if sum(each is not None for each in given) != 1:
            raise ValueError("exactly one of task, message, statusUpdate and artifactUpdate is set")

    @classmethod
    def of(cls, event: Event) -> Response:
        """Return the 0.3 form of an event."""
        return cls(**{_EVENTS[type(event)]: ProtoForm.form(event)})

    def to_model(self) -> Event:
        """Return the event of the data model. Raises ``ValueError``."""
        event = self.artifact_update or self.status_update or self.task or self.msg
        assert event is not None  # __post_init__ ensures it
        return event.to_model()  # type: ignore[no-any-return]


_EVENTS = {
    core_tasks.Task: "task",
    core_parts.Message: "msg",
    core_tasks.TaskStatusUpdateEvent: "status_update",
    core_tasks.TaskArtifactUpdateEvent: "artifact_update",
}


class SendMessageConfiguration(ProtoForm, frozen=True, kw_only=True):
    """Options for the answer. A missing ``blocking`` is false."""

    MODEL = operations.SendMessageConfiguration
    NAMES = {"push_notification": "task_push_notification_config"}

    accepted_output_modes: tuple[str, ...] = ()
    push_notification: PushNotificationConfig | None = None
    history_length: Int32 | None = None
    blocking: bool | None = None

    @classmethod
    def of(cls, configuration: operations.SendMessageConfiguration, /, **_: Any) -> Self:
        """Return the 0.3 form of a configuration."""
        return super().of(
            configuration,
            history_length=explicit_length(configuration.history_length),
            blocking=not configuration.return_immediately,
        )

    def to_model(self, **_: Any) -> Any:
        """Return the configuration of the data model."""
        return super().to_model(
            history_length=optional_length(self.history_length),
            return_immediately=not self.blocking,
        )


class SendMessageParams(Form, frozen=True, kw_only=True):
    """A message for the agent."""

    MODEL = SendMessageRequest
    NAMES = {"request": "message"}

    request: RequestMessage = msgspec.field(name="message")
    configuration: SendMessageConfiguration | None = None
    metadata: dict[str, Any] | None = None


class OutgoingSendMessageParams(ProtoForm, frozen=True, kw_only=True):
    """A message for the agent, as a client sends it: always with a configuration."""

    MODEL = SendMessageRequest
    NAMES = SendMessageParams.NAMES

    request: Message = msgspec.field(name="message")
    configuration: SendMessageConfiguration
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, request: SendMessageRequest, /, **_: Any) -> Self:
        """Return the 0.3 form of a request."""
        configuration = request.configuration or operations.SendMessageConfiguration()
        return super().of(request, configuration=cls.form(configuration))


class NamedRequest(A2AStruct, frozen=True, kw_only=True):
    """A request about a task or about its webhook."""

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

    def to_model(self) -> Any:
        """Return the webhook of the data model; without a valid name it has no task."""
        task_id = config_id = ""
        try:
            task_id, config_id = _parse_name(self.name)
        except InvalidField as wrong:
            problems.report([("name", wrong.description)])
        webhook = self.push_notification_config
        config = webhook.to_model(task_id=task_id)
        return replace(config, id=webhook.id or config_id or config.id)


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

    def to_model(self) -> Any:
        """Return the webhook of the data model."""
        webhook = self.config.push_notification_config
        config = webhook.to_model(task_id=_parse_name(self.parent, "parent")[0])
        return replace(config, id=webhook.id or self.config_id or DEFAULT_CONFIG_ID)


class ListConfigsResponse(A2AStruct, frozen=True, kw_only=True):
    """A page of webhooks."""

    configs: tuple[TaskPushNotificationConfig, ...] = ()
    next_page_token: str = ""


class ListTasksResult(ProtoForm, frozen=True, kw_only=True):
    """A page of tasks: 0.3 has no message for it, so this is the page of 1.0 with tasks of 0.3."""

    MODEL = ListTasksResponse

    tasks: tuple[Task, ...]
    next_page_token: str
    page_size: Int32
    total_size: Int32


ProtoForm.FORMS.update(
    Form.FORMS
    | {
        core_tasks.TaskState: _STATE_OF.__getitem__,
        Role: Role,
        core_parts.Part: Part.of,
        core_parts.Message: Message.of,
        core_parts.Artifact: Artifact.of,
        core_tasks.TaskStatus: TaskStatus.of,
        core_tasks.Task: Task.of,
        core_tasks.TaskStatusUpdateEvent: TaskStatusUpdateEvent.of,
        core_tasks.TaskArtifactUpdateEvent: TaskArtifactUpdateEvent.of,
        operations.SendMessageConfiguration: SendMessageConfiguration.of,
    }
)


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
            return ListTasksResult.of(answer)
        case operations.TaskPushNotificationConfig():
            return TaskPushNotificationConfig.of(answer)
        case operations.ListTaskPushNotificationConfigsResponse():
            found = tuple([TaskPushNotificationConfig.of(config) for config in answer.configs])
            return ListConfigsResponse(configs=found, next_page_token=answer.next_page_token)
        case Empty():
            return answer
    if operation.response is SendMessageResponse:
        return Response.of(answer)
    return Task.of(answer)


def read_result(operation: Operation, members: Any) -> Any:
    """Read the answer to an operation. Raises ``InvalidAgentResponseError``."""
    kind = operation.response
    asked = f"the answer to {operation.name}"
    try:
        with problems.logging_problems(asked):
            return _read_result(kind, members)
    except (A2AError, ValueError, RecursionError) as error:
        raise invalid_answer(asked, kind, error) from None


def _read_result(kind: type, members: Any) -> Any:
    if kind is Empty:
        return Empty()
    if kind is AgentCard:
        return cards.read_card(protojson.read_answer(members, dict))
    if kind is core_tasks.Task:
        return protojson.read_answer(members, Task).to_model()
    if kind is SendMessageResponse:
        return protojson.read_answer(members, Response).to_model()
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
    return protojson.read_answer(members, ListTasksResult).to_model()


def write_event(event: Event) -> Members:
    """Return the members of one event of a stream."""
    return _members(Response.of(event))


def read_event(members: Any) -> Event:
    """Read one event of a stream. Raises ``InvalidAgentResponseError``."""
    try:
        with problems.logging_problems("an event of a stream"):
            return protojson.read_answer(members, Response).to_model()
    except (A2AError, ValueError, RecursionError) as error:
        raise invalid_answer("an event of a stream", operations.StreamResponse, error) from None


def _members(message: A2AStruct) -> Members:
    members: Members = protojson.parse(encode(message))
    return members
