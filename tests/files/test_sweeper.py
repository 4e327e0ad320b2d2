"""The sweeper removes files with their tasks, and files without a task after some time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import pytest

from parley.files import layout
from parley.files.file_store import FileStore, FileSweeper
from parley.files.layout import CHUNK_BYTES
from parley.files.objects import DiskObjects, NoSuchFile, ObjectStore
from tests.files.conftest import BOB, Clock, FilesOf, content, keys, uploaded

pytestmark = pytest.mark.anyio

TASK, OTHER = "1" * 32, "2" * 32
WEEK = 7 * 24 * 60 * 60.0


class Tasks:
    """The tasks of a store, and whether each task has ended."""

    def __init__(self) -> None:
        self.known: dict[str, bool] = {}
        self.asked = 0

    async def ended(self, task_ids: Sequence[str]) -> Mapping[str, bool]:
        self.asked += len(task_ids)
        return {id: self.known[id] for id in task_ids if id in self.known}


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


@pytest.fixture
def sweeper(files: FileStore, tasks: Tasks) -> FileSweeper:
    return FileSweeper(files, tasks.ended, lambda agent: WEEK)


async def test_a_file_that_no_task_has_goes_a_day_after_its_last_byte(
    files: FileStore, sweeper: FileSweeper, clock: Clock, objects: ObjectStore
) -> None:
    record = await files.begin(BOB, size=5)
    clock.passes(hours=23)
    writer = await files.resume(record)
    await writer.write(b"hello")
    done = await writer.finish()
    clock.passes(hours=23)
    assert await sweeper.sweep() == 0
    assert await content(files, await files.find(done.id, BOB)) == b"hello"
    clock.passes(hours=2)
    assert await sweeper.sweep() == 1
    with pytest.raises(NoSuchFile):
        await files.find(done.id, BOB)
    assert await keys(objects) == []


async def test_a_file_of_an_ended_task_is_looked_at_sooner(
    files: FileStore, sweeper: FileSweeper, clock: Clock, tasks: Tasks
) -> None:
    record = await uploaded(files, b"hello")
    tasks.known[TASK] = True
    await files.attach(record, TASK, WEEK)
    clock.passes(seconds=WEEK + 3600)
    assert await sweeper.sweep() == 0
    del tasks.known[TASK]
    clock.passes(seconds=WEEK / 4 + 3600)
    assert await sweeper.sweep() == 1


async def test_a_file_stays_while_one_of_its_tasks_does(
    files: FileStore, sweeper: FileSweeper, clock: Clock, tasks: Tasks
) -> None:
    record = await uploaded(files, b"hello")
    tasks.known = {TASK: True, OTHER: True}
    await files.attach(record, TASK, WEEK)
    await files.attach(record, OTHER, WEEK)
    del tasks.known[TASK]
    clock.passes(seconds=WEEK + 3600)
    assert await sweeper.sweep() == 0
    del tasks.known[OTHER]
    clock.passes(seconds=WEEK + 3600)
    assert await sweeper.sweep() == 1


async def test_a_file_is_kept_until_its_task_can_be_in_the_log(
    files: FileStore, sweeper: FileSweeper, clock: Clock, tasks: Tasks
) -> None:
    record = await uploaded(files, b"hello")
    await files.attach(record, TASK, 1.0)
    clock.passes(seconds=9 * 60)
    assert await sweeper.sweep() == 0
    clock.passes(seconds=2 * 60)
    assert await sweeper.sweep() == 1  # the reply was direct: there is no task


async def test_a_file_that_a_new_task_gets_just_before_the_last_one_goes_is_kept(
    files: FileStore, sweeper: FileSweeper, clock: Clock, tasks: Tasks
) -> None:
    """The log does not contain the new task yet when the sweeper asks."""
    record = await uploaded(files, b"hello")
    tasks.known[TASK] = True
    await files.attach(record, TASK, WEEK)
    clock.passes(seconds=WEEK + 3600)
    del tasks.known[TASK]
    await files.attach(record, OTHER, WEEK)
    assert await sweeper.sweep() == 0
    tasks.known[OTHER] = False
    clock.passes(hours=1)
    assert await sweeper.sweep() == 0
    del tasks.known[OTHER]
    clock.passes(seconds=WEEK + 3600)
    assert await sweeper.sweep() == 1


async def test_a_file_that_a_task_makes_is_its_own_from_the_beginning(
    files: FileStore, sweeper: FileSweeper, clock: Clock, tasks: Tasks, objects: ObjectStore
) -> None:
    record = await files.begin_for_task(BOB, TASK, WEEK, filename="report.pdf")
    await files.writer(record, 0).write(b"hello")  # and then the process died
    clock.passes(seconds=WEEK + 7200)
    assert await sweeper.sweep() == 1
    assert await keys(objects) == []


@pytest.mark.parametrize("puts", range(8))
async def test_a_crash_at_any_write_leaves_nothing_for_ever(
    disk: DiskObjects, files_of: FilesOf, tasks: Tasks, clock: Clock, puts: int
) -> None:
    class Dies(Exception):
        pass

    class Dying(DiskObjects):
        left = puts

        async def put(self, key: str, data: bytes | bytearray) -> None:
            await self._count()
            await super().put(key, data)

        async def create(self, key: str, data: bytes | bytearray) -> bool:
            await self._count()
            return await super().create(key, data)

        async def delete(self, keys: object) -> None:
            await self._count()
            await super().delete(keys)  # type: ignore[arg-type]

        async def _count(self) -> None:
            self.left -= 1
            if self.left < 0:
                raise Dies

    files = files_of(Dying(disk.root))
    try:
        record = await uploaded(files, b"hello")
        await files.attach(record, TASK, WEEK)
    except Dies:
        pass
    after = files_of(disk)
    sweeper = FileSweeper(after, tasks.ended, lambda agent: WEEK)
    for _ in range(3):
        clock.passes(seconds=2 * WEEK)
        await sweeper.sweep()
    assert await keys(disk) == []


@pytest.mark.parametrize("deletes", range(6))
async def test_a_removal_that_was_interrupted_is_finished(
    disk: DiskObjects, files_of: FilesOf, tasks: Tasks, clock: Clock, deletes: int
) -> None:
    class Dies(Exception):
        pass

    class Dying(DiskObjects):
        left = deletes

        async def delete(self, keys: object) -> None:
            self.left -= 1
            if self.left < 0:
                raise Dies
            await super().delete(keys)  # type: ignore[arg-type]

    files = files_of(disk)
    record = await uploaded(files, b"hello" * 100)
    await files.attach(record, TASK, WEEK)
    clock.passes(seconds=2 * WEEK)
    dying = FileSweeper(files_of(Dying(disk.root)), tasks.ended, lambda agent: WEEK)
    with contextlib.suppress(Dies):
        await dying.sweep()
    await FileSweeper(files, tasks.ended, lambda agent: WEEK).sweep()
    assert await keys(disk) == []


async def test_a_file_that_is_being_removed_is_attached_or_gone_never_both(
    files: FileStore,
) -> None:
    record = await uploaded(files, b"hello")
    await files.objects.put(layout.removed(record.id), b"")  # by another replica, just before
    with pytest.raises(NoSuchFile):
        await files.attach(record, TASK, WEEK)
    await files.objects.delete([layout.removed(record.id)])

    attached: list[Sequence[str]] = []

    def unless(found: Sequence[str]) -> bool:
        attached.append(found)
        return bool(found)

    await files.attach(record, TASK, WEEK)
    assert not await files.remove(record.id, unless=unless)
    assert attached == [[TASK]]
    assert await content(files, await files.find(record.id, BOB)) == b"hello"
    await files.attach(record, OTHER, WEEK)


async def test_an_upload_that_goes_on_after_its_removal_leaves_nothing(
    files: FileStore, sweeper: FileSweeper, clock: Clock, objects: ObjectStore
) -> None:
    """A request from before the upload's expiry must not fill the disk unnoticed."""
    record = await files.begin(BOB, size=3 * CHUNK_BYTES)
    writer = await files.resume(record)
    await writer.write(b"a" * CHUNK_BYTES)
    clock.passes(hours=25)
    assert await sweeper.sweep() == 1
    with pytest.raises(NoSuchFile):
        await writer.write(b"b" * CHUNK_BYTES)
    assert await keys(objects) == []


