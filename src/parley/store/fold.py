"""Folds events into the task, and artifact updates into the pieces that stores keep.

The order in which events may follow each other is defined only here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from parley.model.errors import an
from parley.model.parts import Artifact, Message, Part
from parley.model.struct import A2AStruct, NonEmpty, decode, encode
from parley.model.tasks import (
    TERMINAL_STATES,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.store.events import PrivateEvent, TaskEvent, TurnStarted

_ONLY_INITIAL = frozenset({TaskState.UNSPECIFIED, TaskState.SUBMITTED})
_NO_STATUS = TaskStatus(state=TaskState.UNSPECIFIED)


class IllegalEvent(ValueError):
    """An event that cannot follow earlier ones. The message describes a valid event."""


def check(state: TaskState | None, event: TaskEvent | PrivateEvent) -> None:
    """Raise ``IllegalEvent`` when ``event`` cannot follow a log whose task is in ``state``.

    ``None`` is the state of an empty log. A log begins with its Task and has no second one; no
    event follows a terminal state; a task is submitted only at its beginning (§4.1.3).
    """
    if state is None:
        if type(event) is not Task:
            raise IllegalEvent(f"a log begins with its Task, not with {an(type(event).__name__)}")
        if event.status.state is TaskState.UNSPECIFIED:
            raise IllegalEvent("a task begins in a state such as TASK_STATE_SUBMITTED, not without")
        if len({artifact.artifact_id for artifact in event.artifacts}) < len(event.artifacts):
            raise IllegalEvent("an artifact's id is unique within its task, and one is there twice")
    elif state in TERMINAL_STATES:
        raise IllegalEvent(f"{state.value} is terminal: no {type(event).__name__} follows it")
    elif type(event) is TaskStatusUpdateEvent:
        if event.status.state in _ONLY_INITIAL:
            raise IllegalEvent(
                f"a task does not go from {state.value} to {event.status.state.value}; "
                "it may go to any state but submitted and unspecified"
            )
    elif type(event) is Task:
        raise IllegalEvent("the log has its Task; what changes it is a status or artifact update")


class Fold:
    """Builds a task from its events.

    ``task`` is built on demand, and cached; adding a chunk to an artifact costs the chunk, not the
    artifact. ``strict`` rejects chunks that Parley's own agents must not write (see
    ``ArtifactFold``); only events, not a ``task`` to start with, show which artifacts are complete.
    ``unsaved`` names the artifacts of that ``task`` whose stored form is incomplete.
    """

    __slots__ = ("_artifacts", "_first", "_history", "_status", "_strict", "_task")

    def __init__(
        self, task: Task | None = None, *, strict: bool = False, unsaved: Iterable[str] = ()
    ) -> None:
        self._strict = strict
        self._first: Task | None = None
        self._task: Task | None = None
        self._status = _NO_STATUS
        self._history: list[Message] = []
        self._artifacts = ArtifactFold(strict=strict)
        if task is not None:
            self._begin(task, unsaved)

    @property
    def state(self) -> TaskState | None:
        """The state that the task is in; ``None`` before the first event."""
        return None if self._first is None else self._status.state

    @property
    def status(self) -> TaskStatus:
        """The task's status. Unspecified before the first event."""
        return self._status

    @property
    def task(self) -> Task:
        """The current task. Raises ``IllegalEvent`` before the first event."""
        if self._first is None:
            raise IllegalEvent("there is no task: the log is empty, and begins with its Task")
        if self._task is None:
            self._task = replace(
                self._first,
                status=self._status,
                artifacts=self._artifacts.artifacts,
                history=tuple(self._history),
            )
        return self._task

    def is_complete(self, artifact_id: str) -> bool:
        """Return whether the events include the last chunk of an artifact."""
        return self._artifacts.is_complete(artifact_id)

    def take_unsaved(self) -> list[ArtifactPiece]:
        """Return the pieces missing from the stored form of the artifacts; mark them as stored."""
        return self._artifacts.take_unsaved()

    def apply(self, event: TaskEvent | PrivateEvent) -> None:
        """Add the next event. Raises ``IllegalEvent``, without a change, when it cannot follow."""
        check(None if self._first is None else self._status.state, event)
        if type(event) is Task:
            self._begin(event, [artifact.artifact_id for artifact in event.artifacts])
        elif type(event) is TaskArtifactUpdateEvent:
            self._check_task(event.task_id)
            self._artifacts.apply(event)
            self._task = None
        elif type(event) is TaskStatusUpdateEvent:
            self._check_task(event.task_id)
            self._archive_message()
            self._status = event.status
            self._task = None
        elif type(event) is TurnStarted and event.messages:
            self._archive_message()
            self._history.extend(event.messages)
            self._task = None

    def _begin(self, task: Task, unsaved: Iterable[str]) -> None:
        self._first = self._task = task
        self._status = task.status
        self._history.extend(task.history)
        if task.artifacts:
            self._artifacts = ArtifactFold(task.artifacts, strict=self._strict, unsaved=unsaved)

    def _archive_message(self) -> None:
        """Move the message of the status into the history."""
        if self._status.message is not None:
            self._history.append(self._status.message)
            self._status = replace(self._status, message=None)

    def _check_task(self, task_id: str) -> None:
        if self._first is not None and task_id != self._first.id:
            raise IllegalEvent(f"an event of task {task_id} is not part of task {self._first.id}")


