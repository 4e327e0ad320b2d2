"""Files on every object store; all stores keep one contract."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from parley.files.file_store import FileStore
from parley.files.layout import FileLimits, FileRecord, FileScope
from parley.files.objects import DiskObjects, ObjectStore

KEY = b"0123456789abcdef"
BOB = FileScope("clerk", "", "bob")


class Clock:
    """A clock in milliseconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now

    def passes(self, *, seconds: float = 0, hours: float = 0) -> None:
        self.now += int((seconds + hours * 3600) * 1000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.service)])
async def objects(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ObjectStore]:
    objects: ObjectStore
    if request.param == "disk":
        objects = DiskObjects(tmp_path / "files")
    else:
        s3 = request.getfixturevalue("s3")
        from parley.files.s3 import S3Objects

        objects = S3Objects(s3.place())
    await objects.open()
    yield objects
    await objects.close()


@pytest.fixture
async def disk(tmp_path: Path) -> AsyncIterator[DiskObjects]:
    objects = DiskObjects(tmp_path / "files")
    await objects.open()
    yield objects
    await objects.close()


FilesOf = Callable[..., FileStore]


@pytest.fixture
def files_of(clock: Clock) -> FilesOf:
    """A maker of file stores on one object store, one per replica."""

    async def secret() -> bytes:
        return KEY

    def made(objects: ObjectStore, **limits: float) -> FileStore:
        return FileStore(objects, limits=FileLimits(**limits), clock=clock, secret=secret)

    return made


@pytest.fixture
async def files(objects: ObjectStore, files_of: FilesOf) -> FileStore:
    files = files_of(objects)
    await files.open()
    return files


async def uploaded(files: FileStore, data: bytes, scope: FileScope = BOB) -> FileRecord:
    """Return a complete file."""
    record = await files.begin(scope, filename="data.bin", size=len(data))
    if not data:
        return await files.find(record.id, scope)
    writer = await files.resume(record)
    await writer.write(data)
    return await writer.finish()


async def content(files: FileStore, record: FileRecord, *range: int) -> bytes:
    """Return the bytes of a file, or of a range of it."""
    return b"".join([piece async for piece in files.read(record, *range)])


async def keys(objects: ObjectStore) -> list[str]:
    """Return all keys of an object store except its internal keys."""
    folders = ("due", "files", "owners")
    return [each.key for folder in folders for each in await objects.list(folder)]
