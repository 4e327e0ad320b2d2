"""An artifact that grows while it is made (specification §4.2.2)."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from parley.engine.content import to_parts
from parley.engine.turn.attempt import Attempt, TurnOver
from parley.model.errors import A2AError
from parley.model.parts import Artifact, Part
from parley.store.task_store import StoreError

HOLD = 0.02
"""Seconds for which the newest chunk is held back, so that the last one can be marked as such."""


class ArtifactStream:
    """Writes an artifact chunk by chunk; an async context manager.

    Every chunk is an artifact update with ``append``, except the first, and the last carries
    ``lastChunk``. To know the last, the newest chunk is held back until the next, for at most
    20 ms; a stream that is left later than that closes with an empty chunk. A stream that is left
    by an exception is not closed.
    """

    def __init__(
        self,
        run: Attempt,
        *,
        name: str = "",
        description: str = "",
        artifact_id: str | None = None,
        media_type: str = "",
        metadata: dict[str, Any] | None = None,
    ) -> None:
        self.artifact_id = artifact_id or run.next_artifact_id()
        self._run = run
        self._name = name
        self._description = description
        self._media_type = media_type
        self._metadata = metadata
        self._begun = False
        self._held: tuple[Part, ...] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._last: tuple[Part, ...] = ()

    async def __aenter__(self) -> Self:
        self._run.streams += (self,)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._run.over:
            self._stop()
        elif error is None:
            await self.close()
        else:
            self.release()
            self._stop()

    async def write(self, chunk: object) -> None:
        """Add a chunk: text, bytes, data, a part or parts. Waits while the store is behind."""
        self.put(chunk)
        writer = self._run.lane.writer
        if writer is not None and writer.is_full:
            await writer.room()

    def put(self, chunk: object) -> None:
        """Add a chunk without waiting. Raises ``TurnOver``, ``UnusableValue``."""
        if self._closed:
            raise TurnOver(f"the artifact {self._name or self.artifact_id!r} has its last chunk")
        parts = (
            (Part(text=chunk, media_type=self._media_type),)
            if isinstance(chunk, str)
            else to_parts(chunk, media_type=self._media_type)
        )
        if self._run.over:
            raise TurnOver("this turn has ended; what it says now would reach nobody")
        self.release()
        self._held = parts
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HOLD, self._due)

    async def close(self) -> None:
        """Mark the last chunk and wait until the store has room. Idempotent."""
        if self._closed:
            return
        self.finish()
        writer = self._run.lane.writer
        if writer is not None and writer.is_full:
            await writer.room()

    def finish(self) -> None:
        """Mark the last chunk."""
        held, self._held = self._held, None
        if held is None and self._begun:
            held = (Part(raw=b"") if self._last[-1].raw is not None else Part(text=""),)
        self._stop()
        if held is not None:
            self._emit(held, last=True)

    def release(self) -> None:
        """Write what is held back, because something else is to follow it."""
        held, self._held = self._held, None
        if held is not None:
            self._emit(held)

    def _due(self) -> None:
        self._timer = None
        if not self._run.over:
            try:
                self.release()
            except A2AError as error:
                self._run.lane.abort(error)
            except StoreError:
                pass  # the writer has stopped before, and the lane knows

    def _stop(self) -> None:
        self._closed = True
        self._held = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._run.streams = tuple(other for other in self._run.streams if other is not self)

    def _emit(self, parts: tuple[Part, ...], *, last: bool = False) -> None:
        self._last = parts
        begun, self._begun = self._begun, True
        artifact = Artifact(
            artifact_id=self.artifact_id,
            name="" if begun else self._name,
            description="" if begun else self._description,
            parts=parts,
            metadata=None if begun else self._metadata,
        )
        lane = self._run.lane
        if begun and lane.writer is not None and not self._run.over:
            self._run.write_chunk(lane.writer, artifact, append=True, last=last)
        else:
            self._run.write_artifact(artifact, append=begun, last=last)
