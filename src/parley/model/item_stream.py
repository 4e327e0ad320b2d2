"""Streams whose items come in batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from parley.model.service import StreamItem

Batches = AsyncGenerator[Sequence[StreamItem], None]
"""What a stream has at a time. No batch is empty."""


class ItemStream:
    """The items of a stream, one by one: an async iterator, to be closed like a generator.

    They come in ``batches``, and a reader that can take a whole batch reads these instead: a step
    of an async generator for each item would cost more than the item itself.
    """

    __slots__ = ("_rest", "batches")

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self._rest: list[StreamItem] = []

    def __aiter__(self) -> ItemStream:
        return self

    async def __anext__(self) -> StreamItem:
        """Return the next item. Raises ``StopAsyncIteration``, and what the batches raise."""
        if not self._rest:
            self._rest = [*reversed(await anext(self.batches))]
        return self._rest.pop()

    async def aclose(self) -> None:
        """Close the stream. Idempotent."""
        self._rest = []
        await self.batches.aclose()
