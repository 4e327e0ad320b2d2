"""The contract of every object store."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import shutil
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parley.files.objects import READ_BYTES, DiskObjects, FilesUnavailable, NoSuchFile, ObjectStore
from tests.kit.processes import free_port
from tests.kit.services.s3 import S3Server
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


async def test_an_object_is_created_once(objects: ObjectStore) -> None:
    assert await objects.create("a/b", b"first")
    assert not await objects.create("a/b", b"second")
    assert await objects.get("a/b") == b"first"


async def test_a_range_is_read_in_small_pieces(objects: ObjectStore) -> None:
    data = os.urandom(3 * READ_BYTES)
    await objects.put("a/b", data)
    pieces = [piece async for piece in objects.read("a/b", 10, len(data) - 5)]
    assert b"".join(pieces) == data[10:-5]
    assert max(map(len, pieces)) <= READ_BYTES


async def test_reading_what_is_not_there_or_is_shorter_is_an_error(objects: ObjectStore) -> None:
    await objects.put("a/b", b"hello")
    for key, end in (("a/c", 5), ("a/b", 9)):
        with pytest.raises((NoSuchFile, FilesUnavailable)):
            _ = [piece async for piece in objects.read(key, 0, end)]


async def test_a_folder_is_listed_in_the_order_of_keys_and_in_pages(objects: ObjectStore) -> None:
    names = ["f/01", "f/02/a", "f/02/b", "f/02-x/c", "f/03", "f-other/1", "g/1"]
    for name in reversed(names):
        await objects.put(name, name.encode())
    listed = await objects.list("f")
    assert sorted(each.key for each in listed) == sorted(n for n in names if n.startswith("f/"))
    assert {each.key: each.size for each in listed}["f/02/a"] == 6
    # Keys in paged lists have segments of one length, so every store sorts them alike.
    for name in ("n/aa/1", "n/aa/2", "n/bb/1", "n/bb/2"):
        await objects.put(name, b"")
    first = await objects.list("n", 3)
    assert [each.key for each in first] == ["n/aa/1", "n/aa/2", "n/bb/1"]
    assert [each.key for each in await objects.list("n", 3, "n/aa/2")] == ["n/bb/1", "n/bb/2"]
    assert await objects.list("nothing") == []


@pytest.mark.slow
async def test_writing_to_a_folder_that_is_emptied_meanwhile_succeeds(objects: ObjectStore) -> None:
    async def use(name: str) -> None:
        for _ in range(25):
            await objects.put(f"a/b/{name}", b"put")
            await objects.delete([f"a/b/{name}"])
            assert await objects.create(f"a/b/{name}", b"created")
            await objects.delete([f"a/b/{name}"])

    await asyncio.gather(*map(use, "cdef"))


# -- on disk ---------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
async def test_the_directory_and_its_files_are_private(tmp_path: Path) -> None:
    root = tmp_path / "files"
    root.mkdir(mode=0o755)
    objects = DiskObjects(root)
    await objects.open()
    await objects.put("a/b", b"secret")
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "a" / "b").stat().st_mode) == 0o600
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o700


@pytest.mark.parametrize("key", ["../x", "a/../b", "/etc/x", "a//b", "", "a/.b", "."])
async def test_no_key_leads_out_of_the_directory(disk: DiskObjects, key: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        await disk.put(key, b"")


async def test_a_link_is_not_followed(disk: DiskObjects, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    await disk.put("a/b", b"")
    (disk.root / "a" / "c").symlink_to(secret)
    with pytest.raises(FilesUnavailable):
        await disk.get("a/c")
    assert [each.key for each in await disk.list("a")] == ["a/b"]


async def test_a_place_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("")
    with pytest.raises(FilesUnavailable, match="not a directory"):
        await DiskObjects(tmp_path / "files").open()


async def test_a_lazy_place_is_made_when_it_is_used(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path / "files", is_lazy=True, is_temporary=True)
    assert await objects.list("due") == []
    await objects.close()
    assert not objects.root.exists()
    await objects.open()
    await objects.put("a/b", b"")
    assert objects.root.exists()
    await objects.close()
    assert not objects.root.exists()


async def test_what_an_unfinished_writer_left_is_removed_a_day_later(tmp_path: Path) -> None:
    left = tmp_path / "files" / "tmp" / "left"
    left.parent.mkdir(parents=True)
    left.write_text("")
    await DiskObjects(tmp_path / "files").open()
    assert left.exists()  # a process may still write it
    os.utime(left, (0, 0))
    await DiskObjects(tmp_path / "files").open()
    assert not left.exists()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
async def test_a_read_that_is_cancelled_leaves_no_descriptor(disk: DiskObjects) -> None:
    await disk.put("a/b", os.urandom(4 * READ_BYTES))

    async def read() -> None:
        async for _ in disk.read("a/b", 0, 4 * READ_BYTES):
            pass

    def is_open() -> bool:
        found = []
        for each in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{each}"))
        return str(disk.root / "a" / "b") in found

    for steps in range(1, 40):
        reading = asyncio.create_task(read())
        for _ in range(steps % 8):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait({reading})
    del reading
    gc.collect()
    await until(lambda: not is_open(), 10)


async def test_a_directory_that_is_gone_is_said(disk: DiskObjects) -> None:
    shutil.rmtree(disk.root)
    with pytest.raises(FilesUnavailable, match="their directory is gone"):
        await disk.put("a/b", b"data")


async def test_a_full_disk_is_said_and_leaves_nothing(
    disk: DiskObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FilesUnavailable, match="the disk is full"):
        await disk.put("a/b", b"data")
    monkeypatch.undo()
    assert await disk.get("a/b") is None
    assert os.listdir(disk.root / "tmp") == []


# -- in S3 -----------------------------------------------------------------------------------------


@pytest.mark.service
async def test_a_store_that_is_away_is_said_without_secrets(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    from parley.files.s3 import S3Objects

    with pytest.raises(FilesUnavailable, match="cannot be kept or read now: the store"):
        await S3Objects(s3.place()).open()
    assert "files in s3://" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.service
async def test_a_store_that_writes_over_objects_is_refused(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from parley.files.s3 import S3Objects

    objects = S3Objects(s3.place())

    async def create(key: str, data: bytes) -> bool:
        return True

    monkeypatch.setattr(objects, "create", create)
    with pytest.raises(FilesUnavailable, match="If-None-Match"):
        await objects.open()


@pytest.mark.service
async def test_a_read_whose_connection_breaks_goes_on_where_it_was(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore
    from obstore.exceptions import GenericError

    from parley.files.s3 import S3Objects

    data = os.urandom(6 * READ_BYTES)
    objects = S3Objects(s3.place())
    await objects.put("a/b", data)
    get = obstore.get_async
    asked = []

    class Breaking:
        def __init__(self, result: Any) -> None:
            self._result = result

        async def stream(self, **options: Any) -> AsyncIterator[bytes]:
            async for piece in self._result.stream(**options):
                yield piece
                if len(asked) < 4:
                    raise GenericError("the connection is gone")

    async def breaking(store: Any, key: str, *, options: Any) -> Any:
        asked.append(options["range"])
        return Breaking(await get(store, key, options=options))

    monkeypatch.setattr("obstore.get_async", breaking)
    assert b"".join([piece async for piece in objects.read("a/b", 7, len(data))]) == data[7:]
    assert len(asked) > 1
    assert asked == sorted(asked)
