"""Files in an object store: uploads that resume on any replica, ranges, owners, tasks, sweeps."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from parley.files import layout
from parley.files.layout import (
    CHUNK_BYTES,
    MAX_CHUNKS,
    FileLimits,
    FileRecord,
    FileScope,
    UploadStatus,
    decode,
    encode,
)
from parley.files.objects import (
    PAGE,
    DigestMismatch,
    FilesUnavailable,
    NoSuchFile,
    ObjectEntry,
    ObjectStore,
    OffsetMismatch,
    TooManyBytes,
    TooManyUploads,
)
from parley.model.bounded import Bounded
from parley.security.sealing import TokenInvalid, TokenSigner

DOWNLOAD = "file"
UPLOAD = "file upload"

ATTACH_GRACE = 10 * 60 * 1000
"""The minimum time, in ms, that a file of a task is kept: the task may not be in the log yet."""

SWEPT_FILES = 200
"""The number of files that one step of a sweep checks."""

MINUTE = 60_000

log = logging.getLogger("parley.files")

Ended = Callable[[Sequence[str]], Awaitable[Mapping[str, bool]]]
"""Returns whether tasks have ended, by id. Removed tasks are left out."""

_MOST = "which is the most that this server takes"
_LONGEST = 30 * 24 * 60 * 60
_MAX_HASHES = 256
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_NAME = 255
_MAX_MEDIA_TYPE = 127
_MEDIA_TYPE = re.compile(
    r"(?:[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+"
    r"(?:; ?[A-Za-z0-9_.-]+=(?:[A-Za-z0-9_.+-]+|\"[A-Za-z0-9 _.,+-]*\"))*)?"
)


class FileStore:
    """Files with owners, on any object store. Stateless, so replicas may share the object store.

    ``clock`` returns ms since 1970. ``secret`` returns the key for signed addresses, which replicas
    share. ``open`` must be called first.
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
        # The digests of uploads in progress, by file and offset, so that most are read only once.
        self.hashes: Bounded[tuple[str, int], Any] = Bounded(_MAX_HASHES)

    async def open(self) -> None:
        """Prepare the store, when the first file is used. Idempotent.

        Raises ``FilesUnavailable``, and errors of ``secret``.
        """
        if self._signer is None:
            async with self._opening:
                if self._signer is None:
                    await self.objects.open()
                    self._signer = TokenSigner(await self._secret())

    async def close(self) -> None:
        """Close the object store. Idempotent."""
        self._signer = None
        self.hashes.clear()
        await self.objects.close()

    # -- addresses -----------------------------------------------------------------------------

    def sign(self, purpose: str, id: str, expires_at: int | None = None) -> str:
        """Return a signature that permits downloading (``DOWNLOAD``) or uploading a file.

        It expires at a time in ms, by default after ``link_timeout``.
        """
        if expires_at is None:
            expires_at = self.now() + int(self.limits.link_timeout * 1000)
        return self._signing.sign(purpose, {"file": id}, expires_at // 1000)

    def allows(self, purpose: str, id: str, signature: str) -> bool:
        """Return whether a signature now permits this use of the file."""
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
        """Begin the upload of a file. A file of size 0 is complete.

        Raises ``ValueError`` for an impossible announcement, ``TooManyBytes``, ``TooManyUploads``.
        """
        _check_announced(filename, media_type, size, sha256)
        limits = self.limits
        if size is not None and size > limits.file_bytes:
            raise TooManyBytes(limits.file_bytes, _MOST)
        record = await self._begin(
            scope=scope,
            filename=filename,
            media_type=media_type,
            size=-1 if size is None else size,
            limit=limits.file_bytes if size is None else size,
            sha256=sha256,
            expires_at=self.now() + int(limits.upload_timeout * 1000),
        )
        id = record.id
        owned = layout.owned(scope, id, record.limit)
        await self.objects.put(owned, b"")
        if refusal := await self._share_exceeded(scope):
            due = layout.due(id, record.expires_at)
            await self.objects.delete([owned, layout.manifest(id), due])
            raise TooManyUploads(refusal)
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
        """Begin a file of a task, to which it is attached from the beginning (see ``attach``).

        Raises ``ValueError`` for an invalid name or media type.
        """
        _check_announced(filename, media_type, None, "")
        record = await self._begin(
            scope=scope,
            filename=filename,
            media_type=media_type,
            limit=self.limits.file_bytes,
            expires_at=self.next_look(keep),
        )
        mark = layout.task(record.id, task_id)
        await self.objects.put(mark, str(self.now()).encode())
        return record

    async def _begin(self, **announced: Any) -> FileRecord:
        now = self.now()
        record = FileRecord(id=layout.new_file_id(now), created_at=now, **announced)
        await self.look_at(record.id, record.expires_at)
        await self.objects.put(layout.manifest(record.id), encode(record))
        return record

    async def _share_exceeded(self, scope: FileScope) -> str:
        """Return the reason why an owner may have no more files without a task, empty if it may."""
        limits = self.limits
        held = await self.objects.list(layout.owner(scope), limits.uploads + 1)
        if len(held) > limits.uploads:
            return (
                f"{limits.uploads} files of yours belong to no task yet, and this server keeps no "
                "more for one caller; send more of them in messages, or wait until these expire"
            )
        if sum(layout.owned_bytes(each.key) for each in held) > limits.upload_bytes:
            return (
                f"with this file, your files that belong to no task yet could exceed the "
                f"{limits.upload_bytes} bytes that this server keeps for one caller; send the "
                "files in messages, or announce the size of this one"
            )
        return ""

    async def begun(self, id: str) -> FileRecord:
        """Return the announcement of a file. Raises ``NoSuchFile``."""
        data = await self.objects.get(layout.manifest(id)) if layout.ID.fullmatch(id) else None
        if data is None:
            raise NoSuchFile
        return decode(data)

    async def status(self, record: FileRecord) -> UploadStatus:
        """Return the progress of an upload; complete it if all bytes have arrived."""
        done = await self.completed(record.id)
        if done is not None:
            return UploadStatus(done.size, True)
        writer = await self.resume(record)
        is_complete = writer.offset == record.size
        if is_complete:
            await writer.finish()
        return UploadStatus(writer.offset, is_complete)

    async def resume(self, record: FileRecord) -> UploadWriter:
        """Return a writer that continues an upload."""
        last = await self.objects.list(layout.chunks(record.id), 1)
        if not last:
            return self.writer(record, 0)
        offset, index = layout.chunk_place(last[0].key)
        return self.writer(record, offset + last[0].size, index + 1)

    def writer(self, record: FileRecord, offset: int, index: int = 0) -> UploadWriter:
        """Return a writer of an upload, at an offset and its ``index``-th chunk."""
        return UploadWriter(self, record, offset, index)

    async def completed(self, id: str) -> FileRecord | None:
        """Return the record of a complete file, ``None`` if there is none."""
        data = await self.objects.get(layout.complete(id))
        return None if data is None else decode(data)

    # -- complete files ------------------------------------------------------------------------

    async def find(self, id: str, scope: FileScope | None) -> FileRecord:
        """Return a complete file of a scope; ``None`` is any scope, for a signed address.

        Raises ``NoSuchFile``, for a file of another scope too.
        """
        record = await self.completed(id) if layout.ID.fullmatch(id) else None
        if record is None or (scope is not None and record.scope != scope):
            raise NoSuchFile
        return record

    async def read(
        self, record: FileRecord, start: int = 0, end: int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a complete file from ``start`` up to ``end``, in small chunks.

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

        ``keep`` is the number of seconds that a task is kept after its end, ``None`` for ever: the
        existence of the task is not checked earlier. Raises ``NoSuchFile`` for a file that is being
        removed.
        """
        id = record.id
        mark = layout.task(id, task_id)
        look_at = self.next_look(keep)
        await self.look_at(id, look_at)
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
        """Return the keys of a file among its owner's uploads."""
        owner = layout.owner(record.scope)
        found = await self.objects.list(owner, 10, f"{owner}/{record.id}")
        return [each.key for each in found if each.key.startswith(f"{owner}/{record.id}.")]

    async def look_at(self, id: str, at: int) -> None:
        """Have a file looked at at a time in ms."""
        await self.objects.put(layout.due(id, at), b"")

    def next_look(self, seconds: float | None) -> int:
        """Return the time in ms of the next check of a file, this many seconds later, within a
        month."""
        wait = int(min(seconds or _LONGEST, _LONGEST) * 1000)
        if wait > layout.HOUR:
            return -(-(self.now() + wait) // layout.HOUR) * layout.HOUR
        return self.now() + max(wait, ATTACH_GRACE)

    # -- removal -------------------------------------------------------------------------------

    async def remove(
        self, id: str, *, unless: Callable[[Sequence[str]], bool] = lambda tasks: False
    ) -> bool:
        """Remove a file and its objects; return whether it is gone.

        ``unless`` gets the file's tasks: the file stays if that returns true. A concurrent call
        that attaches it gets ``NoSuchFile``, or the file stays. A concurrent call that writes to it
        gets ``NoSuchFile``, and its object is removed.
        """
        objects = self.objects
        data = await objects.get(layout.manifest(id))
        await objects.put(layout.removed(id), b"")
        if data is not None:
            if unless(await self.tasks(id)):
                await objects.delete([layout.removed(id)])
                return False
            # The manifest is removed before the chunks: a writer of a chunk checks for it
            # afterwards.
            await objects.delete([*await self._owned(decode(data)), layout.manifest(id)])
        await objects.delete([layout.complete(id)])
        for folder in (layout.chunks(id), layout.tasks(id)):
            while found := await objects.list(folder):
                await objects.delete([each.key for each in found])
        await objects.delete([layout.removed(id)])
        return True

    async def check_kept(self, id: str, written: str) -> None:
        """Check that a file was not removed before an object of it was written.

        Raises ``NoSuchFile`` if it was; then the object is removed.
        """
        if await self.objects.get(layout.manifest(id)) is None:
            await self.objects.delete([written])
            raise NoSuchFile

    async def tasks(self, id: str) -> list[str]:
        """Return the ids of the tasks that have a file."""
        return [each.key.rpartition("/")[2] for each in await self.listed(layout.tasks(id))]

    async def listed(self, folder: str) -> list[ObjectEntry]:
        """Return all objects below a folder, in the order of their keys."""
        found: list[ObjectEntry] = []
        while page := await self.objects.list(folder, PAGE, found[-1].key if found else ""):
            found += page
            if len(page) < PAGE:
                break
        return found

    async def has_new_task(self, id: str, tasks: Sequence[str]) -> bool:
        """Return whether a task got a file so recently that the task may not be in the log."""
        for task_id in tasks:
            attached_at = await self.objects.get(layout.task(id, task_id))
            if attached_at and int(attached_at) + ATTACH_GRACE > self.now():
                return True
        return False


class UploadWriter:
    """Appends to one upload. ``offset`` bytes are durable, ``buffered`` bytes come after them.

    If several writers write at one offset, one continues; the others get ``OffsetMismatch``.
    """

    def __init__(self, files: FileStore, record: FileRecord, offset: int, index: int) -> None:
        self.offset = offset
        self._files = files
        self._record = record
        self._index = index
        self._buffer = bytearray()
        self._hash = files.hashes.pop((record.id, offset), None) if offset else hashlib.sha256()

    @property
    def buffered(self) -> int:
        """The number of bytes that are held in memory."""
        return len(self._buffer)

    async def write(self, data: bytes) -> None:
        """Append bytes. They are durable after ``flush``, or when a chunk is full.

        Raises ``TooManyBytes``; earlier bytes stay.
        """
        record = self._record
        if self.offset + len(self._buffer) + len(data) > record.limit:
            why = _MOST if record.size < 0 else "as was announced"
            raise TooManyBytes(record.limit, why)
        view = memoryview(data)
        while view:
            room = CHUNK_BYTES - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) == CHUNK_BYTES:
                await self.flush()

    async def flush(self) -> None:
        """Make the buffered bytes durable.

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
            self._files.hashes[self._record.id, self.offset] = self._hash
            self._hash = None

    async def finish(self) -> FileRecord:
        """Make the file complete, and return it. Idempotent.

        Raises ``OffsetMismatch`` when bytes are missing, and ``DigestMismatch`` when they differ
        from the announced ones: then the file is removed.
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
            await files.remove(record.id)
            raise DigestMismatch(record.sha256, done.sha256)
        objects = files.objects
        is_owned = not await files.tasks(record.id)
        if is_owned:
            await files.look_at(done.id, done.expires_at)
        key = layout.complete(done.id)
        if not await objects.create(key, encode(done)):
            return await files.find(record.id, None)
        await files.check_kept(done.id, key)
        if is_owned:
            if done.size != record.limit:
                await objects.put(layout.owned(done.scope, done.id, done.size), b"")
                await objects.delete([layout.owned(done.scope, done.id, record.limit)])
                if await files.tasks(done.id):  # attached to a task meanwhile
                    await files.release(done)
            if done.expires_at != record.expires_at:
                await objects.delete([layout.due(record.id, record.expires_at)])
        return done

    async def _chunks(self) -> tuple[int, ...]:
        """Return the sizes of the chunks."""
        found = await self._files.listed(layout.chunks(self._record.id))
        sizes = [each.size for each in reversed(found)]
        if sum(sizes) != self.offset:
            raise OffsetMismatch(sum(sizes))
        return tuple(sizes)

    async def _digest(self, chunks: Sequence[int]) -> str:
        """Return the digest of the file; read it again if this process did not see all of it."""
        if self._hash is None:
            self._hash = hashlib.sha256()
            whole = replace(self._record, size=self.offset, chunks=tuple(chunks))
            async for piece in self._files.read(whole):
                await asyncio.to_thread(self._hash.update, piece)
        return str(self._hash.hexdigest())


def _check_announced(filename: str, media_type: str, size: int | None, sha256: str) -> None:
    """Raise ``ValueError`` with the valid form of an invalid announcement."""
    if len(filename.encode("utf-8", "replace")) > _MAX_NAME or not filename.isprintable():
        raise ValueError(f"filename: up to {_MAX_NAME} bytes, without control characters")
    if len(media_type) > _MAX_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(media_type):
        raise ValueError("mediaType: one such as image/png, or left out")
    if size is not None and size < 0:
        raise ValueError("size: the number of bytes, 0 or more, or left out")
    if sha256 and not _SHA256.fullmatch(sha256):
        raise ValueError("sha256: 64 hexadecimal digits in lower case, or left out")


class FileSweeper:
    """Checks the due files, and removes them if they have expired or their tasks are gone.

    ``ended`` queries the task store. ``keep`` is the number of seconds that an agent's tasks are
    kept after their end, ``None`` for ever. A sweep costs no more than the due files; a file is due
    when its task could have been removed, and rarely again while it was not.
    """

    def __init__(self, files: FileStore, ended: Ended, keep: Callable[[str], float | None]) -> None:
        self._files = files
        self._ended = ended
        self._keep = keep

    async def sweep(self) -> int:
        """Check all due files; return the number of removed ones.

        Only one of the replicas that share the files sweeps at a time. Raises ``FilesUnavailable``,
        and errors of the task store.
        """
        if not await self._is_ours():
            return 0
        removed = 0
        while due := await self._due():
            removed += await self._look(due)
            if len(due) < SWEPT_FILES:
                break
        return removed

    async def _is_ours(self) -> bool:
        """Return whether this replica does the sweep of this minute."""
        objects = self._files.objects
        if not objects.is_shared:
            return True
        minute = f"sweeps/{self._files.now() // MINUTE:012x}"
        if not await objects.create(minute, b""):
            return False
        found = await objects.list("sweeps")
        await objects.delete([each.key for each in found if each.key < minute])
        return True

    async def _due(self) -> list[ObjectEntry]:
        now = self._files.now()
        found = await self._files.objects.list("due", SWEPT_FILES)
        return [each for each in found if layout.due_place(each.key)[0] <= now]

    async def _look(self, due: Sequence[ObjectEntry]) -> int:
        files = self._files
        markers: dict[str, list[str]] = {}
        for each in due:
            markers.setdefault(layout.due_place(each.key)[1], []).append(each.key)
        tasks = {id: await files.tasks(id) for id in markers}
        asked = sorted({task for each in tasks.values() for task in each})
        ended = await self._ended(asked) if asked else {}
        removed = 0
        for id, keys in markers.items():
            try:
                record = await files.begun(id)
            except NoSuchFile:
                await files.remove(id)  # the rest after a crash
            else:
                removed += await self._decide(record, tasks[id], ended)
            # The markers go last: after a crash, the file is looked at again.
            await files.objects.delete(keys)
        if removed:
            log.debug("%d files are removed: they have expired, or their tasks are gone", removed)
        return removed

    async def _decide(
        self, record: FileRecord, tasks: Sequence[str], ended: Mapping[str, bool]
    ) -> bool:
        """Remove a file, or mark it for a later check; return whether it was removed."""
        files = self._files
        live = [task for task in tasks if task in ended]
        if live:
            keep = self._keep(record.scope.agent)
            if keep is not None and all(ended[task] for task in live):
                keep /= 4  # tasks are removed within that time
            await files.release(record)
            await self._look_again(record, keep)
            return False
        if not tasks:
            done = await files.completed(record.id)
            expires_at = (done or record).expires_at
            if expires_at > files.now():
                await files.look_at(record.id, expires_at)
                return False
        if await files.has_new_task(record.id, tasks):
            await self._look_again(record, ATTACH_GRACE / 1000)
            return False
        if await files.remove(record.id, unless=lambda found: bool(set(found) - set(tasks))):
            return True
        await self._look_again(record, self._keep(record.scope.agent))
        return False

    async def _look_again(self, record: FileRecord, keep: float | None) -> None:
        await self._files.look_at(record.id, self._files.next_look(keep))
