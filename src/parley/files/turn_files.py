"""The files of turns and messages: stored when a turn makes them, read when a part names them."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import aclosing, suppress
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from msgspec.structs import replace

from parley.files.file_store import DOWNLOAD, FileStore
from parley.files.layout import FileRecord, FileScope
from parley.files.objects import READ_BYTES, FilesUnavailable, NoSuchFile
from parley.model.parts import Part

SIGNATURE = "signature"
"""The query parameter of a signed address."""

OCTETS = "application/octet-stream"

_FILE_CONCURRENCY = 16
"""The number of files of one message that are stored concurrently."""

_PATH = re.compile(r"/files/([0-9a-f]{48})/?")

Source = Path | bytes | bytearray | memoryview | AsyncIterable[bytes]
"""The bytes of a file: a path, the bytes themselves, or an async iterator of them."""


class StoredFile:
    """A complete file of this server."""

    def __init__(self, files: FileStore, record: FileRecord) -> None:
        self._files = files
        self._record = record
        self.size = record.size
        self.filename = record.filename
        self.media_type = record.media_type
        self.sha256 = record.sha256

    def read(self, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from ``start`` up to ``end``, in pieces of at most 256 KiB."""
        return self._files.read(self._record, start, end)


class TurnFiles:
    """The files of one agent, for its turns.

    ``keep`` is the number of seconds that the agent's tasks are kept after their end, ``None`` for
    ever.
    """

    def __init__(self, files: FileStore, agent: str, keep: float | None) -> None:
        self.files = files
        self._agent = agent
        self._keep = keep

    async def store(
        self,
        source: Source,
        *,
        filename: str = "",
        media_type: str = "",
        tenant: str = "",
        owner: str = "",
        task_id: str,
        base_url: str,
    ) -> Part:
        """Store a file of a task for as long as the task; return a part that refers to it.

        The part has a signed address below ``base_url``, the agent's address for the caller. The
        file belongs to the owner. A path is read in chunks, in a thread. Without a media type, it
        is derived from the filename. On failure nothing is stored.

        Raises ``TooManyBytes``, ``FilesUnavailable``, ``ValueError`` for an invalid filename or
        media type and without a ``base_url``, and the errors of reading the source.
        """
        if not base_url:
            raise ValueError(
                "the request, like all over gRPC, does not carry the address of this server; give "
                "it to parley.asgi or parley.serve with url="
            )
        if isinstance(source, Path) and not filename:
            filename = source.name
        media_type = media_type or mimetypes.guess_type(filename)[0] or OCTETS
        await self.files.open()
        scope = FileScope(self._agent, tenant, owner)
        record = await self.files.begin_for_task(
            scope, task_id, self._keep, filename=filename, media_type=media_type
        )
        writer = self.files.writer(record, 0)
        try:
            async with aclosing(_pieces(source)) as pieces:
                async for piece in pieces:
                    await writer.write(piece)
            await writer.finish()
        except BaseException:
            with suppress(FilesUnavailable):
                await self.files.remove(record.id)
            raise
        segment = f"/{quote(tenant, safe='')}" if tenant else ""
        base = base_url.removesuffix(segment) + segment
        return Part(
            url=address(self.files, base, record.id), filename=filename, media_type=media_type
        )

    def is_own(self, part: Part) -> bool:
        """Return whether a part has an address of this server's form. Costs no look-up."""
        return id_in(part.url) is not None

    async def open(self, part: Part, *, tenant: str = "", owner: str = "") -> StoredFile | None:
        """Return the file of this server that a part names, ``None`` for any other part.

        It is returned to the owner, and to any caller if the address has a valid signature. An
        address of the same form without a file for this caller may be another server's. Raises
        ``FilesUnavailable``.
        """
        id = id_in(part.url)
        if id is None:
            return None
        await self.files.open()
        scope: FileScope | None = FileScope(self._agent, tenant, owner)
        signature = _signature_in(part)
        if signature and self.files.allows(DOWNLOAD, id, signature):
            scope = None
        try:
            return StoredFile(self.files, await self.files.find(id, scope))
        except NoSuchFile:
            return None

    async def lent(self, part: Part, *, tenant: str = "", owner: str = "") -> Part:
        """Return a part whose file other agents of this server may read, if the owner may.

        Any other part is returned unchanged. Raises ``FilesUnavailable``.
        """
        id = id_in(part.url)
        if id is None or _signature_in(part):
            return part
        await self.files.open()
        try:
            await self.files.find(id, FileScope(self._agent, tenant, owner))
        except NoSuchFile:
            return part
        base, _, _ = (part.url or "").partition("/files/")
        return replace(part, url=address(self.files, base, id))

    async def attach(
        self, parts: Iterable[Part], *, tenant: str = "", owner: str = "", task_id: str
    ) -> None:
        """Keep the owner's files that parts name as long as a task is kept. Idempotent.

        Files of others are ignored. Raises ``FilesUnavailable``.
        """
        await self.files.open()
        scope = FileScope(self._agent, tenant, owner)
        ids = list({id: None for part in parts if (id := id_in(part.url)) is not None})
        for at in range(0, len(ids), _FILE_CONCURRENCY):
            batch = ids[at : at + _FILE_CONCURRENCY]
            await asyncio.gather(*(self._attach(id, scope, task_id) for id in batch))

    async def _attach(self, id: str, scope: FileScope, task_id: str) -> None:
        with suppress(NoSuchFile):
            record = await self.files.completed(id) or await self.files.begun(id)
            if record.scope == scope:
                await self.files.attach(record, task_id, self._keep)


def address(files: FileStore, base_url: str, id: str) -> str:
    """Return the signed address of a file, below the address of its agent and tenant."""
    return f"{base_url.rstrip('/')}/files/{id}?{SIGNATURE}={files.sign(DOWNLOAD, id)}"


def id_in(url: str | None) -> str | None:
    """Return the id of the file that an address of this form names."""
    if url is None or "/files/" not in url:
        return None
    try:
        path = urlsplit(url).path
    except ValueError:
        return None
    match = _PATH.search(path)
    return match[1] if match is not None and match.end() == len(path) else None


def _signature_in(part: Part) -> str:
    return parse_qs(urlsplit(part.url or "").query).get(SIGNATURE, [""])[0]


async def _pieces(source: Source) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a source, in small pieces."""
    if isinstance(source, Path):
        with await asyncio.to_thread(open, source, "rb", buffering=0) as file:
            while piece := await asyncio.to_thread(file.read, READ_BYTES):
                yield piece
    elif isinstance(source, bytes | bytearray | memoryview):
        yield bytes(source)
    else:
        async for each in source:
            yield each
