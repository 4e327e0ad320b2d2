"""The objects of version 0.3 in JSON: messages, tasks, events, parameters and results (0.3 §6, §7).

A ``RequestMessage`` has all required members; a ``Message`` in an answer may lack ids and other
members, as in the examples that agents imitate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, Self
from uuid import uuid4

import msgspec
from msgspec import Meta

from parley.model import operations
from parley.model import parts as core_parts
from parley.model import tasks as core_tasks
from parley.model.struct import A2AStruct, Int32, InvalidField, NonEmpty, Timestamp
from parley.model.tasks import TaskState
from parley.wire.json import problems

WHOLE_HISTORY = 2**31 - 1
"""The history length for all messages, since 0.3 does not define a missing length.

In its proto a missing length is 0, and official Python servers then send no history; the official
JavaScript server sends none for GetTask without a length.
"""

DEFAULT_CONFIG_ID = "default"
"""The id of a push notification configuration that has none."""


class State(Enum):
    """A task's state, in the order of the proto's numbers."""

    UNSPECIFIED = "unknown"
    SUBMITTED = "submitted"
    WORKING = "working"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"
    INPUT_REQUIRED = "input-required"
    REJECTED = "rejected"
    AUTH_REQUIRED = "auth-required"


class Role(Enum):
    """The sender of a message."""

    USER = "user"
    AGENT = "agent"


STATE_OF = {state: State[state.name] for state in TaskState}
_ROLE_OF = {core_parts.Role.USER: Role.USER, core_parts.Role.AGENT: Role.AGENT}
_FINAL = core_tasks.TERMINAL_STATES | {TaskState.INPUT_REQUIRED}


def is_final(status: core_tasks.TaskStatus) -> bool:
    """Return whether an update with ``status`` ends its stream (0.3 §7.2.2)."""
    return status.state in _FINAL


def ends_stream(event: core_tasks.Event) -> bool:
    """Return whether an event ends its stream (0.3 §7.2.2)."""
    return isinstance(event, core_tasks.TaskStatusUpdateEvent) and is_final(event.status)


def parse_timestamp(text: str | None) -> Timestamp | None:
    """Parse a timestamp; without a time zone, it is in UTC. Raises ``ValueError``."""
    if not text:
        return None
    try:
        return Timestamp.parse(text)
    except ValueError:
        return Timestamp.parse(text + "Z")


def parse_answer_timestamp(text: str | None) -> Timestamp | None:
    """Parse a timestamp of an answer; ``None`` for other texts."""
    try:
        return parse_timestamp(text)
    except ValueError as error:
        guessed = problems.guess_timestamp(text)
        if guessed is None:
            problems.report([("timestamp", str(error))])
        return guessed


def explicit_length(history_length: int | None) -> int:
    """Return the length to send; ``None`` stands for the whole history."""
    return WHOLE_HISTORY if history_length is None else history_length


def optional_length(history_length: int | None) -> int | None:
    """Return a length that was received; ``None`` for the whole history."""
    return None if history_length == WHOLE_HISTORY else history_length


WRAPPED = "data_part_compat"
"""Metadata of a data part whose data is wrapped in an object, because 0.3 only has objects."""


def wrap(part: core_parts.Part) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the data and metadata of a data part, wrapped if the data is no object."""
    data, metadata = part.data, part.metadata
    if isinstance(data, dict) and not _is_wrapped(data, metadata):
        return data, metadata
    return {"value": data}, {**(metadata or {}), WRAPPED: True}


def unwrap(data: dict[str, Any], metadata: dict[str, Any] | None) -> core_parts.Part:
    """Return the data part from which ``wrap`` made this."""
    if not _is_wrapped(data, metadata):
        return core_parts.Part(data=data, metadata=metadata)
    others = {name: value for name, value in (metadata or {}).items() if name != WRAPPED}
    return core_parts.Part(data=data["value"], metadata=others or None)


