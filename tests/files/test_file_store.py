"""Files with owners, uploaded and read, on every object store."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.files import layout
from parley.files.file_store import DOWNLOAD, UPLOAD, FileStore
from parley.files.layout import CHUNK_BYTES, FileScope
from parley.files.objects import (
    DigestMismatch,
    NoSuchFile,
    ObjectStore,
    OffsetMismatch,
    TooManyBytes,
    TooManyUploads,
)
from tests.files.conftest import BOB, Clock, FilesOf, content, keys

pytestmark = pytest.mark.anyio


async def test_an_upload_goes_on_on_another_replica(
    objects: ObjectStore, files_of: FilesOf
) -> None:
    data = os.urandom(CHUNK_BYTES + 1000)
    one, other = files_of(objects), files_of(objects)
    await one.open()
    await other.open()
    record = await one.begin(BOB, size=len(data), sha256=hashlib.sha256(data).hexdigest())
    writer = await one.resume(record)
    await writer.write(data[: CHUNK_BYTES + 100])
    assert (await other.status(record)).offset == CHUNK_BYTES  # the rest is not durable
    await writer.flush()
    assert (await other.status(record)).offset == CHUNK_BYTES + 100
    writer = await other.resume(await other.begun(record.id))
    await writer.write(data[writer.offset :])
    done = await writer.finish()
    assert await content(one, await one.find(done.id, BOB)) == data


async def test_an_upload_whose_last_answer_was_lost_is_complete(files: FileStore) -> None:
    record = await files.begin(BOB, size=5)
    writer = await files.resume(record)
    await writer.write(b"hello")
    await writer.flush()  # and then the process died
    status = await files.status(record)
    assert (status.offset, status.complete) == (5, True)
    assert await content(files, await files.find(record.id, BOB)) == b"hello"


async def test_an_empty_file_is_complete_at_once(files: FileStore) -> None:
    record = await files.begin(BOB, size=0)
    assert await content(files, await files.find(record.id, BOB)) == b""


async def test_of_two_writers_at_one_offset_one_goes_on(files: FileStore) -> None:
    record = await files.begin(BOB, size=100)
    one, other = await files.resume(record), await files.resume(record)
    await one.write(b"a" * 60)
    await other.write(b"b" * 40)
    results = await asyncio.gather(one.flush(), other.flush(), return_exceptions=True)
    refused = [each for each in results if each is not None]
    assert len(refused) == 1
    assert isinstance(refused[0], OffsetMismatch)
    assert refused[0].offset in (40, 60)
    winner = one if results[0] is None else other
    await winner.write(b"c" * (100 - winner.offset))
    done = await winner.finish()
    data = await content(files, done)
    assert data in (b"a" * 60 + b"c" * 40, b"b" * 40 + b"c" * 60)
    assert done.sha256 == hashlib.sha256(data).hexdigest()


async def test_one_that_was_overtaken_writes_nothing(files: FileStore) -> None:
    record = await files.begin(BOB, size=100)
    slow = await files.resume(record)
    await slow.write(b"a" * 10)
    fast = await files.resume(record)
    await fast.write(b"b" * 50)
    await fast.flush()
    with pytest.raises(OffsetMismatch) as error:
        await slow.flush()
    assert error.value.offset == 50


async def test_a_wrong_digest_removes_the_file(objects: ObjectStore, files: FileStore) -> None:
    record = await files.begin(BOB, size=5, sha256="0" * 64)
    writer = await files.resume(record)
    await writer.write(b"hello")
    with pytest.raises(DigestMismatch, match=hashlib.sha256(b"hello").hexdigest()):
        await writer.finish()
    with pytest.raises(NoSuchFile):
        await files.begun(record.id)
    assert [key for key in await keys(objects) if not key.startswith("due/")] == []


async def test_a_file_has_no_more_bytes_than_announced_or_allowed(
    objects: ObjectStore, files_of: FilesOf
) -> None:
    files = files_of(objects, file_bytes=100)
    await files.open()
    with pytest.raises(TooManyBytes, match="100 bytes"):
        await files.begin(BOB, size=101)
    for size in (50, None):
        writer = await files.resume(await files.begin(BOB, size=size))
        await writer.write(b"x" * (size or 100))
        with pytest.raises(TooManyBytes):
            await writer.write(b"x")


async def test_a_file_does_not_come_in_too_many_pieces(
    disk: ObjectStore, files_of: FilesOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parley.files.file_store.MAX_CHUNKS", 3)
    files = files_of(disk)
    await files.open()
    writer = await files.resume(await files.begin(BOB, size=10))
    for _ in range(3):
        await writer.write(b"x")
        await writer.flush()
    await writer.write(b"x")
    with pytest.raises(TooManyBytes, match="3 pieces"):
        await writer.flush()


@pytest.mark.parametrize(
    "announced",
    [
        {"filename": "a\nb"},
        {"filename": "x" * 256},
        {"media_type": "text/html\r\nX: y"},
        {"media_type": "plain"},
        {"size": -1},
        {"sha256": "abc"},
        {"sha256": "Z" * 64},
    ],
)
async def test_what_cannot_be_announced_is_refused(files: FileStore, announced: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(announced)).split("_")[0]):
        await files.begin(BOB, **announced)


# -- owners ----------------------------------------------------------------------------------------


async def test_an_unfinished_file_is_not_read(files: FileStore) -> None:
    record = await files.begin(BOB, size=5)
    with pytest.raises(NoSuchFile):
        await files.find(record.id, BOB)


async def test_an_owner_has_so_many_files_without_a_task(
    objects: ObjectStore, files_of: FilesOf
) -> None:
    files = files_of(objects, uploads=2)
    await files.open()
    for _ in range(2):
        await files.begin(BOB, size=1)
    before = await keys(objects)
    with pytest.raises(TooManyUploads, match="2 files"):
        await files.begin(BOB, size=1)
    assert await keys(objects) == before
    await files.begin(FileScope("clerk", "", "eve"), size=1)


async def test_an_owner_has_so_many_bytes_without_a_task(
    objects: ObjectStore, files_of: FilesOf
) -> None:
    files = files_of(objects, file_bytes=60, upload_bytes=100)
    await files.open()
    record = await files.begin(BOB)  # without a size: counts as 60 bytes
    with pytest.raises(TooManyUploads, match="100 bytes"):
        await files.begin(BOB, size=41)
    writer = await files.resume(record)
    await writer.write(b"x" * 10)
    done = await writer.finish()  # now counts as 10 bytes
    await files.begin(BOB, size=41)
    with pytest.raises(TooManyUploads):
        await files.begin(BOB, size=50)
    await files.attach(done, "0" * 32, None)  # counts no more
    await files.begin(BOB, size=50)


# -- signed addresses ------------------------------------------------------------------------------


async def test_a_signature_is_for_one_file_one_purpose_and_a_time(
    files: FileStore, clock: Clock
) -> None:
    one, other = "1" * 48, "2" * 48
    signature = files.sign(DOWNLOAD, one)
    assert files.allows(DOWNLOAD, one, signature)
    assert not files.allows(DOWNLOAD, other, signature)
    assert not files.allows(UPLOAD, one, signature)
    assert not files.allows(DOWNLOAD, one, signature[:-2] + "xx")
    assert not files.allows(DOWNLOAD, one, "")
    clock.passes(hours=24)
    assert not files.allows(DOWNLOAD, one, signature)


# -- ranges ----------------------------------------------------------------------------------------


@pytest.mark.slow
@given(
    pieces=st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=8),
    start=st.integers(0, 400),
    length=st.integers(0, 400),
)
def test_a_range_has_the_bytes_of_the_file(pieces: list[bytes], start: int, length: int) -> None:
    """The file has chunks of any sizes."""
    whole = b"".join(pieces)
    stored = {}
    at = 0
    for index, piece in enumerate(pieces):
        stored[layout.chunk("1" * 48, at, index)] = piece
        at += len(piece)

    class Stored:
        async def read(self, key: str, first: int, last: int):
            assert 0 <= first < last <= len(stored[key])
            yield stored[key][first:last]

    async def secret() -> bytes:
        return b""

    files = FileStore(Stored(), clock=lambda: 0, secret=secret)  # type: ignore[arg-type]
    record = layout.FileRecord(
        id="1" * 48,
        scope=BOB,
        size=len(whole),
        created_at=0,
        expires_at=0,
        chunks=tuple(map(len, pieces)),
    )
    read = asyncio.run(content(files, record, start, start + length))
    assert read == whole[start : start + length]


async def test_the_last_chunk_is_found_without_the_others(files: FileStore) -> None:
    record = await files.begin(BOB, size=30)
    for n in range(12):
        writer = await files.resume(record)
        assert writer.offset == 2 * n
        await writer.write(b"ab")
        await writer.flush()
    listed = await files.objects.list(layout.chunks(record.id), 1)
    assert layout.chunk_place(listed[0].key) == (22, 11)
