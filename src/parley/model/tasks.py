"""Tasks, their states, and the events that change them (specification §4.1.1-4.1.3, §4.2)."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar, Literal, Protocol

from parley.model.parts import Artifact, Message, Role, text_of
from parley.model.struct import A2AStruct, NonEmpty, Timestamp, freeze


class TaskState(Enum):
    """The state of a task in its life cycle (specification §4.1.3)."""

    UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"

    __hash__ = object.__hash__  # faster than the hash of Enum

    def __str__(self) -> str:
        return self.value

    @property
    def is_terminal(self) -> bool:
        """True if no state can follow this one."""
        return self in TERMINAL_STATES

    @property
    def is_interrupted(self) -> bool:
        """True if the task waits for its caller."""
        return self in INTERRUPTED_STATES


TERMINAL_STATES = frozenset(
    {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED}
)
INTERRUPTED_STATES = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})


class TaskStatus(A2AStruct, frozen=True, kw_only=True):
    """A task's state, the time when the task entered it, and the agent's message about it.

    A peer may send UNSPECIFIED: an indeterminate state, neither terminal nor interrupted. Parley's
    own agents never enter it (``store.fold`` rejects it), but readers must be able to represent it.
    """

    state: TaskState
    message: Message | None = None
    timestamp: Timestamp | None = None


class Task(A2AStruct, frozen=True, kw_only=True):
    """A unit of work with a life cycle (specification §4.1.1)."""

    kind: ClassVar[Literal["task"]] = "task"

    id: NonEmpty
    context_id: str = ""
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if type(self.artifacts) is not tuple or type(self.history) is not tuple:
            freeze(self, "artifacts", "history")

    @property
    def state(self) -> TaskState:
        """The current state of the task."""
        return self.status.state

    @property
    def text(self) -> str:
        """The text of the task's artifacts, or of its status message if there are none.

        For an ended task without either, it is the text of the agent's last message.
        """
        text = "\n".join([text_of(a.parts) for a in self.artifacts])
        if not text.strip() and self.status.message is not None:
            text = self.status.message.text
        last = None if text.strip() else self.final_message
        return last.text if last is not None else text

    @property
    def final_message(self) -> Message | None:
        """The agent's last message in the turn that ended the task, if the status has no
        message."""
        if not self.state.is_terminal or self.status.message is not None:
            return None
        for message in reversed(self.history):
            if message.role is Role.USER:
                return None
            if message.text:
                return message
        return None

    def __str__(self) -> str:
        return self.text


class TaskStatusUpdateEvent(A2AStruct, frozen=True, kw_only=True):
    """A task entered a state, or sent a message without a change of state (specification
    §4.2.1)."""

    kind: ClassVar[Literal["status-update"]] = "status-update"

    task_id: NonEmpty
    context_id: str
    status: TaskStatus
    metadata: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The text of the status message, empty without one."""
        return "" if self.status.message is None else self.status.message.text


class TaskArtifactUpdateEvent(A2AStruct, frozen=True, kw_only=True):
    """A task made an artifact, or a further chunk of an artifact (specification §4.2.2)."""

    kind: ClassVar[Literal["artifact-update"]] = "artifact-update"

    task_id: NonEmpty
    context_id: str
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The text of the artifact or its chunk."""
        return self.artifact.text


Event = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent
"""The types of events in a stream. Each has ``kind`` and ``text``."""


class Replied(Protocol):
    """An answer that has a task or a direct message as its ``reply`` (``parley.Answer``)."""

    @property
    def reply(self) -> Task | Message:
        """The task or the direct message, as received."""
        ...


def reply_of(answer: Task | Message | Replied) -> Task | Message:
    """Return the task or the direct message of an answer."""
    return answer if isinstance(answer, Task | Message) else answer.reply