def _is_wrapped(data: dict[str, Any], metadata: dict[str, Any] | None) -> bool:
    return metadata is not None and metadata.get(WRAPPED) is True and data.keys() == {"value"}


class Form(A2AStruct, frozen=True, kw_only=True):
    """An object of 0.3, and its translation from and to the data model.

    Fields with the same name in ``MODEL``, or mapped by ``NAMES``, are translated by the types of
    their values. ``FORMS`` has the translations into one family of objects.
    """

    MODEL: ClassVar[Any]
    NAMES: ClassVar[Mapping[str, str]] = {}
    FORMS: ClassVar[dict[type, Callable[[Any], Any]]] = {}

    @classmethod
    def of(cls, value: Any, /, **others: Any) -> Self:
        """Return the 0.3 form of a value of the data model, with ``others`` of its fields."""
        for name, ours in _shared(cls):
            if name not in others:
                field = getattr(value, ours)
                others[name] = field if type(field) in _PLAIN else cls.form(field)
        return cls(**others)

    @classmethod
    def form(cls, value: Any) -> Any:
        """Return the 0.3 form of any field."""
        if type(value) is tuple:
            return tuple([cls.form(item) for item in value])
        form = cls.FORMS.get(type(value))
        return value if form is None else form(value)

    def to_model(self, **others: Any) -> Any:
        """Return the value of the data model, with ``others`` of its fields.

        Raises ``ValueError``.
        """
        for name, ours in _shared(type(self)):
            if ours not in others:
                field = getattr(self, name)
                others[ours] = field if type(field) in _PLAIN else _model(field)
        return self.MODEL(**others)


@cache
def _shared(kind: type[Form]) -> list[tuple[str, str]]:
    """Return the fields that a form shares with its model, by their names in both."""
    pairs = [(name, kind.NAMES.get(name, name)) for name in kind.__struct_fields__]
    return [pair for pair in pairs if pair[1] in kind.MODEL.__struct_fields__]


_PLAIN = frozenset({str, int, float, bool, type(None)})
"""The types of values that are equal in 0.3. Checked first, since most fields have one."""


def _model(value: Any) -> Any:
    """Return a field's value in the data model, without messages that have no parts."""
    if type(value) is tuple:
        return tuple([made for item in value if (made := _model(item)) is not None])
    if isinstance(value, Form):
        if isinstance(value, MessageForm) and value.is_empty:
            return None  # some agents add an empty message to every status
        return value.to_model()
    return TaskState[value.name] if isinstance(value, Enum) else value


class KindForm(Form, frozen=True, kw_only=True):
    """An object that names its kind."""

    KIND: ClassVar[str]

    kind: str = ""

    def __post_init__(self) -> None:
        if self.kind and self.kind != self.KIND:
            raise InvalidField("kind", f"expected {self.KIND}, got {self.kind[:40]!r}")

    @classmethod
    def of(cls, value: Any, /, **others: Any) -> Self:
        """Return the 0.3 form of a value of the data model, with ``others`` of its fields."""
        return super().of(value, kind=cls.KIND, **others)


class MessageForm(Form, frozen=True, kw_only=True):
    """A message, in JSON or in the proto; ``PARTS`` is the field with its parts."""

    MODEL = core_parts.Message
    PARTS: ClassVar[str] = "parts"

    @property
    def is_empty(self) -> bool:
        """True if the message has no parts."""
        return not getattr(self, self.PARTS)

    def to_model(self, **others: Any) -> Any:
        """Return the message of the data model, with a new id or an empty part if it lacks them."""
        given: Any = self
        if self.is_empty:
            problems.report([(self.PARTS, "required, but missing")])
            others["parts"] = (core_parts.Part(text=""),)
        made: core_parts.Message = super().to_model(
            message_id=given.message_id or uuid4().hex,
            role=_USERS.get(given.role, core_parts.Role.AGENT),
            **others,
        )
        return made


_USERS = dict.fromkeys((Role.USER, core_parts.Role.USER), core_parts.Role.USER)


