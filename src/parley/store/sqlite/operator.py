"""What an operator asks of the process that has a SQLite file open.

That process alone writes to the file (``sqlite_file`` says why), so another one that wants
something changed asks it, over a socket beside the file that only the file's owner can open: a line
of JSON each way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sqlite3
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from parley.store.admin.admin import Suspended, Which, suspended_of
from parley.store.sqlite.file import UPKEEP_SQL
from parley.store.task_store import StoreError, StoreUnavailable

logger = logging.getLogger(__name__)

ASK_SECONDS = 60.0
READ_SECONDS = 5.0

Resume = Callable[[Which], Awaitable[Sequence[Suspended]]]


class _Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    resumed: Sequence[Suspended] = ()
    error: str = ""


def socket_of(path: Path) -> Path:
    """Return where the process that has a database open is asked."""
    return path.with_name(path.name + ".sock")


class OperatorSocket:
    """Answers an operator for as long as a store is open. The file's lock must be held.

    Where a socket cannot be had (Windows, a path too long) nobody is answered.
    """

    def __init__(self, path: Path, resume: Resume) -> None:
        self._path = socket_of(path)
        self._resume = resume
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Begin to answer."""
        if not hasattr(asyncio, "start_unix_server"):
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(self._path.lstat().st_mode):
                    self._path.unlink()  # of a process that died: the lock is ours
            os.fchmod(listening.fileno(), 0o600)
            listening.bind(str(self._path))
            self._path.chmod(0o600)
            self._server = await asyncio.start_unix_server(self._take, sock=listening)
        except OSError as error:
            listening.close()
            logger.info("%s cannot be listened at (%s)", self._path, error)

    async def close(self) -> None:
        """Answer nobody any more. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._answering:
            task.cancel()
        await asyncio.gather(*self._answering, return_exceptions=True)
        with contextlib.suppress(OSError):
            self._path.unlink()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._answering.add(task)
        try:
            async with asyncio.timeout(READ_SECONDS):
                line = await reader.readuntil(b"\n")
            writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
            async with asyncio.timeout(READ_SECONDS):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever it was went away, or is none of ours
        finally:
            self._answering.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> _Answer:
        try:
            return _Answer(resumed=await self._resume(msgspec.json.decode(line, type=Which)))
        except msgspec.DecodeError:
            return _Answer(error="this process runs another version of Parley")
        except StoreError as error:
            return _Answer(error=str(error))


def suspended_in(connection: sqlite3.Connection, which: Which) -> list[Suspended]:
    """Return the webhooks that are suspended."""
    sql = UPKEEP_SQL["suspended"]
    pages = suspended_of(lambda values: connection.execute(sql, values).fetchall(), which)
    return [each for page in pages for each in page]


def ask_to_resume(path: Path, which: Which) -> Sequence[Suspended] | None:
    """Have the process that has a database open resume webhooks; return which.

    ``None`` when there is nobody to ask. Raises ``StoreUnavailable``.
    """
    if not hasattr(socket, "AF_UNIX"):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ASK_SECONDS)
        try:
            asking.connect(str(socket_of(path)))
        except OSError:
            return None
        try:
            asking.sendall(msgspec.json.encode(which) + b"\n")
            with asking.makefile("rb") as file:
                answer = msgspec.json.decode(file.readline(), type=_Answer)
        except (OSError, msgspec.DecodeError):
            raise StoreUnavailable(
                f"{path}: the process that has it open gave no answer; look whether it is done "
                "with parley store webhooks list"
            ) from None
    if answer.error:
        raise StoreUnavailable(answer.error)
    return answer.resumed
