"""Files with private keys: who may read them, and how one is replaced."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NEW = (
    os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


class FileExposed(ValueError):
    """Others than the owner of a file with secrets may read or change it."""


def stamp_of(path: Path) -> object:
    """Return what changes when a file does, ``None`` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode)


def read_private(path: Path, *, limit: int) -> bytes:
    """Return the content of a file that only its owner may read.

    A file of root may be read by a group too: so secrets are mounted into containers. Raises
    ``FileExposed``, ``OSError``, and ``ValueError`` for a file that is too long.
    """
    with path.open("rb") as file:
        if os.name == "posix":
            _check(path, os.fstat(file.fileno()))
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} has more than {limit:,} bytes, and is no key file")
    return data


def _check(path: Path, status: os.stat_result) -> None:
    mode = stat.S_IMODE(status.st_mode)
    of_root = status.st_uid == 0 and os.geteuid() != 0
    if mode & (0o037 if of_root else 0o077):
        raise FileExposed(
            f"{path} has private keys, and others on this machine may use it (mode {mode:04o}): "
            f"chmod 600 {path}"
        )


class WriteUnderWay(Exception):
    """Another process writes the file, or one was killed while it did."""


@contextmanager
def replacing(path: Path, *, creates: bool = False) -> Iterator[Callable[[bytes], None]]:
    """Give a function that replaces a private file, or makes one (``creates``), as a whole.

    Only one process at a time gets it, and readers see the old content or the new one. The new file
    has the owner and the rights of the old one, and mode 0600 if it is new. Raises
    ``WriteUnderWay``, ``FileExistsError`` for a file that was to be made, and ``OSError``.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    beside = path.with_name(f"{path.name}.new")
    try:
        descriptor = os.open(beside, _NEW, 0o600)
    except FileExistsError:
        raise WriteUnderWay(
            f"another process is changing {path}, or one was killed while it did: if there is "
            f"none, remove {beside}"
        ) from None
    try:
        try:
            if creates and path.exists():
                raise FileExistsError(f"{path} exists already")
            before = None if creates else path.stat()

            def write(content: bytes) -> None:
                _take_over(descriptor, before)
                with os.fdopen(os.dup(descriptor), "wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                written.append(True)

            written: list[bool] = []
            yield write
        finally:
            os.close(descriptor)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    # From the moment it has its new name, what is beside it is another process's.
    if not written:
        beside.unlink(missing_ok=True)
        return
    try:
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _take_over(descriptor: int, before: os.stat_result | None) -> None:
    if not hasattr(os, "fchmod"):
        return  # Windows
    os.fchmod(descriptor, 0o600)  # the umask may have taken the owner's rights too
    if before is None:
        return
    made = os.fstat(descriptor)
    if (before.st_uid, before.st_gid) != (made.st_uid, made.st_gid):
        os.fchown(descriptor, before.st_uid, before.st_gid)  # or a server could not read it
    os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder durable, where folders can be."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
