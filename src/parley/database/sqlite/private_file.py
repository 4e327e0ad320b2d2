"""Opens files with user data: through no link, and private to their owner. Lock files."""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

_FLAGS = (
    os.O_RDWR
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # otherwise a named pipe would block
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_LINK_ERRORS = (errno.ELOOP, errno.EMLINK)
_LOCKED_BYTE = 1 << 30  # far behind the process id, which must stay readable for others
_HELD_ERRORS = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)


class UnsafeFile(Exception):
    """The path is not a file that may be written. The message has the reason and a remedy."""


def open_private(path: Path, *, creates: bool) -> int:
    """Open the regular file at a path for reading and writing; return its descriptor.

    A file that others can access is made private to its owner, whatever the umask is; if that
    fails, it is logged. Raises ``UnsafeFile`` for a symbolic link, for anything but a regular file,
    and for a file with a second name; ``FileNotFoundError`` without ``creates``; ``OSError``.
    """
    descriptor = _open(path, creates=creates)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeFile(f"{path} is not a regular file; move it away")
        if status.st_nlink > 1:
            raise UnsafeFile(
                f"{path} is a hard link: the file has {status.st_nlink} names, and the protection "
                "of one does not cover another; remove the others, or replace it by a copy"
            )
        _make_private(descriptor, path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open(path: Path, *, creates: bool) -> int:
    if path.is_symlink():  # where opening follows links (Windows)
        raise _is_link(path)
    while True:
        try:
            return os.open(path, _FLAGS)
        except FileNotFoundError:
            if not creates:
                raise
        except OSError as error:
            raise _explained(error, path) from error
        try:
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue  # another process has just created it
        except OSError as error:
            raise _explained(error, path) from error
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)  # the umask may have removed the owner's rights too
        return descriptor


def _explained(error: OSError, path: Path) -> Exception:
    if error.errno in _LINK_ERRORS:
        return _is_link(path)
    if error.errno == errno.ENXIO:
        return UnsafeFile(f"{path} is not a regular file; move it away")
    return error


def _is_link(path: Path) -> UnsafeFile:
    return UnsafeFile(f"{path} is a symbolic link, which is not followed; remove it")


def _make_private(descriptor: int, path: Path, status: os.stat_result) -> None:
    if not hasattr(os, "geteuid"):
        return  # Windows has other permissions
    mode = stat.S_IMODE(status.st_mode)
    if not mode & 0o077:
        return
    if status.st_uid == os.geteuid():
        try:
            os.fchmod(descriptor, mode & 0o700)
        except OSError as error:
            reason = error.strerror
        else:
            logger.warning("%s was open to others (mode %o); it is private now", path, mode)
            return
    else:
        reason = f"it belongs to user {status.st_uid}"
    logger.warning(
        "%s is open to others (mode %o) and cannot be made private (%s): chmod 600", path, mode,
        reason,
    )  # fmt: skip


class LockHeld(Exception):
    """Another process holds the lock: ``pid``, if it can be read."""

    def __init__(self, pid: str) -> None:
        self.pid = pid
        super().__init__(f"held by process {pid}")


class LockFile:
    """Holds the lock of a file from construction to ``release``. The file is not removed.

    Raises ``LockHeld`` when another holder has it, in this process too; ``UnsafeFile`` for a link,
    and for a file that is not a lock file, which is never written; ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        while True:
            # Not inherited by child programs, which would otherwise hold the lock too.
            self._descriptor = open_private(path, creates=True)
            try:
                self._acquire()
                if self._is_in_place():
                    return
            except BaseException:
                self.release()
                raise
            self.release()  # it was removed before it was locked, and may have been replaced

    def _acquire(self) -> None:
        try:
            self._lock()
        except OSError as error:
            if error.errno not in _HELD_ERRORS:
                raise
            raise LockHeld(self._read() or "unknown") from None
        self._read()
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

    def _read(self) -> str:
        """Return the process id in the file, if any. Raises ``UnsafeFile``."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        content = os.read(self._descriptor, 64)
        if not re.fullmatch(rb"\d{0,20}\s*", content):
            raise UnsafeFile(
                f"{self.path} is not a lock file: it has other content; move it away, or name "
                "another database"
            )
        return content.decode().strip()

    def _is_in_place(self) -> bool:
        """Return whether the locked file is the one at the path."""
        try:
            current, locked = os.lstat(self.path), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (current.st_dev, current.st_ino) == (locked.st_dev, locked.st_ino)

    def _lock(self) -> None:
        if fcntl is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif msvcrt is not None:
            os.lseek(self._descriptor, _LOCKED_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(self._descriptor, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(self._descriptor, 0, os.SEEK_SET)

    def release(self) -> None:
        """Release the lock. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)