async def test_an_upload_that_ends_after_its_removal_is_gone(
    files: FileStore, sweeper: FileSweeper, clock: Clock, objects: ObjectStore
) -> None:
    record = await files.begin_for_task(BOB, TASK, WEEK)
    writer = files.writer(record, 0)
    clock.passes(hours=25 * 7)
    assert await sweeper.sweep() == 1
    with pytest.raises(NoSuchFile):
        await writer.finish()
    clock.passes(hours=25)
    await sweeper.sweep()
    assert await keys(objects) == []


async def test_a_file_that_a_task_gets_while_it_is_completed_is_no_upload_any_more(
    disk: DiskObjects, files_of: FilesOf
) -> None:
    """Otherwise it would count among its owner's uploads as long as the task is kept."""

    class Attaching(DiskObjects):
        async def create(self, key: str, data: bytes | bytearray) -> bool:
            if key == layout.complete(record.id):
                await files.attach(record, TASK, WEEK)
            return await super().create(key, data)

    files = files_of(Attaching(disk.root))
    record = await files.begin(BOB)
    writer = await files.resume(record)
    await writer.write(b"hello")
    await writer.finish()
    assert await disk.list("owners") == []


async def test_of_replicas_one_sweeps_in_a_minute(
    objects: ObjectStore, files_of: FilesOf, tasks: Tasks, clock: Clock
) -> None:
    if not objects.is_shared:
        pytest.skip("one process has these files for itself")
    one, other = (FileSweeper(files_of(objects), tasks.ended, lambda agent: WEEK) for _ in range(2))
    await uploaded(files_of(objects), b"hello")
    clock.passes(hours=48)
    assert [await one.sweep(), await other.sweep()] == [1, 0]
    clock.passes(seconds=60)
    assert await other.sweep() == 0
    assert len(await objects.list("sweeps")) == 1


@pytest.mark.slow
async def test_a_sweep_costs_what_is_due_and_not_what_is_kept(
    disk: DiskObjects, files_of: FilesOf, tasks: Tasks, clock: Clock
) -> None:
    class Counting(DiskObjects):
        calls = 0

        async def list(self, *args: object) -> object:  # type: ignore[override]
            self.calls += 1
            return await super().list(*args)  # type: ignore[arg-type]

        async def get(self, key: str) -> bytes | None:
            self.calls += 1
            return await super().get(key)

    objects = Counting(disk.root)
    files = files_of(objects)
    sweeper = FileSweeper(files, tasks.ended, lambda agent: WEEK)
    costs = []
    for kept in (5, 50):
        for n in range(kept):
            task = f"{kept:016x}{n:016x}"
            tasks.known[task] = True
            await files.attach(await uploaded(files, b"kept"), task, WEEK)
        for _ in range(3):
            await uploaded(files, b"garbage")
        clock.passes(hours=25)
        before, objects.calls, tasks.asked = objects.calls, 0, 0
        assert before
        assert await sweeper.sweep() == 3
        costs.append((objects.calls, tasks.asked))
    assert costs[0] == costs[1]
    assert costs[0][1] == 0
