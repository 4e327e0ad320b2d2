"""A lock between processes, let go by the operating system however its holder ends."""

from __future__ import annotations

import os
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

_LOCKED_BYTE = 1 << 30  # far behind the process id, which others must be able to read


class Held(Exception):
    """Another holds the lock. ``pid`` is its process, as far as it can be read."""

    def __init__(self, pid: str) -> None:
        self.pid = pid
        super().__init__(f"held by process {pid}")


class LockFile:
    """Holds the lock of a file from construction to ``release``. The file stays where it is.

    Raises ``Held`` when another has it, this process included, and ``OSError``.
    """

    def __init__(self, path: Path) -> None:
        # Not inherited by programs that this process starts, or they would hold the lock too.
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._lock()
        except OSError:
            pid = os.read(self._descriptor, 32).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise Held(pid or "unknown") from None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"{os.getpid()}\n".encode())

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
