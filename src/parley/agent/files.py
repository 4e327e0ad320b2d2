"""The files of a turn: parts for an author to read, and large files that become references."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import asdict

from parley.agent.services import TurnServices
from parley.engine.content import to_part
from parley.engine.turn.attempt import Attempt
from parley.files.objects import FileError
from parley.files.turn_files import StoredFile
from parley.model.blocking import SyncProxy, blocking, wrapping
from parley.model.parts import MAX_READ, Part
from parley.store.events import Scope

if TYPE_CHECKING:
    from parley.client.files.stream import Chunks, FileFacts, FileStream
    from parley.client.sync import SyncFileStream

    Open = Callable[[Part, int | None], FileStream]

T = TypeVar("T")


class FileAccess:
    """Opens the files that parts name, for the turns of one caller.

    Bytes in a message need no request. A file of this server is read from its store, if the caller
    owns it or its address is signed. Any other address is fetched through the egress guard.
    """

    def __init__(self, services: TurnServices, scope: Scope) -> None:
        self._services = services
        self._scope = scope

    def open(self, part: Part, limit: int | None = None) -> FileStream:
        """Return the bytes of a file part as a stream. Raises ``ValueError`` for any other part."""
        from parley.client.files.stream import open_part

        return open_part(part, lambda url, facts: self._chunks(part, url, facts, limit))

    async def _chunks(self, part: Part, url: str, facts: FileFacts, limit: int | None) -> Chunks:
        from parley.client.errors import ClientError, FileLimitExceeded

        services = self._services
        limit = services.remote_files.max_bytes if limit is None else limit
        try:
            stored = await self._stored(part)
            if stored is not None:
                facts.size = stored.size
                facts.filename = facts.filename or stored.filename
                facts.media_type = facts.media_type or stored.media_type
                if stored.size > limit:
                    raise FileLimitExceeded(
                        f"the file has {stored.size:,} bytes, the limit is {limit:,}"
                    )
                async for chunk in stored.read():
                    yield chunk
                return
        except FileError as error:
            raise ClientError(str(error)) from error
        remote = services.remote_files.fetch(url, facts, limit=limit, caller=self._scope.owner)
        async with aclosing(remote):
            async for chunk in remote:
                yield chunk

    async def _stored(self, part: Part) -> StoredFile | None:
        """Return the file of this server that a part names, ``None`` for any other part."""
        files, scope = self._services.files, self._scope
        if files is None or not files.is_own(part):
            return None
        return await files.open(part, tenant=scope.tenant, owner=scope.owner)


class _AccessedPart(Part, frozen=True, kw_only=True, dict=True):
    """A part that can be opened. It compares and serializes like the original part."""

    @property
    def _access(self) -> Any:
        try:
            return self.__dict__["access"]
        except KeyError:
            raise RuntimeError(
                "this file is a copy; read one of turn.files, or turn.file(part)"
            ) from None

    def _part(self) -> Part:
        return Part(**asdict(self))

    def __eq__(self, other: object) -> bool:
        return self._part() == (other._part() if isinstance(other, _AccessedPart) else other)

    def __hash__(self) -> int:
        return hash(self._part())

    def __copy__(self) -> Part:
        return self._part()

    def __reduce__(self) -> tuple[Any, ...]:
        return _part_of, (asdict(self),)


def _part_of(fields: dict[str, Any]) -> Part:
    return Part(**fields)


class TurnFile(_AccessedPart, frozen=True, kw_only=True, dict=True):
    """A file part of a message, with methods to read it. Compares and serializes like the part.

    Reading raises subclasses of ``ClientError``: ``AddressNotAllowed`` for an address that is not
    public and not allowed, ``FileLimitExceeded``, ``FileMismatch``, ``Unreachable`` and others.
    """

    @classmethod
    def of(cls, part: Part, access: Open) -> Self:
        """Return the part, opened by ``access``. Raises ``ValueError`` if it is not a file."""
        if not part.is_file:
            access(part, None)  # raises if the part is not a file
        file = cls(**asdict(part))
        file.__dict__["access"] = access
        return file

    def open(self, *, limit: int | None = None) -> FileStream:
        """Return the bytes as a stream: ``async with file.open() as stream: async for ...``.

        More bytes than ``limit`` (5 GiB by default, as for the server's own files) raise
        ``FileLimitExceeded``.
        """
        stream: FileStream = self._access(self._part(), limit)
        return stream

    async def read(self, *, limit: int = MAX_READ) -> bytes:
        """Return all bytes, up to ``limit`` (64 MiB). Raises ``FileLimitExceeded`` for more."""
        return await self.open(limit=limit).read(limit=limit)

    async def save(self, path: str | Path, *, limit: int | None = None) -> Path:
        """Write the bytes to a file, and return its path.

        The file appears when it is complete. In a folder it gets the part's file name, made safe.
        """
        return await self.open(limit=limit).save(path)


def _stream_of(file: BlockingFile, stream: FileStream) -> SyncFileStream:
    from parley.client.sync import SyncFileStream

    return SyncFileStream(file._turn, stream)


class BlockingFile(_AccessedPart, frozen=True, kw_only=True, dict=True):
    """A file part of a message, for a function that runs in a thread: see ``TurnFile``."""

    @classmethod
    def of_turn(cls, file: TurnFile, turn: SyncProxy[Any]) -> Self:
        """Return the part, read by the loop of a turn."""
        blocking = cls(**asdict(file))
        blocking.__dict__["access"] = (file, turn)
        return blocking

    @property
    def _target(self) -> TurnFile:
        file: TurnFile = self._access[0]
        return file

    @property
    def _turn(self) -> SyncProxy[Any]:
        turn: SyncProxy[Any] = self._access[1]
        return turn

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._turn._run(coroutine)

    open = wrapping(TurnFile.open, _stream_of)
    read = blocking(TurnFile.read)
    save = blocking(TurnFile.save)


MAX_INLINE_BYTES = 32 * 1024 * 1024
"""The maximum size of a file in an answer: clients read answers of up to 64 MiB, in base64."""


def base_url(services: TurnServices, attempt: Attempt) -> str:
    """Return the agent's public address, without a trailing slash; empty if it is not known."""
    request, address = attempt.request, services.address
    return request.base_url if address is None else address(request.tenant)


async def referred(
    services: TurnServices,
    attempt: Attempt,
    content: object,
    *,
    media_type: str = "",
    filename: str = "",
) -> object:
    """Return content unchanged, or the part for a file: by reference if it is large.

    Only bytes and paths are files; a ready part is returned unchanged. A path is read off the event
    loop. The file is kept as long as its task.

    Raises ``ValueError`` for a file that is too large for an answer and cannot be stored,
    ``OSError`` for a path that cannot be read, and ``FileError``.
    """
    if isinstance(content, Path):
        size = (await asyncio.to_thread(content.stat)).st_size
    elif isinstance(content, bytes | bytearray | memoryview):
        size = memoryview(content).nbytes
    else:
        return content
    url = base_url(services, attempt)
    largest = min(services.inline_bytes, MAX_INLINE_BYTES)
    if services.files is not None and url and size > largest:
        scope = attempt.runner.scope
        return await services.files.store(
            content,
            filename=filename,
            media_type=media_type,
            tenant=scope.tenant,
            owner=scope.owner,
            task_id=attempt.runner.task_id,
            base_url=url,
        )
    if size > MAX_INLINE_BYTES:
        name = filename or (content.name if isinstance(content, Path) else "the file")
        remedy = (
            "give the server a storage for files (parley.asgi(..., files=...))"
            if services.files is None
            else "give the server its public address (parley.asgi(..., url=...)), which this "
            "request did not carry"
        )
        raise ValueError(
            f"{name[:100]} has {size:,} bytes, and an answer carries at most {MAX_INLINE_BYTES:,}: "
            f"{remedy}, or return Part(url=...)"
        )
    if isinstance(content, Path):
        return await asyncio.to_thread(to_part, content, media_type=media_type, filename=filename)
    return content