def fold(events: Iterable[TaskEvent | PrivateEvent], start: Task | None = None) -> Task:
    """Return the fold of ``events``, from ``start`` when it is given.

    Raises ``IllegalEvent`` for events that cannot follow one another.
    """
    folding = Fold(start)
    for event in events:
        folding.apply(event)
    return folding.task


# -- artifact fold ----------------------------------------------------------------------------


CONTINUES = "urn:parley:continues"
"""The metadata key of an artifact update whose text continues the text of the previous update.

The pieces of one text form one part of the artifact, and an empty piece none. Parts of other
updates stay separate parts.
"""


class ArtifactPiece(NamedTuple):
    """An addition to the stored form of one artifact.

    ``position`` is the artifact's in its task, from 0. ``head`` is the JSON of the artifact without
    its parts, empty when the previous piece has it. ``parts`` are the JSON of further parts,
    separated by commas; after a space, the first one continues the text of the last part before it.
    ``replaces`` removes the earlier pieces of this artifact.
    """

    position: int
    head: bytes
    parts: bytes
    replaces: bool = False


class _Head(A2AStruct, frozen=True, kw_only=True):
    """An artifact without its parts."""

    artifact_id: NonEmpty
    name: str = ""
    description: str = ""
    metadata: dict[str, Any] | None = None
    extensions: tuple[str, ...] = ()


