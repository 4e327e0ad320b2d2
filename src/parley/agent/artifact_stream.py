"""An artifact that is written in chunks (specification §4.2.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parley.engine.content import check_metadata, check_text, to_parts
from parley.engine.turn.attempt import Attempt, TurnOver
from parley.model.blocking import SyncProxy, blocking
from parley.model.errors import A2AError
from parley.model.parts import Artifact, Part
from parley.store.protocols.errors import StoreError

BUFFER_SECONDS = 0.02
"""The time for which the newest chunk is buffered, so that the last one can be marked."""


class ArtifactStream:
    """Writes an artifact chunk by chunk; an async context manager.

    Every chunk is an artifact update with ``append``, except the first, and the last one has
    ``lastChunk``. To know the last one, the stream buffers the newest chunk until the next one, for
    at most 20 ms; a stream that is closed later ends with an empty chunk. Consecutive text chunks
    form one part of the artifact, and empty chunks none. The first chunk of a turn that is streamed
    to its caller is not buffered. An exception in the context leaves the artifact without a last
    chunk. ``referred`` makes a part of the file at a path.
    """

    def __init__(
        self,
        attempt: Attempt,
        *,
        name: str = "",
        description: str = "",
        artifact_id: str | None = None,
        media_type: str = "",
        metadata: dict[str, Any] | None = None,
        referred: Callable[[object], Awaitable[object]] | None = None,
    ) -> None:
        artifact_id = artifact_id or attempt.next_artifact_id()
        check_text(
            artifact_id=artifact_id, name=name, description=description, media_type=media_type
        )
        self.artifact_id = artifact_id
        self._attempt = attempt
        self._name = name
        self._description = description
        self._media_type = media_type
        self._metadata = metadata
        self._referred = referred
        self._begun = False
        self._buffered: tuple[Part, ...] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._last: tuple[Part, ...] = ()
        self._is_blank = True  # no text so far, or only empty text
        self._is_in_text = False
        self._continues = False

    async def __aenter__(self) -> Self:
        self._attempt.buffers += (self.write_buffered,)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._attempt.finished:
            self._stop()
        elif error is None:
            await self.close()
        else:
            self.write_buffered()
            self._stop()

    async def write(self, chunk: object) -> None:
        """Add a chunk: text, bytes, data, a path, a part or parts.

        Waits for the store (backpressure). A large file at a path becomes a reference.
        """
        if isinstance(chunk, Path) and self._referred is not None:
            chunk = await self._referred(chunk)
        self.put(chunk)
        writer = self._attempt.runner.writer
        if writer is not None and writer.is_full:
            await writer.drain()

    def put(self, chunk: object) -> None:
        """Add a chunk without waiting. Raises ``TurnOver``, ``UnusableValue``."""
        if self._closed:
            raise TurnOver(f"the artifact {self._name or self.artifact_id!r} has its last chunk")
        parts = (
            (Part(text=chunk, media_type=self._media_type),)
            if (is_text := isinstance(chunk, str))
            else to_parts(chunk, media_type=self._media_type)
        )
        if self._attempt.finished or self._attempt.ending:
            raise TurnOver("this turn has ended; its output would reach no caller")
        self.write_buffered()
        self._buffered = parts
        self._continues = self._is_blank or (is_text and (self._is_in_text or not chunk))
        if not is_text or chunk:
            self._is_in_text, self._is_blank = is_text, False
        runner = self._attempt.runner
        if (runner.writer is None or runner.writer.is_first) and runner.hints.is_read(
            runner.task_id
        ):
            self.write_buffered()  # the reader of a stream gets the first chunk at once
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BUFFER_SECONDS, self._write_late)

    async def close(self, *, metadata: dict[str, Any] | None = None) -> None:
        """Mark the last chunk and wait until the store has room. Idempotent.

        ``metadata`` is added to the artifact's metadata, for facts that are known only at the end.
        Raises ``UnusableValue`` for metadata that has no JSON form.
        """
        if self._closed:
            return
        self.finish(check_metadata(metadata))
        writer = self._attempt.runner.writer
        if writer is not None and writer.is_full:
            await writer.drain()

    def finish(self, metadata: dict[str, Any] | None = None) -> None:
        """Mark the last chunk, and add its metadata to the artifact's."""
        chunk, self._buffered = self._buffered, None
        if chunk is None and self._begun:
            chunk = (Part(raw=b"") if self._last[-1].raw is not None else Part(text=""),)
            self._continues = True
        self._stop()
        if chunk is not None:
            self._emit(chunk, last=True, added=metadata)

    def write_buffered(self) -> None:
        """Write the buffered chunk, because another event will follow it."""
        chunk, self._buffered = self._buffered, None
        if chunk is not None:
            self._emit(chunk)

    def _write_late(self) -> None:
        self._timer = None
        if not self._attempt.finished:
            try:
                self.write_buffered()
            except A2AError as error:
                self._attempt.runner.abort(error)
            except StoreError:
                pass  # the writer has stopped, and the runner knows

    def _stop(self) -> None:
        self._closed = True
        self._buffered = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        others = [each for each in self._attempt.buffers if each != self.write_buffered]
        self._attempt.buffers = tuple(others)

    def _emit(
        self, parts: tuple[Part, ...], *, last: bool = False, added: dict[str, Any] | None = None
    ) -> None:
        self._last = parts
        begun, self._begun = self._begun, True
        artifact = Artifact(
            artifact_id=self.artifact_id,
            name="" if begun else self._name,
            description="" if begun else self._description,
            parts=parts,
            metadata=added if begun else {**(self._metadata or {}), **(added or {})} or None,
        )
        writer = self._attempt.runner.writer
        if begun and writer is not None and not self._attempt.finished:
            self._attempt.write_chunk(
                writer, artifact, append=True, last=last, continues=self._continues
            )
        else:
            self._attempt.write_artifact(
                artifact,
                append=begun,
                last=last,
                continues=begun and self._continues,
                buffered=True,
            )


class BlockingStream(SyncProxy[ArtifactStream]):
    """An artifact that a thread writes chunk by chunk; a context manager."""

    def __init__(self, turn: SyncProxy[Any], stream: ArtifactStream) -> None:
        super().__init__(stream, turn._thread)
        self.artifact_id = stream.artifact_id

    write = blocking(ArtifactStream.write)

    def __enter__(self) -> Self:
        self._run(self._target.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._target.__aexit__(kind, error, traceback))
