"""The stored form of a task: pieces of the wire's JSON, put together to the task that they are.

A store keeps a task's status in its head, and the messages and the artifacts as rows of their own.
So what is not asked for is never read. The messages are the history; the last of them may still
be that of the status (``has_status_message``). An artifact is one or more pieces, each with further
parts; what was added to it since, at most some 64 KiB in a turn, is only in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from parley.log.artifact_fold import ArtifactFold, ArtifactPiece, pieces_of
from parley.log.events import LoggedEvent, records_in
from parley.log.fold import fold
from parley.model.encoding import decode, encode, from_wire
from parley.model.parts import Artifact
from parley.model.struct import Timestamp
from parley.model.tasks import Task, TaskArtifactUpdateEvent

_decode = msgspec.json.Decoder(Task, dec_hook=from_wire).decode

ArtifactRow = tuple[int, bytes, bytes]
"""The position of an artifact in its task, the head of it or nothing, and parts."""


class StoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a task.

    ``history`` is the JSON of messages, separated by commas, ``status_message`` that of the
    status's. ``artifacts`` are rows in order, ``tail`` the artifact updates that came after them.
    """

    task_id: str
    context_id: str
    state: str
    status_at: int
    status_message: bytes = b""
    metadata: bytes = b""
    history: bytes = b""
    artifacts: Sequence[ArtifactRow] = ()
    tail: Sequence[LoggedEvent] = ()

    def json(self) -> bytes:
        """Return the task as the wire's JSON, without what is in ``tail``."""
        stamp = Timestamp.from_milliseconds(self.status_at)
        pieces = [b'{"id":', encode(self.task_id)]
        if self.context_id:
            pieces += [b',"contextId":', encode(self.context_id)]
        pieces += [b',"status":{"state":"', self.state.encode()]
        if self.status_message:
            pieces += [b'","message":', self.status_message, b',"timestamp":"']
        else:
            pieces.append(b'","timestamp":"')
        pieces += [str(stamp).encode(), b'"}']
        if self.artifacts:
            pieces += [b',"artifacts":[', b",".join(_artifacts(self.artifacts)), b"]"]
        if self.history:
            pieces += [b',"history":[', self.history, b"]"]
        if self.metadata:
            pieces += [b',"metadata":', self.metadata]
        pieces.append(b"}")
        return b"".join(pieces)

    def task(self) -> Task:
        """Return the task."""
        task = _decode(self.json())
        if not self.tail:
            return task
        artifacts = ArtifactFold(task.artifacts)
        for record in self.tail:
            assert isinstance(record.event, TaskArtifactUpdateEvent)
            artifacts.apply(record.event)
        return replace(task, artifacts=artifacts.artifacts)

    @property
    def unsaved(self) -> frozenset[str]:
        """The ids of the artifacts that ``artifacts`` do not have as they are."""
        return frozenset(
            [
                record.event.artifact.artifact_id
                for record in self.tail
                if isinstance(record.event, TaskArtifactUpdateEvent)
            ]
        )


def _artifacts(rows: Iterable[ArtifactRow]) -> list[bytes]:
    """Return the JSON of each artifact."""
    heads: dict[int, bytes] = {}
    parts: dict[int, list[bytes]] = {}
    for index, head, further in rows:
        if head:
            heads[index] = head
        pieces = parts.setdefault(index, [])
        if further:
            pieces.append(further)
    return [
        b'%s,"parts":[%s]}' % (head[:-1], b",".join(parts[index])) for index, head in heads.items()
    ]


def artifact_rows(lines: bytes | None) -> list[ArtifactRow]:
    """Return the rows that a query joined into one value."""
    rows = []
    for line in lines.split(b"\x1e") if lines else ():
        index, head, parts = line.split(b"\x1f")
        rows.append((int(index), head, parts))
    return rows


class StoredForm(msgspec.Struct, frozen=True):
    """The whole stored form of a task, to be written at once."""

    messages: Sequence[bytes]
    has_status_message: bool
    metadata: bytes
    artifacts: Sequence[ArtifactPiece]

    @classmethod
    def of(cls, task: Task) -> StoredForm:
        """Return that of a task as it stands."""
        said = task.status.message
        messages = [encode(message) for message in task.history]
        if said is not None:
            messages.append(encode(said))
        metadata = b"" if task.metadata is None else encode(task.metadata)
        return cls(messages, said is not None, metadata, pieces_of(task.artifacts))

    @property
    def size(self) -> int:
        """How many bytes it has, about."""
        return sum([len(m) for m in self.messages]) + sum([len(p.parts) for p in self.artifacts])

    def message_rows(self, key: int) -> list[tuple[int, int, bytes]]:
        """Return the rows of its messages for the task with this key; row 0 is the metadata."""
        rows = [(key, n, text) for n, text in enumerate(self.messages, 1)]
        return [(key, 0, self.metadata), *rows] if self.metadata else rows

    def artifact_rows(self, key: int, seq: int) -> list[tuple[int, int, int, bytes, bytes]]:
        """Return the rows of its artifacts, which are as the event ``seq`` left them."""
        return [(key, piece.position, seq, piece.head, piece.parts) for piece in self.artifacts]


def task_of_before(
    task_id: str, body: bytes | None, artifacts: bytes | None, tail: bytes | None
) -> StoredForm:
    """Return the stored form of a task that was kept as a snapshot and the records after it.

    ``body`` is the JSON of the task without its artifacts, ``artifacts`` that of these.
    """
    start = None
    if body is not None:
        start = replace(_decode(body), artifacts=decode(artifacts or b"[]", tuple[Artifact, ...]))
    return StoredForm.of(fold([record.event for record in records_in(task_id, tail)], start))
