"""The file storage of a server, and the sweeps that remove files together with their tasks."""

from __future__ import annotations

import logging
import os
import re
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from parley.engine.description import AgentDescription
from parley.files.file_store import FileStore, FileSweeper
from parley.files.layout import FileLimits
from parley.files.objects import DiskObjects, FilesUnavailable, ObjectStore
from parley.host.store_urls import sqlite_path
from parley.model import backoff
from parley.model.concurrency import Periodic
from parley.model.distribution import install_command
from parley.server.settings import Settings
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import StoreError
from parley.store.task_store import TaskStore

SWEEP_SECONDS = 60.0

UNKNOWN_AGENT_SECONDS = 24 * 60 * 60
"""The interval between searches for files of agents that this server does not have."""

PLACES = "a directory, s3://bucket/prefix, or none"

_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]*(?:/[\w!.*'()/-]*)?", re.ASCII)

log = logging.getLogger("parley.host")


def open_files(
    files: str | Path | ObjectStore | None, store: str | TaskStore
) -> ObjectStore | None:
    """Return the storage for files, ``None`` for a server without.

    The default (``None``) is a directory next to the file of a SQLite store, a temporary directory
    for ``memory:``, and no storage for a store that replicas share, since they may have no common
    disk. Raises ``ValueError``.
    """
    if files is None:
        return _default(store)
    if not isinstance(files, str | Path):
        return files
    if files == "none":
        return None
    if not str(files).strip():
        raise ValueError(f"files is {PLACES}, not an empty text")
    text = str(files)
    if _S3.fullmatch(text):
        if find_spec("obstore") is None:
            raise ValueError(f"files in S3 need the package obstore: {install_command('s3')}")
        from parley.files.s3 import S3Objects

        return S3Objects(text)
    if "://" in text:
        raise ValueError(f"{text.partition('://')[0]}://... cannot keep files; use {PLACES}")
    return DiskObjects(Path(files))


def _default(store: str | TaskStore) -> ObjectStore | None:
    if isinstance(store, str):
        path = sqlite_path(store)
        if path is not None:
            return DiskObjects(path.with_name(f"{path.name}.files"), is_lazy=True)
        is_memory = store in ("memory:", "memory://")
    else:
        is_memory = isinstance(store, MemoryTaskStore)
    if not is_memory:
        return None
    root = Path(tempfile.gettempdir()) / f"parley-files-{os.getpid()}-{secrets.token_hex(8)}"
    return DiskObjects(root, is_lazy=True, is_temporary=True)


def hosted_files(objects: ObjectStore, store: TaskStore, settings: Settings) -> FileStore:
    """Return the file store of a host: with its store's clock, and the key that replicas share."""
    limits = FileLimits(
        file_bytes=settings.max_file_bytes,
        uploads=settings.max_uploads,
        upload_bytes=settings.max_upload_bytes,
        upload_timeout=settings.upload_timeout,
        link_timeout=settings.file_link_timeout,
    )

    async def secret() -> bytes:
        try:
            return await store.secret("signing")
        except StoreError as error:
            log.error("files cannot be reached until the store works: %s", error)
            raise FilesUnavailable(
                "files cannot be reached now: the task log does not work"
            ) from error

    return FileStore(objects, limits=limits, clock=store.now, secret=secret)


def kept_for(agent: AgentDescription) -> float | None:
    """Return the retention in seconds of an agent's ended tasks, ``None`` for ever."""
    return None if agent.retention.tasks is None else agent.retention.tasks.total_seconds()


class FileSweeps:
    """Sweeps the files of a host while it runs."""

    def __init__(
        self, files: FileStore, store: TaskStore, agents: Sequence[AgentDescription]
    ) -> None:
        self._files = files
        self._store = store
        self._kept = {agent.key: kept_for(agent) for agent in agents}
        self._sweeper = FileSweeper(
            files, self._ended, lambda agent: self._kept.get(agent, UNKNOWN_AGENT_SECONDS)
        )
        # Jitter keeps replicas from sweeping at the same time.
        self._sweeps = Periodic(
            "a sweep of the files", self._try, lambda: SWEEP_SECONDS * backoff.uniform(0.8, 1.2),
            log=log, waits_first=True,
        )  # fmt: skip
        self._fails = False

    async def start(self) -> None:
        """Check the storage if the operator chose it, and begin. Raises ``FilesUnavailable``."""
        if not getattr(self._files.objects, "is_lazy", False):
            await self._files.open()
        self._sweeps.start()

    async def stop(self) -> None:
        """End the sweeps."""
        await self._sweeps.stop()

    async def sweep(self) -> int:
        """Remove files that have expired or have lost their task. Return their number."""
        return await self._sweeper.sweep()

    async def _try(self) -> None:
        try:
            await self.sweep()
            self._fails = False
        except (FilesUnavailable, StoreError) as error:
            if not self._fails:
                log.error("files are not swept until the store works again: %s", error)
            self._fails = True

    async def _ended(self, task_ids: Sequence[str]) -> Mapping[str, bool]:
        return {each.task_id: each.ended for each in await self._store.positions(task_ids)}
