"""The stored form of a task (its snapshot): rows of the wire's JSON.

A store keeps a task's status in its head, and each message and artifact in separate rows, so that a
query reads only the rows that it needs. The messages are the history; the last may be the status's
(``has_status_message``). An artifact is one or more pieces, each with further parts. The latest
chunks, at most some 64 KiB in a turn, are only in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import msgspec

from parley.model.struct import Timestamp, decode, encode
from parley.model.tasks import Task, TaskState
from parley.store.fold import (
    ArtifactPiece,
    changed_artifacts,
    joined_parts,
    pieces_after,
    pieces_of,
)

ArtifactRow = tuple[int, bytes, bytes]
"""An artifact's position in its task, its head or nothing, and parts."""


class StoredTask(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A task in the form of its rows: pieces of JSON, all written by ``encode``.

    ``history`` is the JSON of messages, separated by commas, ``status_message`` the JSON of the
    status's message. ``artifacts`` are rows in order, ``tail`` the artifact updates after them. It
    is immutable, so its pieces are joined once.
    """

    task_id: str
    context_id: str
    state: TaskState
    status_at: int
    status_message: bytes = b""
    metadata: bytes = b""
    history: bytes = b""
    artifacts: Sequence[ArtifactRow] = ()
    tail: Sequence[bytes] = ()

    def task(self) -> Task:
        """Return the task."""
        return decode(self._join(), Task)

    def json(self) -> bytes:
        """Return the task's JSON, made by joining the pieces.

        Little except the tail is decoded. The value is equal to ``encode`` of the task; only
        members of artifacts may be in another order.
        """
        return self._joined

    @cached_property
    def _joined(self) -> bytes:
        return self._join()

    def _join(self) -> bytes:
        text = [b'{"id":', encode(self.task_id)]
        if self.context_id:
            text += (b',"contextId":', encode(self.context_id))
        text += (b',"status":{"state":', encode(self.state))
        if self.status_message:
            text += (b',"message":', self.status_message)
        text += (b',"timestamp":', encode(Timestamp.from_milliseconds(self.status_at)), b"}")
        if self.artifacts or self.tail:
            text += (b',"artifacts":[', self._artifacts(), b"]")
        if self.history:
            text += (b',"history":[', self.history, b"]")
        if self.metadata:
            text += (b',"metadata":', self.metadata)
        text.append(b"}")
        return b"".join(text)

    def _artifacts(self) -> bytes:
        """Return the JSON of the artifacts, separated by commas."""
        heads: dict[int, bytes] = {}
        parts: dict[int, list[bytes]] = {}
        for index, head, further in self.artifacts:
            if head:
                heads[index] = head
            parts.setdefault(index, []).append(further)
        if self.tail:
            stored = [(head, parts[index]) for index, head in heads.items()]
            for piece in pieces_after(stored, self.tail):
                if piece.head:
                    heads[piece.position] = piece.head
                if piece.replaces:
                    parts[piece.position] = []
                parts.setdefault(piece.position, []).append(piece.parts)
        return b",".join(
            [
                b'%s,"parts":[%s]}' % (head[:-1], joined_parts(parts[index]))
                for index, head in heads.items()
            ]
        )

    @property
    def unsaved(self) -> frozenset[str]:
        """The ids of the artifacts that ``tail`` changes."""
        return changed_artifacts(self.tail)


def artifact_rows(lines: bytes | None) -> list[ArtifactRow]:
    """Return the rows in a value that a query joined."""
    rows = []
    for line in lines.split(b"\x1e") if lines else ():
        index, head, parts = line.split(b"\x1f")
        rows.append((int(index), head, parts))
    return rows


class StoredForm(msgspec.Struct, frozen=True):
    """The whole stored form of a task, written at once."""

    messages: Sequence[bytes]
    has_status_message: bool
    metadata: bytes
    artifacts: Sequence[ArtifactPiece]

    @classmethod
    def of(cls, task: Task) -> StoredForm:
        """Return the stored form of ``task``."""
        message = task.status.message
        messages = [encode(message) for message in task.history]
        if message is not None:
            messages.append(encode(message))
        metadata = b"" if task.metadata is None else encode(task.metadata)
        return cls(messages, message is not None, metadata, pieces_of(task.artifacts))

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return sum([len(m) for m in self.messages]) + sum([len(p.parts) for p in self.artifacts])

    def message_rows(self, key: int) -> list[tuple[int, int, bytes]]:
        """Return the rows of its messages for the task with this key; row 0 is the metadata."""
        rows = [(key, n, text) for n, text in enumerate(self.messages, 1)]
        return [(key, 0, self.metadata), *rows] if self.metadata else rows

    def artifact_rows(self, key: int, seq: int) -> list[tuple[int, int, int, bytes, bytes]]:
        """Return the rows of its artifacts as of event ``seq``."""
        return [(key, piece.position, seq, piece.head, piece.parts) for piece in self.artifacts]
