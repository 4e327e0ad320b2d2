"""The socket through which an operator asks the process that has a SQLite file open.

Only that process writes to the file (see ``SqliteFile``), so ``parley store`` asks it to. The
socket is next to the file and only the file's owner can open it: a line of JSON each way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sqlite3
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from parley.security.api_keys import ApiKeyRecord
from parley.store.audit.trail import AuditEntry, AuditLine, AuditPrune
from parley.store.protocols.errors import StoreError, StoreUnavailable
from parley.store.protocols.tables import (
    MAX_EVENT_BYTES,
    DuplicateApiKey,
    EventCompleted,
    TooManyApiKeys,
)
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter
from parley.store.sqlite.file import ADMIN_SQL
from parley.store.webhooks import suspended_of

logger = logging.getLogger(__name__)

ASK_SECONDS = 60.0
OTHER_VERSION = "this process runs another version of Parley"
READ_SECONDS = 5.0

LONGEST_LINE = 2 * MAX_EVENT_BYTES
"""The longest line of an operator: the value of an event as base64, and its names."""


class Call(NamedTuple):
    """A call of the store: the types of its arguments and its result, as JSON.

    ``remedy`` is the advice for a lost answer.
    """

    arguments: Any
    result: Any
    remedy: str


_KEYS, _AUDIT = "look what it did with parley keys list", "look what it did with parley audit"

CALLS = {
    "secret": Call(tuple[str], bytes, _KEYS),
    "add_api_key": Call(tuple[ApiKeyRecord], None, _KEYS),
    "end_api_key": Call(tuple[str, int | None, int | None], ApiKeyRecord | None, _KEYS),
    "append_audit": Call(tuple[list[AuditEntry]], list[AuditLine], _AUDIT),
    "prune_audit": Call(tuple[AuditPrune], int, _AUDIT),
    "complete_event": Call(tuple[str, str, bytes], bool, "do it again, which changes nothing"),
    "resume": Call(
        tuple[WebhookFilter],
        list[SuspendedWebhook],
        "look whether it is done with parley store webhooks list",
    ),
}

_ERRORS: Mapping[str, Callable[..., StoreError]] = {
    "EventCompleted": lambda agent, key, _: EventCompleted(agent, key),
    "TooManyApiKeys": lambda _: TooManyApiKeys(),
    "DuplicateApiKey": lambda record: DuplicateApiKey(record.id),
}
"""Errors that are passed to the caller unchanged, about the arguments of the call."""


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    call: str
    arguments: msgspec.Raw


class _Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: str = ""
    kind: str = ""


def socket_of(path: Path) -> Path:
    """Return the path of the socket of the process that has a database open."""
    return path.with_name(path.name + ".sock")


class OperatorSocket:
    """Answers operators while a store is open: ``functions`` by ``CALLS``.

    The file's lock must be held.

    Where there can be no socket (Windows, a path too long), it does nothing.
    """

    def __init__(self, path: Path, functions: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        self._path = socket_of(path)
        self._functions = functions
        self._server: asyncio.Server | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Start listening."""
        if not hasattr(asyncio, "start_unix_server"):
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISSOCK(self._path.lstat().st_mode):
                    self._path.unlink()  # left by a dead process: this one holds the lock
            os.fchmod(listening.fileno(), 0o600)
            listening.bind(str(self._path))
            self._path.chmod(0o600)
            self._server = await asyncio.start_unix_server(
                self._serve, sock=listening, limit=LONGEST_LINE
            )
        except OSError as error:
            listening.close()
            logger.info("%s cannot be listened at (%s)", self._path, error)

    async def close(self) -> None:
        """Stop listening, and cancel the open sessions. Idempotent."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in self._sessions:
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        with contextlib.suppress(OSError):
            self._path.unlink()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._sessions.add(task)
        try:
            async with asyncio.timeout(READ_SECONDS):
                line = await reader.readuntil(b"\n")
            writer.write(msgspec.json.encode(await self._answer(line)) + b"\n")
            async with asyncio.timeout(READ_SECONDS):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the peer went away, or is no operator
        finally:
            self._sessions.discard(task)
            writer.close()

    async def _answer(self, line: bytes) -> _Answer:
        try:
            question = msgspec.json.decode(line, type=_Question)
            if (call := CALLS.get(question.call)) is None:
                return _Answer(error=OTHER_VERSION)
            arguments = msgspec.json.decode(question.arguments, type=call.arguments)
            result = await self._functions[question.call](*arguments)
            return _Answer(msgspec.Raw(msgspec.json.encode(result)))
        except msgspec.DecodeError:
            return _Answer(error=OTHER_VERSION)
        except (StoreError, ValueError) as error:
            return _Answer(error=str(error), kind=type(error).__name__)


def suspended_in(connection: sqlite3.Connection, which: WebhookFilter) -> list[SuspendedWebhook]:
    """Return the webhooks that are suspended."""
    sql = ADMIN_SQL["suspended"]
    pages = suspended_of(lambda values: connection.execute(sql, values).fetchall(), which)
    return [each for page in pages for each in page]


def ask(path: Path, name: str, arguments: Sequence[Any]) -> Sequence[Any]:
    """Ask the process that has a database open for one of ``CALLS``.

    Return a sequence of its result, which is empty when no process listens. Raises ``StoreError``.
    """
    if not hasattr(socket, "AF_UNIX"):
        return ()
    call = CALLS[name]
    question = _Question(name, msgspec.Raw(msgspec.json.encode(arguments)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ASK_SECONDS)
        try:
            client.connect(str(socket_of(path)))
        except OSError:
            return ()
        try:
            client.sendall(msgspec.json.encode(question) + b"\n")
            with client.makefile("rb") as file:
                answer = msgspec.json.decode(file.readline(), type=_Answer)
            if not answer.error:
                return (msgspec.json.decode(answer.result, type=call.result),)
        except (OSError, msgspec.DecodeError):
            raise StoreUnavailable(
                f"{path}: the process that has it open gave no answer; {call.remedy}"
            ) from None
    if answer.kind in _ERRORS:
        raise _ERRORS[answer.kind](*arguments)
    raise StoreUnavailable(f"{path}: {answer.error}")
