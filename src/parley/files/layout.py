"""The objects of a file: their keys, and its record.

 files/<id>/manifest                 its announcement; the file exists as long as this
 files/<id>/chunks/<place>           its bytes, the last chunk first in a listing
 files/<id>/complete                 the manifest again, with the chunks and the digest
 files/<id>/tasks/<task id>          a task of the file, with the time in ms of the attachment
 files/<id>/removed                  it is being removed
 due/<hour>/<ms>-<id>                check it then: it expires, or its tasks may be gone
 owners/<owner>/<id>.<bytes>         an owner's files without a task
 sweeps/<minute>                     the claim of one replica for the sweep of this minute

A file is checked when its first due marker is due, so no sweep reads files early. All markers are
written before the objects that they guard, and removed after them: a crash may leave a marker
without a file, but no file without a marker.
"""

from __future__ import annotations

import hashlib
import re
import secrets

import msgspec

from parley.model.ids import new_id

MIB = 1024 * 1024

CHUNK_BYTES = 4 * MIB
"""The maximum size of a chunk, which an upload keeps in memory."""

MAX_CHUNKS = 20_000
"""The maximum number of chunks of a file."""

HOUR = 3_600_000

ID = re.compile(r"[0-9a-f]{48}")
"""The form of a file's id: a time, and 124 random bits."""

_MOST_BYTES = (1 << 48) - 1
_TASK_ID = re.compile(r"[0-9a-z][0-9a-z-]{0,127}")


class FileScope(msgspec.Struct, frozen=True):
    """The agent, tenant and owner of a file. Only its own scope finds it."""

    agent: str
    tenant: str = ""
    owner: str = ""


class FileLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of files. Times are in seconds.

    ``file_bytes`` bounds one file. ``uploads`` and ``upload_bytes`` bound the files of one owner
    without a task, including unfinished ones. ``upload_timeout`` is the time for an upload; a
    complete file without a task is removed after the same time. ``link_timeout`` is the lifetime of
    a signed address.
    """

    file_bytes: int = 5 * 1024 * MIB
    uploads: int = 100
    upload_bytes: int = 20 * 1024 * MIB
    upload_timeout: float = 24 * 60 * 60
    link_timeout: float = 24 * 60 * 60


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file: its announcement, and once it is ``complete``, its final form.

    ``size`` is -1 while it is unknown; ``limit`` is its maximum. ``chunks`` are the sizes of the
    chunks. Times are in ms since 1970. ``expires_at`` is the time of the file's removal if it has
    no task.
    """

    id: str
    scope: FileScope
    filename: str = ""
    media_type: str = ""
    size: int = -1
    limit: int = 0
    sha256: str = ""
    created_at: int
    expires_at: int
    chunks: tuple[int, ...] = ()
    complete: bool = False


class UploadStatus(msgspec.Struct, frozen=True):
    """The progress of an upload: ``offset`` bytes are durable."""

    offset: int
    complete: bool


encode = msgspec.json.encode
decode = msgspec.json.Decoder(FileRecord).decode


manifest = "files/{}/manifest".format
"""Returns the key of the announcement of a file, by its id."""

complete = "files/{}/complete".format
"""Returns the key of the record of a complete file."""

removed = "files/{}/removed".format
"""Returns the key of the mark of a file that is being removed."""

chunks = "files/{}/chunks".format
"""Returns the folder of a file's chunks."""

tasks = "files/{}/tasks".format
"""Returns the folder of the tasks that have a file."""


def new_file_id(at: int) -> str:
    """Return a fresh id, which cannot be guessed."""
    return new_id(at) + secrets.token_hex(8)


def chunk(id: str, offset: int, index: int) -> str:
    """Return the key of the chunk at an offset. The last one comes first in a listing."""
    return f"files/{id}/chunks/{_MOST_BYTES - offset:012x}-{index:05d}"


def chunk_place(key: str) -> tuple[int, int]:
    """Return the offset and the index of a chunk."""
    offset, _, index = key.rpartition("/")[2].partition("-")
    return _MOST_BYTES - int(offset, 16), int(index)


def task(id: str, task_id: str) -> str:
    """Return the key of a task of a file.

    Raises ``ValueError`` for an invalid task id.
    """
    if not _TASK_ID.fullmatch(task_id):
        raise ValueError(f"a file cannot belong to the task {task_id[:100]!r}")
    return f"files/{id}/tasks/{task_id}"


def due(id: str, at: int) -> str:
    """Return the key of a marker for a time in ms.

    A time more than an hour away is rounded up, so that markers of one file coincide.
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