class File(Form, frozen=True, kw_only=True):
    """A file, by its bytes or its URI."""

    MODEL = core_parts.Part
    NAMES = {"bytes_": "raw", "uri": "url", "mime_type": "media_type", "name": "filename"}

    bytes_: bytes | None = msgspec.field(default=None, name="bytes")
    uri: str | None = None
    mime_type: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if (self.bytes_ is None) == (self.uri is None):
            raise ValueError("a file has exactly one of bytes and uri")


class Part(Form, frozen=True, kw_only=True):
    """A text part, a file part or a data part.

    Older texts call its ``kind`` ``type``. Without either, the content tells the kind.
    """

    kind: str = ""
    text: str | None = None
    file: File | None = None
    data: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    type: str = ""

    def __post_init__(self) -> None:
        kind = self.kind or self.type
        if kind == "text" and self.text is not None:  # the most common kind
            return
        if kind in ("text", "file", "data"):
            if getattr(self, kind) is None:
                raise InvalidField(kind, "required, but missing")
        elif kind:
            words = f"expected one of text, file and data; got {kind[:40]!r}"
            raise InvalidField("kind" if self.kind else "type", words)
        else:
            given = [name for name in ("text", "file", "data") if getattr(self, name) is not None]
            if len(given) != 1:
                has = " and ".join(given) or "none of them"
                raise ValueError(f"a part has exactly one of text, file and data; this has {has}")

    @classmethod
    def of(cls, part: core_parts.Part, /, **_: Any) -> Self:
        """Return the 0.3 form of a part, without the name and media type of text and data."""
        if part.text is not None:
            return cls(kind="text", text=part.text, metadata=part.metadata)
        if not part.has_data:
            return cls(kind="file", file=File.of(part), metadata=part.metadata)
        data, metadata = wrap(part)
        return cls(kind="data", data=data, metadata=metadata)

    def to_model(self, **_: Any) -> Any:
        """Return the part of the data model."""
        kind = self.kind or self.type
        if self.text is not None and kind in ("text", ""):
            return core_parts.Part(text=self.text, metadata=self.metadata)
        if self.file is not None and kind != "data":
            return self.file.to_model(metadata=self.metadata)
        return unwrap(self.data or {}, self.metadata)


@problems.repairs(File)
def _file(given: dict[str, Any]) -> bool:
    return repair_file(given, "bytes_", "uri")


def repair_file(given: dict[str, Any], bytes_field: str, uri_field: str) -> bool:
    """Keep the bytes rather than the URI; a file without both keeps its name."""
    if given.get(bytes_field) is None:
        is_named = bool(given)
        given[uri_field] = given.get(uri_field) or ""
        return is_named
    given.pop(uri_field, None)
    return True


@problems.repairs(Part)
def _part(given: dict[str, Any]) -> bool:
    """Keep the content that fits the kind; a part without content is an empty part of its kind."""
    kind = given.pop("kind", "") or given.pop("type", "")
    given.pop("type", None)
    content = [name for name in ("text", "file", "data") if given.get(name) is not None]
    kept = kind if kind in content else (content or [""])[0]
    if not kept and not given and not kind:
        return False
    for name in content:
        if name != kept:
            del given[name]
    if not kept:
        given[kind if kind in ("text", "data", "file") else "text"] = (
            {} if kind == "data" else File(uri="") if kind == "file" else ""
        )
    return True


