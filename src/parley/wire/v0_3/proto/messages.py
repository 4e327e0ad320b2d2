"""Messages, tasks and events of the proto of version 0.3, in its JSON.

HTTP+JSON bodies have this form, and gRPC carries it. Each struct is one message of the proto:
``of`` makes it from a value of the data model, ``to_model`` makes the value.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any
from uuid import uuid4

import msgspec
from msgspec import Meta

from parley.model import parts as core_parts
from parley.model import tasks as core_tasks
from parley.model.parts import Role
from parley.model.struct import A2AStruct, InvalidField, NonEmpty
from parley.wire.json import tolerance
from parley.wire.v0_3.proto.file_bytes import decode_content
from parley.wire.v0_3.values import is_final, parse_answer_timestamp, repair_file
from parley.wire.v0_3.wrapped_data import unwrap, wrap


class State(Enum):
    """A task's state, in the order of its numbers. 1.0 spells one of them differently."""

    UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELLED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"


STATE_OF = {state: State[state.name] for state in core_tasks.TaskState}
TASK_STATE_OF = {written: state for state, written in STATE_OF.items()}


class FilePart(A2AStruct, frozen=True, kw_only=True):
    """A file, by its bytes or its URI."""

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


class Part(A2AStruct, frozen=True, kw_only=True):
    """Exactly one of text, file and data."""

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
    def of(cls, part: core_parts.Part) -> Part:
        """Return the 0.3 form of a part, without the name and media type of text and data."""
        if part.text is not None:
            return cls(text=part.text, metadata=part.metadata)
        if not part.has_data:
            file = FilePart(
                file_with_uri=part.url,
                file_with_bytes=part.raw,
                mime_type=part.media_type,
                name=part.filename,
            )
            return cls(file=file, metadata=part.metadata)
        data, metadata = wrap(part)
        return cls(data=DataPart(data=data), metadata=metadata)

    def to_model(self) -> core_parts.Part:
        """Return the part of the data model."""
        file = self.file
        if file is not None:
            given = file.file_with_bytes
            return core_parts.Part(
                raw=None if given is None else decode_content(given, file.mime_type),
                url=file.file_with_uri,
                filename=file.name,
                media_type=file.mime_type,
                metadata=self.metadata,
            )
        if self.data is not None:
            return unwrap(self.data.data, self.metadata)
        return core_parts.Part(text=self.text, metadata=self.metadata)


@tolerance.repairs(FilePart)
def _file(given: dict[str, Any]) -> bool:
    return repair_file(given, "file_with_bytes", "file_with_uri")


@tolerance.repairs(Part)
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


class Message(A2AStruct, frozen=True, kw_only=True):
    """A message, as it may be in an answer. The proto has no references to tasks."""

    message_id: str = ""
    context_id: str = ""
    task_id: str = ""
    role: Role = Role.UNSPECIFIED
    content: tuple[Part, ...] = ()
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()

    @classmethod
    def of(cls, message: core_parts.Message) -> Message:
        """Return the 0.3 form of a message."""
        return Message(
            message_id=message.message_id,
            context_id=message.context_id,
            task_id=message.task_id,
            role=message.role,
            content=tuple([Part.of(part) for part in message.parts]),
            metadata=message.metadata,
            extensions=message.extensions,
        )

    def to_model(self) -> core_parts.Message:
        """Return the message of the data model, with a new id or an empty part if it lacks them."""
        if not self.content:
            tolerance.report([("content", "required, but missing")])
        return core_parts.Message(
            message_id=self.message_id or uuid4().hex,
            context_id=self.context_id,
            task_id=self.task_id,
            role=Role.USER if self.role is Role.USER else Role.AGENT,
            parts=tuple([part.to_model() for part in self.content]) or (core_parts.Part(text=""),),
            metadata=self.metadata,
            extensions=self.extensions,
        )


class RequestMessage(Message, frozen=True, kw_only=True):
    """A message in a request."""

    message_id: NonEmpty
    role: Role
    content: Annotated[tuple[Part, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if self.role is Role.UNSPECIFIED:
            raise InvalidField("role", "expected ROLE_USER or ROLE_AGENT")


class Artifact(A2AStruct, frozen=True, kw_only=True):
    """An artifact, or a chunk of one."""

    artifact_id: NonEmpty
    name: str = ""
    description: str = ""
    parts: tuple[Part, ...] = ()
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

    state: State = State.UNSPECIFIED
    update: Message | None = msgspec.field(default=None, name="message")
    timestamp: str | None = None

    @classmethod
    def of(cls, status: core_tasks.TaskStatus) -> TaskStatus:
        """Return the 0.3 form of a status."""
        return cls(
            state=STATE_OF[status.state],
            update=None if status.message is None else Message.of(status.message),
            timestamp=None if status.timestamp is None else str(status.timestamp),
        )

    def to_model(self) -> core_tasks.TaskStatus:
        """Return the status of the data model. Raises ``ValueError``."""
        update = self.update
        return core_tasks.TaskStatus(
            state=TASK_STATE_OF[self.state],
            message=update.to_model() if update is not None and update.content else None,
            timestamp=parse_answer_timestamp(self.timestamp),
        )


class Task(A2AStruct, frozen=True, kw_only=True):
    """A task."""

    id: NonEmpty
    context_id: str = ""
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, task: core_tasks.Task) -> Task:
        """Return the 0.3 form of a task."""
        return cls(
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
            history=tuple([each.to_model() for each in self.history if each.content]),
            metadata=self.metadata,
        )


class TaskStatusUpdateEvent(A2AStruct, frozen=True, kw_only=True):
    """A change of status."""

    task_id: NonEmpty
    context_id: str = ""
    status: TaskStatus
    final: bool = False
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, event: core_tasks.TaskStatusUpdateEvent) -> TaskStatusUpdateEvent:
        """Return the 0.3 form of a change of status."""
        return cls(
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

    task_id: NonEmpty
    context_id: str = ""
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: dict[str, Any] | None = None

    @classmethod
    def of(cls, event: core_tasks.TaskArtifactUpdateEvent) -> TaskArtifactUpdateEvent:
        """Return the 0.3 form of an artifact's update."""
        return cls(
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
    def of(cls, event: core_tasks.Event) -> Response:
        """Return the 0.3 form of an event."""
        if isinstance(event, core_tasks.TaskArtifactUpdateEvent):
            return cls(artifact_update=TaskArtifactUpdateEvent.of(event))
        if isinstance(event, core_tasks.TaskStatusUpdateEvent):
            return cls(status_update=TaskStatusUpdateEvent.of(event))
        if isinstance(event, core_tasks.Task):
            return cls(task=Task.of(event))
        return cls(msg=Message.of(event))

    def to_model(self) -> core_tasks.Event:
        """Return the event of the data model. Raises ``ValueError``."""
        event = self.artifact_update or self.status_update or self.task or self.msg
        assert event is not None  # __post_init__ ensures it
        return event.to_model()
