"""What is kept of a file, and what limits files."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024

CHUNK_BYTES = 4 * MIB
"""The most bytes of one chunk: what an upload holds in memory."""

MAX_CHUNKS = 20_000
"""The most chunks of a file, however small the pieces that it came in."""


class FileScope(msgspec.Struct, frozen=True):
    """The agent, tenant and owner of a file. Only its own scope finds it."""

    agent: str
    tenant: str = ""
    owner: str = ""


class FileLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of files. Times are in seconds.

    ``file_bytes`` bounds one file. ``uploads`` and ``upload_bytes`` bound the files of one owner
    that no task has, unfinished ones among them. ``upload_timeout`` is how long an upload may take;
    a complete file that no task has is removed after as long. ``link_timeout`` is how long a signed
    address is valid.
    """

    file_bytes: int = 5 * 1024 * MIB
    uploads: int = 100
    upload_bytes: int = 20 * 1024 * MIB
    upload_timeout: float = 24 * 60 * 60
    link_timeout: float = 24 * 60 * 60


class FileRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file: what was announced, and once it is ``complete``, what it is.

    ``size`` is -1 while it is unknown; ``limit`` is the most that it may have. ``chunks`` are the
    sizes of the chunks. Times are in ms since 1970. ``expires_at`` is when it is removed if no task
    has it.
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
    """How far an upload is: ``offset`` bytes are durable."""

    offset: int
    complete: bool


def encode(record: FileRecord) -> bytes:
    """Return the stored form of a record."""
    return msgspec.json.encode(record)


def decode(data: bytes) -> FileRecord:
    """Return the record of a stored form."""
    return _DECODER.decode(data)


_DECODER = msgspec.json.Decoder(FileRecord)