class Message(KindForm, MessageForm, frozen=True, kw_only=True):
    """A message in an answer."""

    KIND = "message"

    message_id: str = ""
    context_id: str = ""
    task_id: str = ""
    role: Role | None = None
    parts: tuple[Part, ...] = ()
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, message: core_parts.Message, /, **_: Any) -> Self:
        """Return the 0.3 form of a message."""
        return cls(
            kind="message",
            message_id=message.message_id,
            context_id=message.context_id,
            task_id=message.task_id,
            role=_ROLE_OF[message.role],
            parts=tuple([Part.of(part) for part in message.parts]),
            metadata=message.metadata,
            extensions=message.extensions,
            reference_task_ids=message.reference_task_ids,
        )

    def to_model(self, **others: Any) -> Any:
        """Return the message of the data model, with a new id or an empty part if it lacks them."""
        if not self.parts:
            return super().to_model(**others)
        return core_parts.Message(
            message_id=self.message_id or uuid4().hex,
            context_id=self.context_id,
            task_id=self.task_id,
            role=core_parts.Role.USER if self.role is Role.USER else core_parts.Role.AGENT,
            parts=tuple([part.to_model() for part in self.parts]),
            metadata=self.metadata,
            extensions=self.extensions,
            reference_task_ids=self.reference_task_ids,
        )


class LegacyMessage(Message, frozen=True, kw_only=True):
    """A message in a request of an older specification, in which messages have no ids."""

    role: Role
    parts: Annotated[tuple[Part, ...], Meta(min_length=1)]


class RequestMessage(LegacyMessage, frozen=True, kw_only=True):
    """A message in a request."""

    message_id: NonEmpty


class Artifact(Form, frozen=True, kw_only=True):
    """An artifact, or a chunk of one."""

    artifact_id: NonEmpty
    name: str = ""
    description: str = ""
    parts: tuple[Part, ...]
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()

    @classmethod
    def of(cls, artifact: core_parts.Artifact, /, **_: Any) -> Self:
        """Return the 0.3 form of an artifact."""
        return cls(
            artifact_id=artifact.artifact_id,
            name=artifact.name,
            description=artifact.description,
            parts=tuple([Part.of(part) for part in artifact.parts]),
            metadata=artifact.metadata,
            extensions=artifact.extensions,
        )

    def to_model(self, **_: Any) -> Any:
        """Return the artifact of the data model."""
        return core_parts.Artifact(
            artifact_id=self.artifact_id or problems.UNNAMED_ARTIFACT,
            name=self.name,
            description=self.description,
            parts=tuple([part.to_model() for part in self.parts]),
            metadata=self.metadata,
            extensions=self.extensions,
        )


class TaskStatus(Form, frozen=True, kw_only=True):
    """A task's status."""

    MODEL = core_tasks.TaskStatus

    state: State
    message: Message | None = None
    timestamp: str | None = None

    @classmethod
    def of(cls, status: core_tasks.TaskStatus, /, **_: Any) -> Self:
        """Return the 0.3 form of a status."""
        return cls(
            state=STATE_OF[status.state],
            message=None if status.message is None else Message.of(status.message),
            timestamp=None if status.timestamp is None else str(status.timestamp),
        )

    def to_model(self, **_: Any) -> Any:
        """Return the status of the data model. Raises ``ValueError``."""
        return core_tasks.TaskStatus(
            state=TaskState[self.state.name],
            message=_model(self.message),
            timestamp=parse_answer_timestamp(self.timestamp),
        )


class Task(KindForm, frozen=True, kw_only=True):
    """A task. Its history is always written, because callers of 0.3 expect one."""

    MODEL = core_tasks.Task
    KIND = "task"

    id: NonEmpty
    context_id: str
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] | None = None
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, task: core_tasks.Task, /, **_: Any) -> Self:
        """Return the 0.3 form of a task."""
        return cls(
            kind="task",
            id=task.id,
            context_id=task.context_id,
            status=TaskStatus.of(task.status),
            artifacts=tuple([Artifact.of(artifact) for artifact in task.artifacts]),
            history=tuple([Message.of(message) for message in task.history]),
            metadata=task.metadata,
        )

    def to_model(self, **_: Any) -> Any:
        """Return the task of the data model. Raises ``ValueError``."""
        return core_tasks.Task(
            id=self.id,
            context_id=self.context_id,
            status=self.status.to_model(),
            artifacts=tuple([artifact.to_model() for artifact in self.artifacts]),
            history=tuple([each.to_model() for each in self.history or () if each.parts]),
            metadata=self.metadata,
        )


