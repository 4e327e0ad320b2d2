"""A lock between processes, which the operating system releases however its holder ends."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path

from parley.database.sqlite.private_file import UnsafeFile, open_private

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import msvcrt
except ImportError:  # everywhere else
    msvcrt = None  # type: ignore[assignment]

_LOCKED_BYTE = 1 << 30  # far behind the process id, which others must be able to read
_HELD_ERRORS = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)


class LockHeld(Exception):
    """Another process holds the lock: ``pid``, if it can be read."""

    def __init__(self, pid: str) -> None:
        self.pid = pid
        super().__init__(f"held by process {pid}")


class LockFile:
    """Holds the lock of a file from construction to ``release``. The file is not removed.

    Raises ``LockHeld`` when another holder has it, in this process too; ``UnsafeFile`` for a link,
    and for a file that is no lock file, which is never written to; ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        while True:
            # Not inherited by programs that this process starts, or they would hold the lock too.
            self._descriptor = open_private(path, creates=True)
            try:
                self._acquire()
                if self._is_in_place():
                    return
            except BaseException:
                self.release()
                raise
            self.release()  # it was removed before it was locked, and another may be there by now

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
                f"{self.path} is not a lock file: it holds something else; move it away, or name "
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
