"""Checkpointers that block, for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import partial
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
        for name in ("get_tuple", "put", "put_writes", "delete_thread"):
            does = getattr(saver, name)
            setattr(self, name, does)
            setattr(self, f"a{name}", partial(asyncio.to_thread, does))
        self.list = saver.list
        self.get_next_version = saver.get_next_version

    async def alist(
        self, config: Mapping[str, Any] | None, **options: Any
    ) -> AsyncIterator[CheckpointTuple]:
        """Do what ``list`` does."""
        for each in await asyncio.to_thread(lambda: tuple(self.list(config, **options))):
            yield each
