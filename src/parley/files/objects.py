"""An object store: named bytes, written atomically, as files of a private directory (or in ``s3``).

FileError
├── NoSuchFile          it does not exist, or is not the caller's
├── OffsetMismatch      an upload continues at another offset
├── TooManyBytes        more bytes than were announced or are allowed
├── DigestMismatch      the bytes are not the announced bytes
├── TooManyUploads      the caller has too many files without a task
└── FilesUnavailable    the object store cannot work now
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

PAGE = 1000
"""The most entries of one listing."""

READ_BYTES = 256 * 1024
"""The most bytes that ``read`` yields at once."""

P = ParamSpec("P")
T = TypeVar("T")

_TEMPORARY = "tmp"
_TEMPORARY_SECONDS = 24 * 60 * 60
_ATTEMPTS = 100
_READ = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_WRITE = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)

log = logging.getLogger("parley.files")


class FileError(Exception):
    """The request was not executed. The message may be shown to the caller."""


class NoSuchFile(FileError):
    """The file does not exist, or is not the caller's."""

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
    """The file would have more bytes than allowed."""

    def __init__(self, limit: int, why: str) -> None:
        super().__init__(f"the file may have {limit} bytes, {why}")


class DigestMismatch(FileError):
    """The bytes of a complete upload differ from the announced bytes."""

    def __init__(self, announced: str, found: str) -> None:
        super().__init__(
            f"the bytes have the SHA-256 {found}, and {announced} was announced; the file is "
            "removed, upload it again"
        )


class TooManyUploads(FileError):
    """The caller has too many files, or bytes, that no task has yet."""


class FilesUnavailable(FileError):
    """The object store cannot work now. The message names nothing that is confidential."""


class ObjectEntry(NamedTuple):
    """An object in a listing."""

    key: str
    size: int


class ObjectStore(Protocol):
    """Stores bytes under keys: segments of ``[a-z0-9.-]`` with slashes between them.

    - Atomic: an object is stored completely, or not at all.
    - Durable: an acknowledged object survives a crash.
    - Consistent: reads and listings see every write that was acknowledged before.
    - All methods raise ``FilesUnavailable`` when the store cannot work.
    """

    @property
    def is_shared(self) -> bool:
        """True if replicas on other machines use the same objects."""
        ...

    async def open(self) -> None:
        """Prepare the store, and check that it can be used."""
        ...

    async def close(self) -> None:
        """Release all resources. Idempotent."""
        ...

    async def put(self, key: str, data: bytes | bytearray) -> None:
        """Write an object, replacing one with the same key."""
        ...

    async def create(self, key: str, data: bytes | bytearray) -> bool:
        """Write an object unless its key exists; return whether it was written.

        If several calls do so at once, one writes.
        """
        ...

    async def get(self, key: str) -> bytes | None:
        """Return a small object, ``None`` if there is none."""
        ...

    def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from ``start`` up to ``end`` of an object, in chunks of ``READ_BYTES``.

        Raises ``NoSuchFile`` when the object does not exist, or is shorter.
        """
        ...

    async def list(self, folder: str, limit: int = PAGE, after: str = "") -> Sequence[ObjectEntry]:
        """Return the first objects below a folder, at any depth, in the order of their keys.

        ``after`` is a key: the listing begins after it. The cost depends on ``limit``, not on the
        size of the folder.
        """
        ...

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. Missing ones are ignored."""
        ...