class ArtifactFold:
    """Builds artifacts from updates, in the order of their first updates.

    A chunk costs the chunk, not the artifact. ``strict`` is for Parley's own agents: it rejects a
    chunk for an artifact that does not exist, and a chunk after an artifact's last one. Otherwise
    the former creates the artifact and the latter is added (§4.2.2 leaves both open). ``unsaved``
    names the ``artifacts`` whose stored form is incomplete.
    """

    __slots__ = ("_complete", "_growing", "_strict", "_unsaved")

    def __init__(
        self,
        artifacts: Iterable[Artifact] = (),
        *,
        strict: bool = False,
        unsaved: Iterable[str] = (),
    ) -> None:
        self._strict = strict
        self._complete: set[str] = set()
        self._growing: dict[str, _Growing] = {}
        self._unsaved: dict[str, None] = dict.fromkeys(unsaved)
        for index, artifact in enumerate(artifacts):
            growing = self._growing[artifact.artifact_id] = _Growing(artifact, index)
            if artifact.artifact_id in self._unsaved:
                growing.replaces = True
            else:
                growing.mark_saved()

    @property
    def growing(self) -> Iterable[_Growing]:
        """The artifacts with what the store has of each, in their order."""
        return self._growing.values()

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The current artifacts."""
        return tuple([growing.artifact for growing in self._growing.values()])

    def apply(self, update: TaskArtifactUpdateEvent) -> None:
        """Add an update. Raises ``IllegalEvent``, without a change, when it cannot follow."""
        artifact = update.artifact
        artifact_id = artifact.artifact_id
        growing = self._growing.get(artifact_id)
        if update.append and growing is not None:
            if self._strict and artifact_id in self._complete:
                raise IllegalEvent(
                    f"append to artifact {artifact_id} after its last chunk; "
                    "replace it with append=false, or give the new artifact an id of its own"
                )
            metadata = update.metadata
            growing.append(artifact, metadata is not None and CONTINUES in metadata)
        elif update.append and self._strict:
            raise IllegalEvent(
                f"append to artifact {artifact_id}, which does not exist; "
                "the first update of an artifact has append=false"
            )
        else:
            if not update.append:
                self._complete.discard(artifact_id)
            index = len(self._growing) if growing is None else growing.index
            fresh = self._growing[artifact_id] = _Growing(artifact, index)
            fresh.replaces = growing is not None and growing.is_stored
        self._unsaved[artifact_id] = None
        if update.last_chunk:
            self._complete.add(artifact_id)

    def is_complete(self, artifact_id: str) -> bool:
        """Return whether the events include the last chunk of an artifact."""
        return artifact_id in self._complete

    def take_unsaved(self) -> list[ArtifactPiece]:
        """Return the pieces missing from the stored form, and mark them as stored."""
        pieces = []
        for artifact_id in self._unsaved:
            growing = self._growing[artifact_id]
            if not growing.is_saved:
                pieces.append(growing.piece())
                growing.mark_saved()
        self._unsaved.clear()
        return pieces


class _Growing:
    """An artifact to which chunks can be added.

    ``_parts`` has a ``str`` where a chunk continues the text of the part before it; ``_text`` is
    the last part if it is a text, else ``None``. ``has_earlier``: the store has parts before the
    first of ``_parts``.
    """

    __slots__ = (
        "_artifact",
        "_first",
        "_has_new_head",
        "_is_kept",
        "_parts",
        "_saved",
        "_saved_text",
        "_text",
        "has_earlier",
        "index",
        "replaces",
    )

    def __init__(self, artifact: Artifact, index: int) -> None:
        self.index = index
        self._first = artifact
        self._artifact: Artifact | None = artifact
        self._parts: list[Part | str] = [*artifact.parts]
        self._text = _text_in(artifact.parts)
        self._saved = 0
        self._saved_text = self._text
        self._is_kept = False
        self._has_new_head = True
        self.has_earlier = False
        self.replaces = False

    @property
    def artifact(self) -> Artifact:
        if self._artifact is None:
            self._artifact = replace(self._first, parts=tuple(self._joined(0)))
        return self._artifact

    def append(self, chunk: Artifact, continues: bool) -> None:
        parts: Sequence[Part] = chunk.parts
        self._artifact = None
        if continues and parts:
            part, text = parts[0], self._text
            if (
                text is not None
                and part.text
                and part.media_type == text.media_type
                and part.filename == text.filename
                and part.metadata == text.metadata
            ):
                self._parts.append(part.text)
                parts = parts[1:]
            else:
                parts = self._begin_text(part, parts)
        if parts:
            self._parts.extend(parts)
            self._text = _text_in(parts)
        first = self._first
        if (
            chunk.metadata
            or chunk.extensions
            or (chunk.name and not first.name)
            or (chunk.description and not first.description)
        ):
            self._has_new_head = True
            self._first = replace(
                first,
                name=first.name or chunk.name,
                description=first.description or chunk.description,
                metadata={**(first.metadata or {}), **(chunk.metadata or {})} or None,
                extensions=tuple(dict.fromkeys(first.extensions + chunk.extensions)),
            )

    def _begin_text(self, part: Part, parts: Sequence[Part]) -> Sequence[Part]:
        """Return the parts to add, without an empty first one; drop an empty text before them."""
        if part.text == "" or part.raw == b"":
            return parts[1:]
        is_only = len(self._parts) == 1 and not self.has_earlier
        if is_only and self._joined(0)[0].text == "":
            self._parts.clear()
            self._saved, self._has_new_head = 0, True
            self.replaces = self.is_stored
        return parts

    @property
    def is_saved(self) -> bool:
        return not (self._has_new_head or self._saved < len(self._parts))

    @property
    def is_stored(self) -> bool:
        """True if the store has a piece of this artifact, or of the artifact that it replaces."""
        return self.replaces or self._is_kept

    def piece(self) -> ArtifactPiece:
        head = _head_of(self._first) if self._has_new_head else b""
        parts = encode(self._joined(self._saved))[1:-1]
        if self._saved < len(self._parts) and isinstance(self._parts[self._saved], str):
            parts = b" " + parts
        return ArtifactPiece(self.index, head, parts, self.replaces)

    def mark_saved(self) -> None:
        self._saved, self._saved_text = len(self._parts), self._text
        self._is_kept = True
        self._has_new_head = self.replaces = False

    def _joined(self, start: int) -> list[Part]:
        """Return the parts from a position on, with texts that continue one another joined."""
        joined: list[Part] = []
        texts: list[str] = []
        for each in self._parts[start:]:
            if isinstance(each, str):
                texts.append(each)
                continue
            if texts:
                self._join(joined, texts)
                texts = []
            joined.append(each)
        if texts:
            self._join(joined, texts)
        return joined

    def _join(self, joined: list[Part], texts: list[str]) -> None:
        """Continue the text of the last part, or else of the last saved part."""
        if joined:
            joined[-1] = replace(joined[-1], text="".join([joined[-1].text or "", *texts]))
        elif self._saved_text is not None:
            joined.append(replace(self._saved_text, text="".join(texts)))


def _text_in(parts: Sequence[Part]) -> Part | None:
    """Return the last part if it is a text."""
    return parts[-1] if parts and parts[-1].text is not None else None


def _head_of(artifact: Artifact) -> bytes:
    return encode(
        _Head(
            artifact_id=artifact.artifact_id,
            name=artifact.name,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=artifact.extensions,
        )
    )


def pieces_of(artifacts: Iterable[Artifact]) -> list[ArtifactPiece]:
    """Return all pieces of artifacts that the store does not have."""
    artifacts = tuple(artifacts)
    return ArtifactFold(
        artifacts, unsaved=[artifact.artifact_id for artifact in artifacts]
    ).take_unsaved()


def pieces_after(
    stored: Iterable[tuple[bytes, Sequence[bytes]]], updates: Iterable[bytes]
) -> list[ArtifactPiece]:
    """Return the pieces that the JSON of updates adds to stored artifacts (head and parts of each).

    Of the stored parts only the last is looked into: an update may continue its text.
    """
    known = [(head, *_last_text(parts)) for head, parts in stored]
    folding = ArtifactFold(
        [decode(b'%s,"parts":[%s]}' % (head[:-1], text), Artifact) for head, text, _ in known]
    )
    for growing, (_, _, has_earlier) in zip(folding.growing, known, strict=True):
        growing.has_earlier = has_earlier
    for update in updates:
        folding.apply(decode(update, TaskArtifactUpdateEvent))
    return folding.take_unsaved()


def changed_artifacts(updates: Iterable[bytes]) -> frozenset[str]:
    """Return the ids of the artifacts that the JSON of updates changes."""
    return frozenset(
        [decode(update, TaskArtifactUpdateEvent).artifact.artifact_id for update in updates]
    )


def joined_parts(pieces: Iterable[bytes]) -> bytes:
    """Return the JSON of an artifact's parts from that in its pieces (see ``ArtifactPiece``)."""
    joined: list[bytes] = []
    for piece in filter(None, pieces):
        if joined and piece.startswith(b" "):
            first = decode(_parts_in(piece)[0], Part)
            after = encode(replace(first, text=""))[len(_TEXT) :]
            joined[-1] = joined[-1][: -len(after)]
            joined.append(piece[1 + len(_TEXT) :])
        else:
            joined += (b",", piece) if joined else (piece,)
    return b"".join(joined)


_TEXT = b'{"text":"'
"""Begins the JSON of a text part."""


def _last_text(pieces: Sequence[bytes]) -> tuple[bytes, bool]:
    """Return the last part in pieces, if it is a text, and whether others stand before it."""
    filled = [piece for piece in pieces if piece]
    if not filled:
        return b"", False
    parts = _parts_in(filled[-1])
    last = bytes(parts[-1])
    if not last.startswith(_TEXT):
        return b"", True
    return last, len(filled) > 1 or len(parts) > 1


def _parts_in(piece: bytes) -> list[msgspec.Raw]:
    return msgspec.json.decode(b"[%s]" % piece, type=list[msgspec.Raw])
