"""Version 0.3 in the JSON of its proto: objects, requests, answers and events.

HTTP+JSON bodies have this form, and gRPC carries it: ``http_json`` joins paths, queries and bodies
to one message, as gRPC has it (``{"name": "tasks/1"}``); ``grpc`` maps protobuf messages to members
and back. Reading accepts both spellings of ProtoJSON; writing gives camelCase.

The proto's field for the bytes of a file has raw bytes, but the official SDKs for Python, Go and
Java send and expect base64 text. Both are read; raw bytes are sent, unless the peer is known to
expect text.
"""

from __future__ import annotations

import binascii
from typing import Any, ClassVar, Self

import msgspec
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
from parley.model.struct import A2AStruct, Int32, InvalidField, NonEmpty
from parley.model.tasks import Event
from parley.wire.json import problems, protojson
from parley.wire.json.protojson import VersionForms
from parley.wire.v0_3 import cards
from parley.wire.v0_3.json import Configs, invalid_answer
from parley.wire.v0_3.values import (
    DEFAULT_CONFIG_ID,
    Form,
    ListTasksParams,
    MessageForm,
    PushNotificationConfig,
    explicit_length,
    is_final,
    optional_length,
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


# User-Agent or Server of peers built with these SDKs: the libraries of their clients, and Python's
# servers. Servers in Go and Java send no name.
_TEXT_PEERS = (
    *("python-httpx", "grpc-python", "uvicorn", "hypercorn", "granian"),
    *("Go-http-client", "grpc-go", "Java-http-client", "grpc-java"),
)


def expects_base64_text(peer: str) -> bool:
    """Return whether a peer with this ``User-Agent`` or ``Server`` expects base64 text."""
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
    if isinstance(value, tuple):
        return tuple([with_base64_text(each) for each in value])
    if isinstance(value, core_parts.Part):
        raw = value.raw
        return value if raw is None else replace(value, raw=binascii.b2a_base64(raw, newline=False))
    held = _WITH_PARTS.intersection(getattr(value, "__struct_fields__", ()))
    if not held:
        return value
    return replace(value, **{name: with_base64_text(getattr(value, name)) for name in held})


_WITH_PARTS = frozenset({"message", "parts", "status", "artifact", "artifacts", "history", "tasks"})
"""The fields that hold parts, or values with parts."""


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
    """Keep the first non-empty content; a part without content becomes an empty text."""
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
    """A message in an answer. The proto has no references to tasks."""

    NAMES = {"content": "parts"}
    PARTS = "content"

    message_id: str = ""
    context_id: str = ""
    task_id: str = ""
    role: Role = Role.UNSPECIFIED
    content: tuple[core_parts.Part, ...] = ()
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()


class InnerMessage(Message, frozen=True, kw_only=True):
    """A message of a task or of a status."""

    def to_model(self, **others: Any) -> Any:
        """Return the message of the data model, ``None`` for a message without parts."""
        return None if self.is_empty else super().to_model(**others)


class TaskStatusUpdateEvent(ProtoForm, frozen=True, kw_only=True):
    """A change of status."""

    MODEL = core_tasks.TaskStatusUpdateEvent

    task_id: NonEmpty
    context_id: str = ""
    status: core_tasks.TaskStatus
    final: bool = False
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, event: core_tasks.TaskStatusUpdateEvent, /, **_: Any) -> Self:
        """Return the 0.3 form of a change of status."""
        return super().of(event, final=is_final(event.status))


class Response(A2AStruct, frozen=True, kw_only=True):
    """Exactly one event: the answer to a message, or an event of a stream."""

    task: core_tasks.Task | None = None
    msg: Message | None = msgspec.field(default=None, name="message")
    status_update: core_tasks.TaskStatusUpdateEvent | None = None
    artifact_update: core_tasks.TaskArtifactUpdateEvent | None = None

    def __post_init__(self) -> None:
        given = (self.task, self.msg, self.status_update, self.artifact_update)
        if sum(each is not None for each in given) != 1:
            raise ValueError("exactly one of task, message, statusUpdate and artifactUpdate is set")

    @classmethod
    def of(cls, response: SendMessageResponse | operations.StreamResponse) -> Response:
        """Return the 0.3 form of an answer or an event."""
        event: Any = response.payload
        if isinstance(event, core_parts.Message):
            event = Message.of(event)
        return cls(**{_EVENTS[type(event)]: event})

    def to_model(self) -> Event:
        """Return the event of the data model."""
        if self.msg is not None:
            return self.msg.to_model()  # type: ignore[no-any-return]
        event = self.artifact_update or self.status_update or self.task
        assert event is not None  # __post_init__ ensures it
        return event


_EVENTS: dict[type, str] = {
    core_tasks.Task: "task",
    Message: "msg",
    core_tasks.TaskStatusUpdateEvent: "status_update",
    core_tasks.TaskArtifactUpdateEvent: "artifact_update",
}


class SendMessageConfiguration(Form, frozen=True, kw_only=True):
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


