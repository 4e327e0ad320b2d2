"""The socket through which an operator asks the process that has a SQLite file open.

Only that process writes to the file (see ``SqliteFile``), so ``parley store`` asks it to. The
socket stands beside the file and only the file's owner can open it: a line of JSON each way.
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
from typing import Literal

import msgspec

from parley.security.api_keys import ApiKeyRecord
from parley.store.audit.trail import AuditEntry, AuditLine, AuditPrune
from parley.store.protocols.errors import StoreError, StoreUnavailable
from parley.store.protocols.tables import MAX_EVENT_BYTES, EventCompleted, TooManyApiKeys
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter
from parley.store.sqlite.file import ADMIN_SQL
from parley.store.tables import suspended_of

logger = logging.getLogger(__name__)

ASK_SECONDS = 60.0
READ_SECONDS = 5.0

_COMPLETES = b'{"completes":'
_KEYS = b'{"api_keys":'
_AUDIT = b'{"audit":'

Resume = Callable[[WebhookFilter], Awaitable[Sequence[SuspendedWebhook]]]
Complete = Callable[[str, str, bytes], Awaitable[bool]]

KeysAsk = Callable[["KeysQuestion"], Awaitable["KeysAnswer"]]

LONGEST_LINE = 2 * MAX_EVENT_BYTES
"""The longest line of an operator: the value of an event as base64, and its names."""


class EventCompletion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks the process that has a store open to complete an event."""

    completes: str
    agent: str
    value: bytes


class KeysQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Asks the process that has a store open about API keys: ``secret``, ``add`` or ``end``."""

    api_keys: Literal["secret", "add", "end"]
    id: str = ""
    record: ApiKeyRecord | None = None
    expires_at: int | None = None
    revoked_at: int | None = None


class KeysAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The secret of ids, or the key as it is now."""

    secret: bytes = b""
    record: ApiKeyRecord | None = None


class AuditQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks the process that has a store open to append to its audit, or to prune it."""

    audit: Sequence[AuditEntry]
    prune: AuditPrune | None = None


class AuditAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The appended lines, or how many were removed."""

    lines: Sequence[AuditLine] = ()
    removed: int = 0


AuditAsk = Callable[[AuditQuestion], Awaitable[AuditAnswer]]


class _Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    resumed: Sequence[SuspendedWebhook] = ()
    error: str = ""
    is_completed: bool = False
    has_other_value: bool = False
    keys: KeysAnswer | None = None
    audit: AuditAnswer | None = None
    is_full: bool = False


def socket_of(path: Path) -> Path:
    """Return the path of the socket of the process that has a database open."""
    return path.with_name(path.name + ".sock")


class OperatorSocket:
    """Answers operators while a store is open. The file's lock must be held.

    Where there can be no socket (Windows, a path too long), it does nothing.
    """

    def __init__(
        self, path: Path, resume: Resume, complete: Complete, keys: KeysAsk, audit: AuditAsk
    ) -> None:
        self._path = socket_of(path)
        self._resume = resume
        self._complete = complete
        self._keys = keys
        self._audit = audit
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
                    self._path.unlink()  # left by a process that died: we hold the lock
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
            if line.startswith(_COMPLETES):
                event = msgspec.json.decode(line, type=EventCompletion)
                completed = await self._complete(event.agent, event.completes, event.value)
                return _Answer(is_completed=completed)
            if line.startswith(_KEYS):
                question = msgspec.json.decode(line, type=KeysQuestion)
                return _Answer(keys=await self._keys(question))
            if line.startswith(_AUDIT):
                asked = msgspec.json.decode(line, type=AuditQuestion)
                return _Answer(audit=await self._audit(asked))
            return _Answer(
                resumed=await self._resume(msgspec.json.decode(line, type=WebhookFilter))
            )
        except EventCompleted as error:
            return _Answer(error=str(error), has_other_value=True)
        except TooManyApiKeys as error:
            return _Answer(error=str(error), is_full=True)
        except msgspec.DecodeError:
            return _Answer(error="this process runs another version of Parley")
        except (StoreError, ValueError) as error:
            return _Answer(error=str(error))


def suspended_in(
    connection: sqlite3.Connection, which: WebhookFilter, query: str = "suspended"
) -> list[SuspendedWebhook]:
    """Return the webhooks that are suspended, or that another query finds."""
    sql = ADMIN_SQL[query]
    pages = suspended_of(lambda values: connection.execute(sql, values).fetchall(), which)
    return [each for page in pages for each in page]


def ask_to_resume(path: Path, which: WebhookFilter) -> Sequence[SuspendedWebhook] | None:
    """Ask the process that has a database open to resume webhooks; return the resumed ones.

    Return ``None`` when no process listens. Raises ``StoreUnavailable``.
    """
    answer = _ask(path, which, "look whether it is done with parley store webhooks list")
    if answer is not None and answer.error:
        raise StoreUnavailable(answer.error)
    return None if answer is None else answer.resumed


def ask_to_complete(path: Path, agent: str, key: str, value: bytes) -> bool | None:
    """Ask the process that has a database open to complete an event; return whether that did it.

    Return ``None`` when no process listens. Raises ``EventCompleted``, ``StoreUnavailable``.
    """
    answer = _ask(path, EventCompletion(key, agent, value), "do it again, which changes nothing")
    if answer is None:
        return None
    if answer.has_other_value:
        raise EventCompleted(agent, key)
    if answer.error:
        raise StoreUnavailable(answer.error)
    return answer.is_completed


def ask_about_keys(path: Path, question: KeysQuestion) -> KeysAnswer | None:
    """Ask the process that has a database open about API keys.

    Return ``None`` when no process listens. Raises ``TooManyApiKeys``, ``StoreUnavailable``.
    """
    answer = _ask(path, question, "look what it did with parley keys list")
    if answer is None:
        return None
    if answer.is_full:
        raise TooManyApiKeys
    if answer.keys is None:
        raise StoreUnavailable(f"{path}: {answer.error or 'it is open in another version'}")
    return answer.keys


def ask_about_audit(path: Path, question: AuditQuestion) -> AuditAnswer | None:
    """Ask the process that has a database open to change its audit.

    Return ``None`` when no process listens. Raises ``StoreUnavailable``.
    """
    answer = _ask(path, question, "look what it did with parley audit")
    if answer is None:
        return None
    if answer.audit is None:
        raise StoreUnavailable(f"{path}: {answer.error or 'it is open in another version'}")
    return answer.audit


def _ask(path: Path, question: msgspec.Struct, remedy: str) -> _Answer | None:
    if not hasattr(socket, "AF_UNIX"):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(ASK_SECONDS)
        try:
            client.connect(str(socket_of(path)))
        except OSError:
            return None
        try:
            client.sendall(msgspec.json.encode(question) + b"\n")
            with client.makefile("rb") as file:
                return msgspec.json.decode(file.readline(), type=_Answer)
        except (OSError, msgspec.DecodeError):
            raise StoreUnavailable(
                f"{path}: the process that has it open gave no answer; {remedy}"
            ) from None
