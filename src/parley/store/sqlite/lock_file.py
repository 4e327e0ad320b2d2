"""A lock between processes, let go by the operating system however its holder ends."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from pathlib import Path

from parley.store.sqlite.private_file import Unsafe, open_private

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
    """Another holds the lock. ``pid`` is its process, as far as it can be read."""

    def __init__(self, pid: str) -> None:
        self.pid = pid
        super().__init__(f"held by process {pid}")


class LockFile:
    """Holds the lock of a file from construction to ``release``. The file stays where it is.

    Nothing but a lock file is ever written to. Raises ``LockHeld`` when another has it, this
    process included; ``Unsafe`` for a link and for a file that holds something else; ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        while True:
            # Not inherited by programs that this process starts, or they would hold the lock too.
            self._descriptor = open_private(path, creates=True)
            try:
                self._take()
                if self._is_in_place():
                    return
            except BaseException:
                self.release()
                raise
            self.release()  # it was removed before it was locked, and another may be there by now

    def _take(self) -> None:
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
        """Return the process id that the file holds, if it does. Raises ``Unsafe``."""
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        content = os.read(self._descriptor, 64)
        if not re.fullmatch(rb"\d{0,20}\s*", content):
            raise Unsafe(
                f"{self.path} is not a lock file: it holds something else; move it away, or name "
                "another database"
            )
        return content.decode().strip()

    def _is_in_place(self) -> bool:
        """Return whether the file that is locked is the one that others will find."""
        try:
            there, ours = os.lstat(self.path), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

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
        """Let go. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)