class TaskStatusUpdateEvent(KindForm, frozen=True, kw_only=True):
    """A change of status."""

    MODEL = core_tasks.TaskStatusUpdateEvent
    KIND = "status-update"

    task_id: NonEmpty
    context_id: str
    status: TaskStatus
    final: bool | None = None
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, event: core_tasks.TaskStatusUpdateEvent, /, **_: Any) -> Self:
        """Return the 0.3 form of a change of status."""
        return cls(
            kind="status-update",
            task_id=event.task_id,
            context_id=event.context_id,
            status=TaskStatus.of(event.status),
            final=is_final(event.status),
            metadata=event.metadata,
        )


class TaskArtifactUpdateEvent(KindForm, frozen=True, kw_only=True):
    """A new artifact, or a further chunk of one."""

    MODEL = core_tasks.TaskArtifactUpdateEvent
    KIND = "artifact-update"

    task_id: NonEmpty
    context_id: str
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, event: core_tasks.TaskArtifactUpdateEvent, /, **_: Any) -> Self:
        """Return the 0.3 form of an artifact, or of a further chunk of one."""
        return cls(
            kind="artifact-update",
            task_id=event.task_id,
            context_id=event.context_id,
            artifact=Artifact.of(event.artifact),
            append=event.append,
            last_chunk=event.last_chunk,
            metadata=event.metadata,
        )


Value = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


def from_model(event: core_tasks.Event) -> Value:
    """Return the 0.3 form of an event, or the answer to a message."""
    return Form.form(event)  # type: ignore[no-any-return]


class AuthenticationInfo(Form, frozen=True, kw_only=True):
    """The agent's authentication at a webhook. Of several schemes the first counts."""

    MODEL = operations.AuthenticationInfo

    schemes: tuple[str, ...]
    credentials: str = ""

    @classmethod
    def of(cls, info: operations.AuthenticationInfo, /, **_: Any) -> Self:
        """Return the 0.3 form of the info."""
        return super().of(info, schemes=(info.scheme,) if info.scheme else ())

    def to_model(self, **_: Any) -> Any:
        """Return the info of the data model; ``None`` for an empty one."""
        if not self.schemes and not self.credentials:
            return None
        scheme = self.schemes[0] if self.schemes else ""
        return operations.AuthenticationInfo(scheme=scheme, credentials=self.credentials)


class PushNotificationConfig(Form, frozen=True, kw_only=True):
    """A webhook. Without an id it gets ``DEFAULT_CONFIG_ID``."""

    MODEL = operations.TaskPushNotificationConfig

    id: str = ""
    url: NonEmpty
    token: str = ""
    authentication: AuthenticationInfo | None = None

    def to_model(self, **others: Any) -> Any:
        """Return the webhook of the data model."""
        return super().to_model(id=self.id or DEFAULT_CONFIG_ID, **others)


class TaskPushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """A webhook and its task, whose id is called ``id`` in older specifications."""

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

    def to_model(self) -> Any:
        """Return the webhook of the data model."""
        return self.push_notification_config.to_model(task_id=self.task_id or self.id)


class AnswerConfig(TaskPushNotificationConfig, frozen=True, kw_only=True):
    """A webhook in an answer, which may lack its task."""

    def __post_init__(self) -> None:
        pass


class MessageSendConfiguration(Form, frozen=True, kw_only=True):
    """Options for the answer. The call waits for its task unless ``blocking`` is false."""

    MODEL = operations.SendMessageConfiguration
    NAMES = {"push_notification_config": "task_push_notification_config"}

    accepted_output_modes: tuple[str, ...] = ()
    history_length: Int32 | None = None
    push_notification_config: PushNotificationConfig | None = None
    blocking: bool | None = None

    @classmethod
    def of(cls, configuration: operations.SendMessageConfiguration, /, **_: Any) -> Self:
        """Return the 0.3 form of a configuration."""
        return super().of(configuration, blocking=not configuration.return_immediately)

    def to_model(self, **_: Any) -> Any:
        """Return the configuration of the data model."""
        return super().to_model(return_immediately=self.blocking is False)


