"""Removes files whose tasks are gone, and those that no task ever had."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from parley.files import layout
from parley.files.errors import NoSuchFile
from parley.files.file_store import ATTACH_GRACE, FileStore
from parley.files.objects import ObjectEntry
from parley.files.records import FileRecord

BATCH = 200
"""How many files one step of a sweep looks at."""

MINUTE = 60_000

log = logging.getLogger("parley.files")

Ended = Callable[[Sequence[str]], Awaitable[Mapping[str, bool]]]
"""Returns whether tasks have ended, by their ids, without those that are gone."""


class FileSweeper:
    """Looks at the files that are due, and removes those that are expired or whose tasks are gone.

    ``ended`` asks the task store. ``keep`` is how many seconds an agent's tasks are kept after
    their end, ``None`` for ever. The cost of a sweep is that of the files that are due; a file is
    due when a task that has it could have been removed, and seldom again while it was not.
    """

    def __init__(self, files: FileStore, ended: Ended, keep: Callable[[str], float | None]) -> None:
        self._files = files
        self._ended = ended
        self._keep = keep

    async def sweep(self) -> int:
        """Look at all files that are due; return how many were removed.

        Of replicas that share the files, one sweeps at a time. Raises ``FilesUnavailable``, and
        what the task store raises.
        """
        if not await self._is_ours():
            return 0
        removed = 0
        while due := await self._due():
            removed += await self._look(due)
            if len(due) < BATCH:
                break
        return removed

    async def _is_ours(self) -> bool:
        """Return whether this replica sweeps in this minute."""
        objects = self._files.objects
        if not objects.is_shared:
            return True
        minute = f"sweeps/{self._files.now() // MINUTE:012x}"
        if not await objects.create(minute, b""):
            return False
        old = [each.key for each in await objects.list("sweeps") if each.key < minute]
        if old:
            await objects.delete(old)
        return True

    async def _due(self) -> list[ObjectEntry]:
        now = self._files.now()
        found = await self._files.objects.list("due", BATCH)
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
                await files.remove(id, unless=lambda tasks: False)  # what a crash left of it
            else:
                removed += await self._decide(record, tasks[id], ended)
            # The markers go last: after a crash, the file is looked at again.
            await files.objects.delete(keys)
        if removed:
            log.info("%d files are removed: they have expired, or their tasks are gone", removed)
        return removed

    async def _decide(
        self, record: FileRecord, tasks: Sequence[str], ended: Mapping[str, bool]
    ) -> bool:
        """Remove a file, or mark it for a later look; return whether it was removed."""
        files = self._files
        live = [task for task in tasks if task in ended]
        if live:
            keep = self._keep(record.scope.agent)
            if keep is not None and all(ended[task] for task in live):
                keep /= 4  # they are removed within that time
            await files.release(record)
            await self._look_again(record, keep)
            return False
        if not tasks:
            done = await files.completed(record.id)
            expires_at = (done or record).expires_at
            if expires_at > files.now():
                await files.objects.put(layout.due(record.id, expires_at), b"")
                return False
        if await files.has_new_task(record.id, tasks):
            await self._look_again(record, ATTACH_GRACE / 1000)
            return False
        known = set(tasks)
        if await files.remove(record.id, unless=lambda found: bool(set(found) - known)):
            return True
        await self._look_again(record, self._keep(record.scope.agent))
        return False

    async def _look_again(self, record: FileRecord, keep: float | None) -> None:
        await self._files.objects.put(layout.due(record.id, self._files.next_look(keep)), b"")
