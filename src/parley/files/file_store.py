"""Files in an object store: uploads that resume on any replica, ranges, owners, tasks."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from parley.files import layout
from parley.files.errors import (
    DigestMismatch,
    FilesUnavailable,
    NoSuchFile,
    OffsetMismatch,
    TooManyBytes,
    TooManyUploads,
)
from parley.files.objects import PAGE, ObjectStore
from parley.files.records import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    FileLimits,
    FileRecord,
    FileScope,
    UploadStatus,
    decode,
    encode,
)
from parley.security.signed_tokens import TokenInvalid, TokenSigner

DOWNLOAD = "file"
UPLOAD = "file upload"

ATTACH_GRACE = 10 * 60 * 1000
"""How long, in ms, a file of a task is kept at least: the task may not be in the log yet."""

_MAX_HASHES = 256
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_NAME = 255
_MAX_MEDIA_TYPE = 127


class FileStore:
    """Files with owners, on any object store. Replicas may share it: it keeps no state of its own.

    ``clock`` returns ms since 1970. ``secret`` returns the key for signed addresses, which replicas
    share. ``open`` comes before all else.
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        limits: FileLimits | None = None,
        clock: Callable[[], int],
        secret: Callable[[], Awaitable[bytes]],
    ) -> None:
        self.objects = objects
        self.limits = limits or FileLimits()
        self.now = clock
        self._secret = secret
        self._opening = asyncio.Lock()
        self._signer: TokenSigner | None = None
        # The digests of uploads under way, by file and offset: so most are read once only.
        self._hashes: OrderedDict[tuple[str, int], Any] = OrderedDict()

    async def open(self) -> None:
        """Make the store ready, when the first file is used. Idempotent.

        Raises ``FilesUnavailable``, and what ``secret`` raises.
        """
        if self._signer is None:
            async with self._opening:
                if self._signer is None:
                    await self.objects.open()
                    self._signer = TokenSigner(await self._secret())

    async def close(self) -> None:
        """Close the object store. Idempotent."""
        self._signer = None
        self._hashes.clear()
        await self.objects.close()

    # -- addresses -----------------------------------------------------------------------------

    def sign(self, purpose: str, id: str, expires_at: int | None = None) -> str:
        """Return a signature that allows to download (``DOWNLOAD``) or to upload a file.

        It expires at a time in ms, by default after ``link_timeout``.
        """
        if expires_at is None:
            expires_at = self.now() + int(self.limits.link_timeout * 1000)
        return self._signing.sign(purpose, {"file": id}, expires_at // 1000)

    def allows(self, purpose: str, id: str, signature: str) -> bool:
        """Return whether a signature allows something with this file, now."""
        try:
            claims = self._signing.read(purpose, signature, self.now() // 1000)
        except TokenInvalid:
            return False
        return claims.get("file") == id

    @property
    def _signing(self) -> TokenSigner:
        if self._signer is None:
            raise FilesUnavailable("files cannot be reached now: the server is not running")
        return self._signer

    # -- uploads -------------------------------------------------------------------------------

    async def begin(
        self,
        scope: FileScope,
        *,
        filename: str = "",
        media_type: str = "",
        size: int | None = None,
        sha256: str = "",
    ) -> FileRecord:
        """Begin the upload of a file. One of size 0 is complete.

        Raises ``ValueError`` for what cannot be announced, ``TooManyBytes``, ``TooManyUploads``.
        """
        _check_announced(filename, media_type, size, sha256)
        limits, now = self.limits, self.now()
        if size is not None and size > limits.file_bytes:
            raise TooManyBytes(limits.file_bytes, "which is the most that this server takes")
        id = layout.new_file_id(now)
        record = FileRecord(
            id=id,
            scope=scope,
            filename=filename,
            media_type=media_type,
            size=-1 if size is None else size,
            limit=limits.file_bytes if size is None else size,
            sha256=sha256,
            created_at=now,
            expires_at=now + int(limits.upload_timeout * 1000),
        )
        await self.objects.put(layout.due(id, record.expires_at), b"")
        await self.objects.put(layout.manifest(id), encode(record))
        owned = layout.owned(scope, id, record.limit)
        await self.objects.put(owned, b"")
        try:
            await self._check_share(scope)
        except TooManyUploads:
            due = layout.due(id, record.expires_at)
            await self.objects.delete([owned, layout.manifest(id), due])
            raise
        if size == 0:
            return await self.writer(record, 0).finish()
        return record

    async def begin_for_task(
        self,
        scope: FileScope,
        task_id: str,
        keep: float | None,
        *,
        filename: str = "",
        media_type: str = "",
    ) -> FileRecord:
        """Begin a file that a task makes: it has it from the beginning (see ``attach``).

        Raises ``ValueError`` for a name or a media type that a file cannot have.
        """
        _check_announced(filename, media_type, None, "")
        now = self.now()
        id = layout.new_file_id(now)
        look_at = self.next_look(keep)
        record = FileRecord(
            id=id,
            scope=scope,
            filename=filename,
            media_type=media_type,
            limit=self.limits.file_bytes,
            created_at=now,
            expires_at=look_at,
        )
        mark = layout.task(id, task_id)
        await self.objects.put(layout.due(id, look_at), b"")
        await self.objects.put(layout.manifest(id), encode(record))
        await self.objects.put(mark, str(self.now()).encode())
        return record

    async def _check_share(self, scope: FileScope) -> None:
        """Raise ``TooManyUploads`` if an owner has more files without a task than one may have."""
        limits = self.limits
        held = await self.objects.list(layout.owner(scope), limits.uploads + 1)
        if len(held) > limits.uploads:
            raise TooManyUploads(
                f"{limits.uploads} files of yours are in no task yet, and this server keeps no "
                "more for one caller; send those in messages, or wait until they expire"
            )
        if sum(layout.owned_bytes(each.key) for each in held) > limits.upload_bytes:
            raise TooManyUploads(
                f"with this file, your files that are in no task yet could exceed the "
                f"{limits.upload_bytes} bytes that this server keeps for one caller; send those in "
                "messages, or announce the size of this one"
            )

    async def begun(self, id: str) -> FileRecord:
        """Return what was announced of a file. Raises ``NoSuchFile``."""
        data = await self.objects.get(layout.manifest(id)) if layout.ID.fullmatch(id) else None
        if data is None:
            raise NoSuchFile
        return decode(data)

    async def status(self, record: FileRecord) -> UploadStatus:
        """Return how far an upload is, and complete one that has all of its bytes."""
        done = await self.completed(record.id)
        if done is not None:
            return UploadStatus(done.size, True)
        writer = await self.resume(record)
        if writer.offset == record.size:
            await writer.finish()
            return UploadStatus(writer.offset, True)
        return UploadStatus(writer.offset, False)

    async def resume(self, record: FileRecord) -> UploadWriter:
        """Return what appends to an upload, where it stands."""
        last = await self.objects.list(layout.chunks(record.id), 1)
        if not last:
            return self.writer(record, 0)
        offset, index = layout.chunk_place(last[0].key)
        return self.writer(record, offset + last[0].size, index + 1)

    def writer(self, record: FileRecord, offset: int, index: int = 0) -> UploadWriter:
        """Return what appends to an upload at an offset, with its ``index``-th chunk."""
        return UploadWriter(self, record, offset, index)

    async def completed(self, id: str) -> FileRecord | None:
        """Return the record of a complete file, ``None`` if there is none."""
        data = await self.objects.get(layout.complete(id))
        return None if data is None else decode(data)

    # -- complete files ------------------------------------------------------------------------

    async def find(self, id: str, scope: FileScope | None) -> FileRecord:
        """Return a complete file of a scope, ``None`` for one whose address is signed.

        Raises ``NoSuchFile``, for one of another scope too.
        """
        record = await self.completed(id) if layout.ID.fullmatch(id) else None
        if record is None or (scope is not None and record.scope != scope):
            raise NoSuchFile
        return record

    async def read(
        self, record: FileRecord, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a complete file from ``start`` up to ``end``, in small pieces.

        Raises ``NoSuchFile`` when the file is removed meanwhile.
        """
        end = record.size if end is None else min(end, record.size)
        offset = 0
        for index, size in enumerate(record.chunks):
            if offset >= end or start >= end:
                return
            if offset + size > start:
                key = layout.chunk(record.id, offset, index)
                first, last = max(start - offset, 0), min(end - offset, size)
                async with aclosing(self.objects.read(key, first, last)) as pieces:
                    async for piece in pieces:
                        yield piece
            offset += size

    # -- tasks ---------------------------------------------------------------------------------

    async def attach(self, record: FileRecord, task_id: str, keep: float | None) -> None:
        """Keep a file as long as a task is kept. Idempotent.

        ``keep`` is how many seconds a task is kept after its end, ``None`` for ever: nothing looks
        whether the task is still there before. Raises ``NoSuchFile`` for a file that is being
        removed.
        """
        id = record.id
        mark = layout.task(id, task_id)
        look_at = self.next_look(keep)
        await self.objects.put(layout.due(id, look_at), b"")
        await self.objects.put(mark, str(self.now()).encode())
        if await self.objects.get(layout.removed(id)) is not None:
            await self.objects.delete([mark])
            raise NoSuchFile
        await self.check_kept(id, mark)
        await self.release(record)
        if record.expires_at != look_at:
            await self.objects.delete([layout.due(id, record.expires_at)])

    async def release(self, record: FileRecord) -> None:
        """Count a file that a task has no longer among its owner's uploads."""
        await self.objects.delete(await self._owned(record))

    async def _owned(self, record: FileRecord) -> list[str]:
        """Return the keys by which a file counts among its owner's uploads."""
        owner = layout.owner(record.scope)
        found = await self.objects.list(owner, 10, f"{owner}/{record.id}")
        return [each.key for each in found if each.key.startswith(f"{owner}/{record.id}.")]

    def next_look(self, seconds: float | None) -> int:
        """Return the time in ms to look at a file again: a time later, within a month."""
        wait = int(min(seconds or _LONGEST, _LONGEST) * 1000)
        if wait > layout.HOUR:
            return -(-(self.now() + wait) // layout.HOUR) * layout.HOUR
        return self.now() + max(wait, ATTACH_GRACE)

    # -- removal -------------------------------------------------------------------------------

    async def remove(self, id: str, *, unless: Callable[[Sequence[str]], bool]) -> bool:
        """Remove a file and its objects; return whether it is gone.

        ``unless`` gets the tasks that have it: it stays when that returns true. A call that
        attaches it meanwhile gets ``NoSuchFile``, or it stays. A call that writes to it meanwhile
        gets ``NoSuchFile``, and what it wrote is removed.
        """
        objects = self.objects
        data = await objects.get(layout.manifest(id))
        await objects.put(layout.removed(id), b"")
        if data is not None:
            if unless(await self.tasks(id)):
                await objects.delete([layout.removed(id)])
                return False
            # The manifest goes before the chunks: a writer of one looks for it afterwards.
            await objects.delete([*await self._owned(decode(data)), layout.manifest(id)])
        await objects.delete([layout.complete(id)])
        for folder in (layout.chunks(id), layout.tasks(id)):
            while found := await objects.list(folder):
                await objects.delete([each.key for each in found])
        await objects.delete([layout.removed(id)])
        return True

    async def check_kept(self, id: str, written: str) -> None:
        """Check that a file was not removed before an object of it was written.

        Raises ``NoSuchFile`` if it was; the object is removed then.
        """
        if await self.objects.get(layout.manifest(id)) is None:
            await self.objects.delete([written])
            raise NoSuchFile

    async def tasks(self, id: str) -> list[str]:
        """Return the ids of the tasks that have a file."""
        found: list[str] = []
        after = ""
        while page := await self.objects.list(layout.tasks(id), PAGE, after):
            found += [each.key.rpartition("/")[2] for each in page]
            after = page[-1].key
            if len(page) < PAGE:
                break
        return found

    async def has_new_task(self, id: str, tasks: Sequence[str]) -> bool:
        """Return whether one of these tasks got a file so lately that it may not be in the log."""
        for task_id in tasks:
            attached_at = await self.objects.get(layout.task(id, task_id))
            if attached_at and int(attached_at) + ATTACH_GRACE > self.now():
                return True
        return False

    # -- digests -------------------------------------------------------------------------------

    def take_hash(self, id: str, offset: int) -> Any:
        """Return the digest of the first ``offset`` bytes, ``None`` if this process has none."""
        return hashlib.sha256() if offset == 0 else self._hashes.pop((id, offset), None)

    def keep_hash(self, id: str, offset: int, digest: Any) -> None:
        """Keep the digest of the first ``offset`` bytes, for a writer that continues the upload."""
        self._hashes[id, offset] = digest
        if len(self._hashes) > _MAX_HASHES:
            self._hashes.popitem(last=False)


_LONGEST = 30 * 24 * 60 * 60


class UploadWriter:
    """Appends to one upload. ``offset`` bytes are durable, ``buffered`` ones come after them.

    Of several writers at one offset, one continues; the others get ``OffsetMismatch``.
    """

    def __init__(self, files: FileStore, record: FileRecord, offset: int, index: int) -> None:
        self.offset = offset
        self._files = files
        self._record = record
        self._index = index
        self._buffer = bytearray()
        self._hash = files.take_hash(record.id, offset)

    @property
    def buffered(self) -> int:
        """The number of bytes that are held in memory."""
        return len(self._buffer)

    async def write(self, data: bytes) -> None:
        """Append bytes. They are durable after ``flush``, or when a chunk is full.

        Raises ``TooManyBytes``; what was appended before stays.
        """
        record = self._record
        if self.offset + len(self._buffer) + len(data) > record.limit:
            announced = record.size >= 0
            raise TooManyBytes(
                record.limit,
                "as was announced" if announced else "which is the most that this server takes",
            )
        view = memoryview(data)
        while view:
            room = CHUNK_BYTES - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) == CHUNK_BYTES:
                await self.flush()

    async def flush(self) -> None:
        """Make what is buffered durable.

        Raises ``OffsetMismatch``, ``FilesUnavailable``, and ``NoSuchFile`` when the file was
        removed meanwhile.
        """
        if not self._buffer:
            return
        if self._index >= MAX_CHUNKS:
            raise TooManyBytes(
                self.offset, f"because it came in {MAX_CHUNKS} pieces; send larger ones"
            )
        data, id = self._buffer, self._record.id
        key = layout.chunk(id, self.offset, self._index)
        if not await self._files.objects.create(key, data):
            raise OffsetMismatch((await self._files.resume(self._record)).offset)
        await self._files.check_kept(id, key)
        self._buffer = bytearray()
        if self._hash is not None:
            await asyncio.to_thread(self._hash.update, data)
        self.offset += len(data)
        self._index += 1

    def leave(self) -> None:
        """Keep the digest so far, for a writer that continues the upload."""
        if self._hash is not None and self.offset:
            self._files.keep_hash(self._record.id, self.offset, self._hash)
            self._hash = None

    async def finish(self) -> FileRecord:
        """Make the file complete, and return it. Idempotent.

        Raises ``OffsetMismatch`` when bytes are missing, and ``DigestMismatch`` when they are not
        those that were announced: the file is removed then.
        """
        await self.flush()
        files, record = self._files, self._record
        if record.size >= 0 and self.offset != record.size:
            raise OffsetMismatch(self.offset)
        before = await files.completed(record.id)
        if before is not None:
            return before
        chunks = await self._chunks()
        now = files.now()
        done = replace(
            record,
            size=self.offset,
            chunks=chunks,
            complete=True,
            sha256=await self._digest(chunks),
            expires_at=now + int(files.limits.upload_timeout * 1000),
        )
        if record.sha256 not in ("", done.sha256):
            await files.remove(record.id, unless=lambda tasks: False)
            raise DigestMismatch(record.sha256, done.sha256)
        objects = files.objects
        is_owned = not await files.tasks(record.id)
        if is_owned:
            await objects.put(layout.due(done.id, done.expires_at), b"")
        key = layout.complete(done.id)
        if not await objects.create(key, encode(done)):
            return await files.find(record.id, None)
        await files.check_kept(done.id, key)
        if is_owned:
            if done.size != record.limit:
                await objects.put(layout.owned(done.scope, done.id, done.size), b"")
                await objects.delete([layout.owned(done.scope, done.id, record.limit)])
                if await files.tasks(done.id):  # one got it meanwhile
                    await files.release(done)
            if done.expires_at != record.expires_at:
                await objects.delete([layout.due(record.id, record.expires_at)])
        return done

    async def _chunks(self) -> tuple[int, ...]:
        """Return the sizes of the chunks."""
        sizes: list[int] = []
        after = ""
        while page := await self._files.objects.list(layout.chunks(self._record.id), PAGE, after):
            sizes += [each.size for each in page]
            after = page[-1].key
            if len(page) < PAGE:
                break
        sizes.reverse()
        if sum(sizes) != self.offset:
            raise OffsetMismatch(sum(sizes))
        return tuple(sizes)

    async def _digest(self, chunks: Sequence[int]) -> str:
        """Return the digest of the whole; read it again if this process did not see all of it."""
        if self._hash is None:
            self._hash = hashlib.sha256()
            whole = replace(self._record, size=self.offset, chunks=tuple(chunks))
            async for piece in self._files.read(whole):
                await asyncio.to_thread(self._hash.update, piece)
        digest: str = self._hash.hexdigest()
        return digest


def _check_announced(filename: str, media_type: str, size: int | None, sha256: str) -> None:
    """Raise ``ValueError`` that says what may be announced."""
    if len(filename.encode("utf-8", "replace")) > _MAX_NAME or not filename.isprintable():
        raise ValueError(f"filename: up to {_MAX_NAME} bytes, without control characters")
    if len(media_type) > _MAX_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(media_type):
        raise ValueError("mediaType: one such as image/png, or left out")
    if size is not None and size < 0:
        raise ValueError("size: the number of bytes, 0 or more, or left out")
    if sha256 and not _SHA256.fullmatch(sha256):
        raise ValueError("sha256: 64 hexadecimal digits in lower case, or left out")


_MEDIA_TYPE = re.compile(
    r"(?:[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+"
    r"(?:; ?[A-Za-z0-9_.-]+=(?:[A-Za-z0-9_.+-]+|\"[A-Za-z0-9 _.,+-]*\"))*)?"
)
