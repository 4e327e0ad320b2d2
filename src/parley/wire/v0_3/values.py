"""Messages, tasks and events as the JSON of version 0.3 has them (0.3 §6, §7.2).

Each struct is one object of 0.3: ``of`` makes it from a value of the data model, ``to_model`` makes
the value. A ``RequestMessage`` has all that is required; a ``Message`` in an answer may lack ids
and more, as in the examples that agents follow.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any
from uuid import uuid4

import msgspec
from msgspec import Meta

from parley.model import parts as core_parts
from parley.model import tasks as core_tasks
from parley.model.struct import A2AStruct, InvalidField, NonEmpty, Timestamp
from parley.model.tasks import TaskState
from parley.wire.json import tolerance
from parley.wire.v0_3.wrapped_data import unwrap, wrap

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
TASK_STATE_OF = {written: state for state, written in STATE_OF.items()}
_ROLE_OF = {core_parts.Role.USER: Role.USER, core_parts.Role.AGENT: Role.AGENT}
_FINAL = core_tasks.TERMINAL_STATES | {TaskState.INPUT_REQUIRED}


def is_final(status: core_tasks.TaskStatus) -> bool:
    """Return whether an update with ``status`` ends its stream (0.3 §7.2.2)."""
    return status.state in _FINAL


def ends_stream(event: core_tasks.Event) -> bool:
    """Return whether an event ends its stream (0.3 §7.2.2)."""
    return isinstance(event, core_tasks.TaskStatusUpdateEvent) and is_final(event.status)


def parse_timestamp(text: str | None) -> Timestamp | None:
    """Parse a timestamp; one without a time zone is in UTC. Raises ``ValueError``."""
    if not text:
        return None
    try:
        return Timestamp.parse(text)
    except ValueError:
        return Timestamp.parse(text + "Z")


def parse_answer_timestamp(text: str | None) -> Timestamp | None:
    """Parse a timestamp of an answer; ``None`` for one that is none."""
    try:
        return parse_timestamp(text)
    except ValueError as error:
        guessed = tolerance.guess_timestamp(text)
        if guessed is None:
            tolerance.report([("timestamp", str(error))])
        return guessed


def check_kind(kind: str, expected: str) -> None:
    """Raise ``InvalidField`` if the kind of an object is not the ``expected`` one."""
    if kind and kind != expected:
        raise InvalidField("kind", f"expected {expected}, got {kind[:40]!r}")


class File(A2AStruct, frozen=True, kw_only=True):
    """A file, by its bytes or its URI."""

    bytes_: bytes | None = msgspec.field(default=None, name="bytes")
    uri: str | None = None
    mime_type: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        if (self.bytes_ is None) == (self.uri is None):
            raise ValueError("a file has exactly one of bytes and uri")


class Part(A2AStruct, frozen=True, kw_only=True):
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
        if kind == "text" and self.text is not None:  # nearly every part
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
    def of(cls, part: core_parts.Part) -> Part:
        """Return the 0.3 form of a part, without the name and media type of text and data."""
        if part.text is not None:
            return cls(kind="text", text=part.text, metadata=part.metadata)
        if not part.has_data:
            file = File(
                bytes_=part.raw, uri=part.url, mime_type=part.media_type, name=part.filename
            )
            return cls(kind="file", file=file, metadata=part.metadata)
        data, metadata = wrap(part)
        return cls(kind="data", data=data, metadata=metadata)

    def to_model(self) -> core_parts.Part:
        """Return the part of the data model."""
        kind = self.kind or self.type
        if self.text is not None and kind in ("text", ""):
            return core_parts.Part(text=self.text, metadata=self.metadata)
        if self.file is not None and kind != "data":
            return core_parts.Part(
                raw=self.file.bytes_,
                url=self.file.uri,
                filename=self.file.name,
                media_type=self.file.mime_type,
                metadata=self.metadata,
            )
        return unwrap(self.data or {}, self.metadata)


@tolerance.repairs(File)
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


@tolerance.repairs(Part)
def _part(given: dict[str, Any]) -> bool:
    """Keep the content that fits the kind; a part without any is an empty one of its kind."""
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


class Message(A2AStruct, frozen=True, kw_only=True):
    """A message, as it may be in an answer."""

    kind: str = ""
    message_id: str = ""
    context_id: str = ""
    task_id: str = ""
    role: Role | None = None
    parts: tuple[Part, ...] = ()
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()
    reference_task_ids: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_kind(self.kind, "message")

    @classmethod
    def of(cls, message: core_parts.Message) -> Message:
        """Return the 0.3 form of a message."""
        return Message(
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

    def to_model(self) -> core_parts.Message:
        """Return the message of the data model, with a new id or an empty part if it lacks them."""
        if not self.parts:
            tolerance.report([("parts", "required, but missing")])
        return core_parts.Message(
            message_id=self.message_id or uuid4().hex,
            context_id=self.context_id,
            task_id=self.task_id,
            role=core_parts.Role.USER if self.role is Role.USER else core_parts.Role.AGENT,
            parts=tuple([part.to_model() for part in self.parts]) or (core_parts.Part(text=""),),
            metadata=self.metadata,
            extensions=self.extensions,
            reference_task_ids=self.reference_task_ids,
        )


class LegacyMessage(Message, frozen=True, kw_only=True):
    """A message in a request of older texts, in which messages have no ids."""

    role: Role
    parts: Annotated[tuple[Part, ...], Meta(min_length=1)]


class RequestMessage(LegacyMessage, frozen=True, kw_only=True):
    """A message in a request."""

    message_id: NonEmpty


class Artifact(A2AStruct, frozen=True, kw_only=True):
    """An artifact, or a chunk of one."""

    artifact_id: NonEmpty
    name: str = ""
    description: str = ""
    parts: tuple[Part, ...]
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()

    @classmethod
    def of(cls, artifact: core_parts.Artifact) -> Artifact:
        """Return the 0.3 form of an artifact."""
        return cls(
            artifact_id=artifact.artifact_id,
            name=artifact.name,
            description=artifact.description,
            parts=tuple([Part.of(part) for part in artifact.parts]),
            metadata=artifact.metadata,
            extensions=artifact.extensions,
        )

    def to_model(self) -> core_parts.Artifact:
        """Return the artifact of the data model."""
        return core_parts.Artifact(
            artifact_id=self.artifact_id or tolerance.UNNAMED_ARTIFACT,
            name=self.name,
            description=self.description,
            parts=tuple([part.to_model() for part in self.parts]),
            metadata=self.metadata,
            extensions=self.extensions,
        )


class TaskStatus(A2AStruct, frozen=True, kw_only=True):
    """A task's status."""

    state: State
    message: Message | None = None
    timestamp: str | None = None

    @classmethod
    def of(cls, status: core_tasks.TaskStatus) -> TaskStatus:
        """Return the 0.3 form of a status."""
        return cls(
            state=STATE_OF[status.state],
            message=None if status.message is None else Message.of(status.message),
            timestamp=None if status.timestamp is None else str(status.timestamp),
        )

    def to_model(self) -> core_tasks.TaskStatus:
        """Return the status of the data model. Raises ``ValueError``."""
        message = self.message
        return core_tasks.TaskStatus(
            state=TASK_STATE_OF[self.state],
            # Some agents put an empty message into every status.
            message=message.to_model() if message is not None and message.parts else None,
            timestamp=parse_answer_timestamp(self.timestamp),
        )


