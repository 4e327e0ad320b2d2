"""Objects as files of a private directory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import secrets
import stat
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec, Self, TypeVar

from parley.files.errors import FilesUnavailable, NoSuchFile
from parley.files.objects import PAGE, READ_BYTES, ObjectEntry

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


class DiskObjects:
    """Objects as files below ``root``, readable by this user alone.

    A write goes to a temporary file, is flushed to the disk, and gets its name then. One that
    ``is_lazy`` need not be opened before it is used, and makes its directory when it is. With
    ``is_temporary``, closing removes the directory.
    """

    is_shared = False

    def __init__(self, root: Path, *, is_lazy: bool = False, is_temporary: bool = False) -> None:
        self.root = root
        self.is_lazy = is_lazy
        self._is_temporary = is_temporary

    # -- life ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make the directory, and remove what writers left that did not finish."""
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
            await asyncio.to_thread(_remove_tree, self.root)

    # -- objects -------------------------------------------------------------------------------

    async def put(self, key: str, data: bytes | bytearray) -> None:
        """Write an object, in place of one of the same key."""
        await self._run(self._write, key, data, replaces=True)

    async def create(self, key: str, data: bytes | bytearray) -> bool:
        """Write an object unless there is one with this key; return whether it was written."""
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
            with contextlib.suppress(FileNotFoundError):  # it is empty and gone already
                _sync(folder)
        return bool(changed)

    def _place(self, temporary: Path, path: Path, *, replaces: bool) -> list[Path]:
        """Give a file its name, and return the folders whose entries have changed.

        None have if there is such a file and it may not be replaced. A folder that another call
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
            except (FileNotFoundError, FileExistsError):  # the folder went, or came and went
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
        file = await self._run(_OpenFile.at, self._path(key))
        while start < end:
            piece = await self._run(file.read, start, min(READ_BYTES, end - start))
            if not piece:
                raise NoSuchFile
            start += len(piece)
            yield piece

    async def list(self, folder: str, limit: int = PAGE, after: str = "") -> Sequence[ObjectEntry]:
        """Return the first objects below a folder, in the order of their keys."""
        return await self._run(self._list, folder, limit, after)

    def _list(self, folder: str, limit: int, after: str) -> Sequence[ObjectEntry]:
        found: list[ObjectEntry] = []
        for entry in _below(self._path(folder), folder, after):
            if len(found) == limit:
                break
            found.append(entry)
        return found

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, and the folders that are empty then."""
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
            return await asyncio.to_thread(functools.partial(work, *args, **kwargs))
        except FileNotFoundError:
            raise NoSuchFile from None
        except OSError as error:
            log.error("files in %s: %s", self.root, error)
            reason = "the disk is full" if error.errno == errno.ENOSPC else "the disk fails"
            raise FilesUnavailable(f"files cannot be kept or read now: {reason}") from error


class _OpenFile:
    """A file that is open for reading, and is closed when it is not used any more.

    A thread that opens or reads it goes on when its call is cancelled, so the last one closes it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def at(cls, path: Path) -> Self:
        return cls(os.open(path, _READ))

    def read(self, offset: int, size: int) -> bytes:
        if hasattr(os, "pread"):
            return os.pread(self._descriptor, size, offset)
        os.lseek(self._descriptor, offset, os.SEEK_SET)
        return os.read(self._descriptor, size)

    def __del__(self) -> None:
        os.close(self._descriptor)


def _below(path: Path, key: str, after: str) -> Iterator[ObjectEntry]:
    """Yield the objects below a folder whose keys come after one, in the order of the keys."""
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
    """Make the entries of a folder durable, where the system can."""
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