class DiskObjects:
    """Objects as files below ``root``, readable by this user only.

    A write goes to a temporary file, is flushed to the disk, and then renamed. A store that
    ``is_lazy`` need not be opened before use, and makes its directory on first use. With
    ``is_temporary``, closing removes the directory.
    """

    is_shared = False

    def __init__(self, root: Path, *, is_lazy: bool = False, is_temporary: bool = False) -> None:
        self.root = root
        self.is_lazy = is_lazy
        self._is_temporary = is_temporary

    # -- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the directory, and remove unfinished temporary files."""
        await self._run(self._open)

    def _open(self) -> None:
        if self.root.is_symlink() or (self.root.exists() and not self.root.is_dir()):
            raise FilesUnavailable(f"{self.root} is not a directory; name one for files")
        for folder in (self.root, self.root / _TEMPORARY):
            folder.mkdir(0o700, parents=True, exist_ok=True)
        status = self.root.stat()
        if hasattr(os, "geteuid") and stat.S_IMODE(status.st_mode) & 0o077:
            if status.st_uid == os.geteuid():
                self.root.chmod(0o700)
                log.warning("%s was open to others; it is private now", self.root)
            else:
                log.warning("%s is open to others, and belongs to another user", self.root)
        old = time.time() - _TEMPORARY_SECONDS
        for left in os.scandir(self.root / _TEMPORARY):
            with contextlib.suppress(OSError):
                if left.stat(follow_symlinks=False).st_mtime < old:
                    os.unlink(left.path)

    async def close(self) -> None:
        """Remove a temporary directory."""
        if self._is_temporary:
            await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)

    # -- objects -------------------------------------------------------------------------------

    async def put(self, key: str, data: bytes | bytearray) -> None:
        """Write an object, replacing one with the same key."""
        await self._run(self._write, key, data, replaces=True)

    async def create(self, key: str, data: bytes | bytearray) -> bool:
        """Write an object unless its key exists; return whether it was written."""
        return await self._run(self._write, key, data, replaces=False)

    def _write(self, key: str, data: bytes | bytearray, *, replaces: bool) -> bool:
        path = self._path(key)
        temporary = self.root / _TEMPORARY / secrets.token_hex(16)
        try:
            with open(os.open(temporary, _WRITE, 0o600), "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                os.fsync(file.fileno())
            changed = self._place(temporary, path, replaces=replaces)
        except FileNotFoundError as error:
            log.error("files in %s: the directory is gone", self.root)
            raise FilesUnavailable(
                "files cannot be kept or read now: their directory is gone"
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        for folder in changed:
            with contextlib.suppress(FileNotFoundError):  # it was empty, and has been removed
                _sync(folder)
        return bool(changed)

    def _place(self, temporary: Path, path: Path, *, replaces: bool) -> list[Path]:
        """Rename a file, and return the folders whose entries have changed.

        The list is empty if the name exists and must not be replaced. A folder that another call
        removes meanwhile, because it is empty, is made again.
        """
        attempts = 0
        while True:
            try:
                changed = self._make_folder(path.parent)
                if replaces:
                    os.replace(temporary, path)
                    return changed
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    return []
                return changed
            except (FileNotFoundError, FileExistsError):  # the folder was removed, or made again
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise

    def _make_folder(self, folder: Path) -> list[Path]:
        """Make a folder, and return the folders whose entries have changed."""
        changed = [folder]
        while not changed[-1].is_dir():
            changed.append(changed[-1].parent)
        for each in reversed(changed[:-1]):
            each.mkdir(0o700, exist_ok=True)
        return changed

    async def get(self, key: str) -> bytes | None:
        """Return a small object, ``None`` if there is none."""
        try:
            return await self._run(self._get, key)
        except NoSuchFile:
            return None

    def _get(self, key: str) -> bytes:
        with open(os.open(self._path(key), _READ), "rb") as file:
            return file.read()

    async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield bytes of an object, in pieces."""
        file = await self._run(lambda: _OpenFile(os.open(self._path(key), _READ)))
        while start < end:
            piece = await self._run(file.read, start, min(READ_BYTES, end - start))
            if not piece:
                raise NoSuchFile
            start += len(piece)
            yield piece

    async def list(self, folder: str, limit: int = PAGE, after: str = "") -> Sequence[ObjectEntry]:
        """Return the first objects below a folder, in the order of their keys."""
        return await self._run(lambda: [*islice(_below(self._path(folder), folder, after), limit)])

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, and folders that become empty."""
        await self._run(self._delete, list(keys))

    def _delete(self, keys: Sequence[str]) -> None:
        folders = set()
        for key in keys:
            path = self._path(key)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            folders.add(path.parent)
        for folder in folders:
            with contextlib.suppress(OSError):  # it is not empty
                while folder != self.root:
                    folder.rmdir()
                    folder = folder.parent

    def _path(self, key: str) -> Path:
        segments = key.split("/")
        if any(not segment or segment.startswith(".") for segment in segments):
            raise ValueError(f"{key!r} is no key")
        return self.root.joinpath(*segments)

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work of the disk in a thread."""
        try:
            return await asyncio.to_thread(work, *args, **kwargs)
        except FileNotFoundError:
            raise NoSuchFile from None
        except OSError as error:
            log.error("files in %s: %s", self.root, error)
            reason = "the disk is full" if error.errno == errno.ENOSPC else "the disk fails"
            raise FilesUnavailable(f"files cannot be kept or read now: {reason}") from error


class _OpenFile:
    """A file that is open for reading, and is closed when its last user is done.

    A thread that opens or reads it continues when its call is cancelled, so the last thread closes
    it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, size: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, offset)
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        return os.read(self._descriptor, size)

    def __del__(self) -> None:
        os.close(self._descriptor)


def _below(path: Path, key: str, after: str) -> Iterator[ObjectEntry]:
    """Yield the objects below a folder with keys after ``after``, in the order of the keys."""
    try:
        names = sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        below = f"{key}/{name}"
        if below <= after and not after.startswith(f"{below}/"):
            continue
        try:
            status = os.lstat(path / name)
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _below(path / name, below, after)
        elif stat.S_ISREG(status.st_mode):
            yield ObjectEntry(below, status.st_size)


def _sync(folder: Path) -> None:
    """Make the entries of a folder durable, on systems that can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_tree(root: Path) -> None:
    import shutil

    shutil.rmtree(root, ignore_errors=True)
