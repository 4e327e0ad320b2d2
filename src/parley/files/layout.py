"""The keys of a file's objects.

    files/<id>/manifest                 what was announced; the file exists while this does
    files/<id>/chunks/<place>           its bytes, the last chunk first in a listing
    files/<id>/complete                 the manifest again, with the chunks and the digest
    files/<id>/tasks/<task id>          a task that has it, with the time in ms when it got it
    files/<id>/removed                  it is being removed
    due/<hour>/<ms>-<id>                look at it then: it expires, or its tasks may be gone
    owners/<owner>/<id>.<bytes>         an owner's files that no task has yet
    sweeps/<minute>                     one replica sweeps in this minute

A file is looked at when one of its due markers is due, so no sweep reads files that have time. All
markers are written before what they watch over, and removed after it: a crash may leave a marker
without a file, but no file without a marker.
"""

from __future__ import annotations

import hashlib
import re
import secrets

from parley.files.records import FileScope
from parley.model.ids import new_id

HOUR = 3_600_000

ID = re.compile(r"[0-9a-f]{48}")
"""The form of a file's id: a time, and 124 random bits."""

_MOST_BYTES = (1 << 48) - 1
_TASK_ID = re.compile(r"[0-9a-z][0-9a-z-]{0,127}")


def new_file_id(at: int) -> str:
    """Return a fresh id, which cannot be guessed."""
    return new_id(at) + secrets.token_hex(8)


def manifest(id: str) -> str:
    """Return the key of what was announced of a file."""
    return f"files/{id}/manifest"


def complete(id: str) -> str:
    """Return the key of the record of a complete file."""
    return f"files/{id}/complete"


def removed(id: str) -> str:
    """Return the key of the mark of a file that is being removed."""
    return f"files/{id}/removed"


def chunks(id: str) -> str:
    """Return the folder of a file's chunks."""
    return f"files/{id}/chunks"


def chunk(id: str, offset: int, index: int) -> str:
    """Return the key of the chunk at an offset. The last one comes first in a listing."""
    return f"files/{id}/chunks/{_MOST_BYTES - offset:012x}-{index:05d}"


def chunk_place(key: str) -> tuple[int, int]:
    """Return the offset and the index of a chunk."""
    offset, _, index = key.rpartition("/")[2].partition("-")
    return _MOST_BYTES - int(offset, 16), int(index)


def tasks(id: str) -> str:
    """Return the folder of the tasks that have a file."""
    return f"files/{id}/tasks"


def task(id: str, task_id: str) -> str:
    """Return the key of a task that has a file.

    Raises ``ValueError`` for an id that no server of this kind gives to a task.
    """
    if not _TASK_ID.fullmatch(task_id):
        raise ValueError(f"a file cannot belong to the task {task_id[:100]!r}")
    return f"files/{id}/tasks/{task_id}"


def due(id: str, at: int) -> str:
    """Return the key of a marker for a time in ms.

    A time that is more than an hour away is rounded up, so that markers of one file meet.
    """
    return f"due/{at // HOUR:08x}/{at:012x}-{id}"


def due_place(key: str) -> tuple[int, str]:
    """Return the time in ms and the file of a marker."""
    at, _, id = key.rpartition("/")[2].partition("-")
    return int(at, 16), id


def owner(scope: FileScope) -> str:
    """Return the folder of an owner's files that no task has."""
    name = "\0".join((scope.agent, scope.tenant, scope.owner)).encode()
    return f"owners/{hashlib.sha256(name).hexdigest()[:32]}"


def owned(scope: FileScope, id: str, size: int) -> str:
    """Return the key of a file that no task has, and that may have ``size`` bytes."""
    return f"{owner(scope)}/{id}.{size}"


def owned_bytes(key: str) -> int:
    """Return the bytes that such a file may have."""
    return int(key.rpartition(".")[2])