class Task(A2AStruct, frozen=True, kw_only=True):
    """A task. Its history is always written, because callers of 0.3 expect one."""

    kind: str = ""
    id: NonEmpty
    context_id: str
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind, "task")

    @classmethod
    def of(cls, task: core_tasks.Task) -> Task:
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

    def to_model(self) -> core_tasks.Task:
        """Return the task of the data model. Raises ``ValueError``."""
        return core_tasks.Task(
            id=self.id,
            context_id=self.context_id,
            status=self.status.to_model(),
            artifacts=tuple([artifact.to_model() for artifact in self.artifacts]),
            history=tuple([each.to_model() for each in self.history or () if each.parts]),
            metadata=self.metadata,
        )


class TaskStatusUpdateEvent(A2AStruct, frozen=True, kw_only=True):
    """A change of status."""

    kind: str = ""
    task_id: NonEmpty
    context_id: str
    status: TaskStatus
    final: bool | None = None
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind, "status-update")

    @classmethod
    def of(cls, event: core_tasks.TaskStatusUpdateEvent) -> TaskStatusUpdateEvent:
        """Return the 0.3 form of a change of status."""
        return cls(
            kind="status-update",
            task_id=event.task_id,
            context_id=event.context_id,
            status=TaskStatus.of(event.status),
            final=is_final(event.status),
            metadata=event.metadata,
        )

    def to_model(self) -> core_tasks.TaskStatusUpdateEvent:
        """Return the event of the data model. Raises ``ValueError``."""
        return core_tasks.TaskStatusUpdateEvent(
            task_id=self.task_id,
            context_id=self.context_id,
            status=self.status.to_model(),
            metadata=self.metadata,
        )


class TaskArtifactUpdateEvent(A2AStruct, frozen=True, kw_only=True):
    """A new artifact, or a further chunk of one."""

    kind: str = ""
    task_id: NonEmpty
    context_id: str
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_kind(self.kind, "artifact-update")

    @classmethod
    def of(cls, event: core_tasks.TaskArtifactUpdateEvent) -> TaskArtifactUpdateEvent:
        """Return the 0.3 form of an artifact's update."""
        return cls(
            kind="artifact-update",
            task_id=event.task_id,
            context_id=event.context_id,
            artifact=Artifact.of(event.artifact),
            append=event.append,
            last_chunk=event.last_chunk,
            metadata=event.metadata,
        )

    def to_model(self) -> core_tasks.TaskArtifactUpdateEvent:
        """Return the event of the data model. Raises ``ValueError``."""
        return core_tasks.TaskArtifactUpdateEvent(
            task_id=self.task_id,
            context_id=self.context_id,
            artifact=self.artifact.to_model(),
            append=self.append,
            last_chunk=self.last_chunk,
            metadata=self.metadata,
        )


Value = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent

_VALUE_TYPES: dict[type, type[Value]] = {
    core_tasks.Task: Task,
    core_parts.Message: Message,
    core_tasks.TaskStatusUpdateEvent: TaskStatusUpdateEvent,
    core_tasks.TaskArtifactUpdateEvent: TaskArtifactUpdateEvent,
}


def from_model(event: core_tasks.Event) -> Value:
    """Return the 0.3 form of an event, or the answer to a message."""
    return _VALUE_TYPES[type(event)].of(event)  # type: ignore[arg-type]