class MessageSendParams(Form, frozen=True, kw_only=True):
    """A message for the agent."""

    MODEL = operations.SendMessageRequest

    message: RequestMessage
    configuration: MessageSendConfiguration | None = None
    metadata: dict[str, Any] | None = None


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
        message = msgspec.structs.replace(
            message,
            message_id=message.message_id or self.message_id,
            context_id=message.context_id or self.session_id,
            task_id=message.task_id or self.id,
        )
        return operations.SendMessageRequest(
            message=message.to_model(),
            configuration=configuration.to_model(),
            metadata=self.metadata,
        )


class TaskQueryParams(Form, frozen=True, kw_only=True):
    """A request for a task. It always has a history length."""

    MODEL = operations.GetTaskRequest

    id: NonEmpty
    history_length: Int32 | None = None

    @classmethod
    def of(cls, request: operations.GetTaskRequest, /, **_: Any) -> Self:
        """Return the 0.3 form of a request."""
        return super().of(request, history_length=explicit_length(request.history_length))

    def to_model(self, **_: Any) -> Any:
        """Return the request of the data model."""
        return super().to_model(history_length=optional_length(self.history_length))


class ListTasksParams(Form, frozen=True, kw_only=True):
    """A request for a page of tasks: the filters of 1.0, with states of 0.3."""

    MODEL = operations.ListTasksRequest

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

    def to_model(self, **_: Any) -> Any:
        """Return the request of the data model."""
        after = parse_timestamp(self.status_timestamp_after)
        return super().to_model(status_timestamp_after=after)


class ListTasksResult(Form, frozen=True, kw_only=True):
    """A page of tasks."""

    MODEL = operations.ListTasksResponse

    tasks: tuple[Task, ...]
    next_page_token: str
    page_size: Int32
    total_size: Int32


class ListConfigsParams(Form, frozen=True, kw_only=True):
    """A request for all webhooks of a task: 0.3 has no pages."""

    MODEL = operations.ListTaskPushNotificationConfigsRequest
    NAMES = {"id": "task_id"}

    id: NonEmpty


class DeleteConfigParams(Form, frozen=True, kw_only=True):
    """A request to remove a webhook."""

    MODEL = operations.DeleteTaskPushNotificationConfigRequest
    NAMES = {"id": "task_id", "push_notification_config_id": "id"}

    id: NonEmpty
    push_notification_config_id: NonEmpty


class GetConfigParams(Form, frozen=True, kw_only=True):
    """A request for a webhook of a task; without an id, for that with ``DEFAULT_CONFIG_ID``."""

    MODEL = operations.GetTaskPushNotificationConfigRequest
    NAMES = DeleteConfigParams.NAMES

    id: NonEmpty
    push_notification_config_id: str = ""

    def to_model(self, **_: Any) -> Any:
        """Return the request of the data model."""
        return super().to_model(id=self.push_notification_config_id or DEFAULT_CONFIG_ID)


Form.FORMS.update(
    {
        TaskState: STATE_OF.__getitem__,
        core_parts.Role: _ROLE_OF.__getitem__,
        Timestamp: str,
        core_parts.Part: Part.of,
        core_parts.Message: Message.of,
        core_parts.Artifact: Artifact.of,
        core_tasks.TaskStatus: TaskStatus.of,
        core_tasks.Task: Task.of,
        core_tasks.TaskStatusUpdateEvent: TaskStatusUpdateEvent.of,
        core_tasks.TaskArtifactUpdateEvent: TaskArtifactUpdateEvent.of,
        operations.AuthenticationInfo: AuthenticationInfo.of,
        operations.TaskPushNotificationConfig: PushNotificationConfig.of,
        operations.SendMessageConfiguration: MessageSendConfiguration.of,
    }
)