class NamedRequest(A2AStruct, frozen=True, kw_only=True):
    """A request about a task, or about a webhook of a task."""

    MODEL: ClassVar[Any]

    name: str

    def __post_init__(self) -> None:
        _, config_id = _parse_name(self.name)
        if not config_id and "task_id" in self.MODEL.__struct_fields__:
            words = f"expected the name of a task{_CONFIGS} and an id, got {self.name[:60]!r}"
            raise InvalidField("name", words)

    @classmethod
    def of(cls, request: Any) -> Self:
        """Return the 0.3 form of a request."""
        if hasattr(request, "task_id"):
            return cls(name=config_name(request.task_id, request.id))
        return cls(name=task_name(request.id))

    def to_model(self) -> Any:
        """Return the request of the data model."""
        task_id, config_id = _parse_name(self.name)
        if "task_id" in self.MODEL.__struct_fields__:
            return self.MODEL(task_id=task_id, id=config_id)
        return self.MODEL(id=task_id)


def _named(model: Any) -> Any:
    return msgspec.defstruct(
        model.__name__, (), bases=(NamedRequest,), namespace={"MODEL": model}, frozen=True
    )


class GetTaskRequest(NamedRequest, frozen=True, kw_only=True):
    """A request for a task. It always has a history length."""

    MODEL = operations.GetTaskRequest

    history_length: Int32 | None = None

    @classmethod
    def of(cls, request: operations.GetTaskRequest) -> Self:
        """Return the 0.3 form of a request."""
        return replace(super().of(request), history_length=explicit_length(request.history_length))

    def to_model(self) -> Any:
        """Return the request of the data model."""
        return replace(super().to_model(), history_length=optional_length(self.history_length))


class ListConfigsRequest(A2AStruct, frozen=True, kw_only=True):
    """A request about all webhooks of a task."""

    parent: str
    page_size: Int32 = 0
    page_token: str = ""

    def __post_init__(self) -> None:
        _parse_name(self.parent, "parent")

    @classmethod
    def of(cls, request: operations.ListTaskPushNotificationConfigsRequest) -> Self:
        """Return the 0.3 form of a request."""
        parent = task_name(request.task_id)
        return cls(parent=parent, page_size=request.page_size, page_token=request.page_token)

    def to_model(self) -> Any:
        """Return the request of the data model."""
        return operations.ListTaskPushNotificationConfigsRequest(
            task_id=_parse_name(self.parent)[0],
            page_size=self.page_size,
            page_token=self.page_token,
        )


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


REQUESTS = VersionForms(
    names={
        SendMessageRequest: {"message": ("request", "message"), "tenant": None},
        core_parts.Message: {"parts": ("content", "content"), "reference_task_ids": None},
        operations.GetExtendedAgentCardRequest: {"tenant": None},
    },
    types={
        core_parts.Part: Part,
        operations.SendMessageConfiguration: SendMessageConfiguration,
        operations.TaskPushNotificationConfig: CreateConfig,
        operations.GetTaskRequest: GetTaskRequest,
        **{
            model: _named(model)
            for model in (
                operations.CancelTaskRequest,
                operations.SubscribeToTaskRequest,
                operations.GetTaskPushNotificationConfigRequest,
                operations.DeleteTaskPushNotificationConfigRequest,
            )
        },
        operations.ListTaskPushNotificationConfigsRequest: ListConfigsRequest,
        operations.ListTasksRequest: ListTasksParams,
    },
)
"""The forms of requests."""

ANSWERS = VersionForms(
    names={core_tasks.TaskStatus: {"message": ("update", "message")}},
    types={
        core_parts.Part: Part,
        core_parts.Message: InnerMessage,
        core_tasks.TaskStatusUpdateEvent: TaskStatusUpdateEvent,
        SendMessageResponse: Response,
        operations.StreamResponse: Response,
        operations.TaskPushNotificationConfig: TaskPushNotificationConfig,
    },
    values={core_tasks.TaskState.CANCELED: "TASK_STATE_CANCELLED"},
)
"""The forms of answers and events. 0.3 has no page of tasks, so the page of 1.0 is used."""


def outgoing(request: Any) -> Any:
    """Return a request in the sent form: a message always has a configuration."""
    if isinstance(request, SendMessageRequest) and request.configuration is None:
        return replace(request, configuration=operations.SendMessageConfiguration())
    return request


def read_request(operation: Operation, members: Members) -> Any:
    """Read the members of a request. Raises ``A2AError`` with the fields that are wrong."""
    return protojson.read(members, operation.request, forms=REQUESTS)


def write_request(operation: Operation, request: Any) -> Members:
    """Return the members of a request."""
    members: Members = protojson.members_of(outgoing(request), REQUESTS)
    return members


def write_result(operation: Operation, answer: Any) -> Members:
    """Return the members of the answer to an operation."""
    if isinstance(answer, AgentCard):
        return cards.proto_members_of(answer)
    if operation.response is SendMessageResponse:
        answer = SendMessageResponse.of(answer)
    members: Members = protojson.members_of(answer, ANSWERS)
    return members


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
    # Some agents send null for an empty list, or the items without the page object.
    if kind in (Configs, ListTasksResponse) and (members is None or isinstance(members, list)):
        members = {"configs" if kind is Configs else "tasks": members or []}
    return protojson.read_answer(members, kind, ANSWERS)


def write_event(event: Event) -> Members:
    """Return the members of one event of a stream."""
    members: Members = protojson.members_of(operations.StreamResponse.of(event), ANSWERS)
    return members


def read_event(members: Any) -> Event:
    """Read one event of a stream. Raises ``A2AError``."""
    response: Any = protojson.read_answer(members, operations.StreamResponse, ANSWERS)
    event: Event = response
    return event
