"""The errors of files.

FileError
├── NoSuchFile          there is none, or it is not the caller's
├── OffsetMismatch      an upload continues at another offset
├── TooManyBytes        more bytes than were announced or are allowed
├── DigestMismatch      the bytes are not those that were announced
├── TooManyUploads      the caller has too many files that no task has
└── FilesUnavailable    the object store cannot work now
"""

from __future__ import annotations


class FileError(Exception):
    """Nothing of what was asked for was done. The message may be shown to the caller."""


class NoSuchFile(FileError):
    """There is no such file, or it is not the caller's."""

    def __init__(self) -> None:
        super().__init__("there is no such file here, or it is not yours")


class OffsetMismatch(FileError):
    """An upload continues at ``offset`` only."""

    def __init__(self, offset: int, *, complete: bool = False) -> None:
        self.offset = offset
        self.complete = complete
        super().__init__(
            f"the file is complete, with {offset} bytes"
            if complete
            else f"the upload continues at byte {offset} (Upload-Offset); send the bytes from there"
        )


class TooManyBytes(FileError):
    """The file would have more bytes than it may."""

    def __init__(self, limit: int, why: str) -> None:
        self.limit = limit
        super().__init__(f"the file may have {limit} bytes, {why}")


class DigestMismatch(FileError):
    """The bytes of a complete upload are not those that were announced."""

    def __init__(self, announced: str, found: str) -> None:
        super().__init__(
            f"the bytes have the SHA-256 {found}, and {announced} was announced; the file is "
            "removed, upload it again"
        )


class TooManyUploads(FileError):
    """The caller has too many files, or bytes, that no task has yet."""


class FilesUnavailable(FileError):
    """The object store cannot work now. The message names nothing that is confidential."""
