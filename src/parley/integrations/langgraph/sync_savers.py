"""Checkpointers that block, for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

BLOCKING = ("SqliteSaver",)
"""The classes of LangGraph whose async methods only raise."""


def blocks(saver: object) -> bool:
    """Return whether something is a checkpointer that has no async methods."""
    if not isinstance(saver, BaseCheckpointSaver):
        return False
    kind = type(saver)
    return kind.aget_tuple is BaseCheckpointSaver.aget_tuple or kind.__name__ in BLOCKING


class SaverInThreads(BaseCheckpointSaver[Any]):  # type: ignore[misc]
    """A checkpointer that blocks: its methods run in threads."""

    def __init__(self, saver: Any) -> None:
        super().__init__(serde=saver.serde)
        self.saver = saver

    async def aget_tuple(self, config: Mapping[str, Any]) -> CheckpointTuple | None:
        """Do what ``get_tuple`` does."""
        return await asyncio.to_thread(self.get_tuple, config)

    async def alist(
        self, config: Mapping[str, Any] | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """Do what ``list`` does."""
        for each in await asyncio.to_thread(lambda: tuple(self.list(config, **options))):
            yield each

    async def aput(self, *arguments: Any) -> Any:
        """Do what ``put`` does."""
        return await asyncio.to_thread(self.put, *arguments)

    async def aput_writes(self, *arguments: Any) -> None:
        """Do what ``put_writes`` does."""
        await asyncio.to_thread(self.put_writes, *arguments)

    async def adelete_thread(self, thread_id: str) -> None:
        """Do what ``delete_thread`` does."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    def get_tuple(self, config: Mapping[str, Any]) -> CheckpointTuple | None:
        """Do what the saver does."""
        return self.saver.get_tuple(config)

    def list(self, config: Mapping[str, Any] | None, **options: Any) -> Iterator[CheckpointTuple]:
        """Do what the saver does."""
        yield from self.saver.list(config, **options)

    def put(self, *arguments: Any) -> Any:
        """Do what the saver does."""
        return self.saver.put(*arguments)

    def put_writes(self, *arguments: Any) -> None:
        """Do what the saver does."""
        self.saver.put_writes(*arguments)

    def delete_thread(self, thread_id: str) -> None:
        """Do what the saver does."""
        self.saver.delete_thread(thread_id)

    def get_next_version(self, current: Any, channel: Any) -> Any:
        """Do what the saver does."""
        return self.saver.get_next_version(current, channel)
