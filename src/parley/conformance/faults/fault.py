"""The faults of a request and its response."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

import msgspec


class FaultGate:
    """Holds every ``wait`` until ``open`` is called, in any thread. An open gate stays open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_open = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def open(self) -> None:
        """Release all waiters."""
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_release, future)

    async def wait(self) -> None:
        """Return when the gate is open."""
        with self._lock:
            if self._is_open:
                return
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            self._waiting.append((loop, future))
        await future


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault. Create it with a function of ``parley.conformance.faults``."""

    kind: str
    number: int = 0
    other: int = 0
    seconds: float = 0.0
    gate: FaultGate | None = None
    text: str = ""

    def __str__(self) -> str:
        given = [
            f"{name}={value!r}"
            for name in ("number", "other", "seconds", "text")
            if (value := getattr(self, name))
        ]
        return f"{self.kind}({', '.join(given)})"


def drop() -> Fault:
    """Close the connection: the server never receives the request."""
    return Fault(kind="drop")


def drop_answer() -> Fault:
    """Forward the request, and close the connection without a byte of the response."""
    return Fault(kind="drop_answer")


def drop_frame(frame: int) -> Fault:
    """Leave out one frame of a stream."""
    return Fault(kind="drop_frame", number=_positive(frame, "frame"))


def delay(by: float | FaultGate, *, frame: int = 0) -> Fault:
    """Delay the response: by seconds, or until a gate is opened. With ``frame``, from that frame
    on.
    """
    if frame:
        _positive(frame, "frame")
    if isinstance(by, FaultGate):
        return Fault(kind="delay", gate=by, number=frame)
    if by <= 0:
        raise ValueError(f"a delay is a number of seconds above 0, not {by!r}")
    return Fault(kind="delay", seconds=by, number=frame)


def duplicate() -> Fault:
    """Send the request to the server twice. The client gets the second response."""
    return Fault(kind="duplicate")


def duplicate_frame(frame: int) -> Fault:
    """Send one frame of a stream twice."""
    return Fault(kind="duplicate_frame", number=_positive(frame, "frame"))


def reorder(frame: int, behind: int) -> Fault:
    """Move a frame of a stream behind a later one."""
    if not 0 < frame < behind:
        raise ValueError("a frame is moved behind a later one, as in reorder(1, behind=3)")
    return Fault(kind="reorder", number=frame, other=behind)


def overtaken() -> Fault:
    """Hold the request back until the next one has been answered."""
    return Fault(kind="overtaken")


def cut(*, after_bytes: int | None = None, after_frames: int | None = None) -> Fault:
    """Close the connection after so many bytes of the body, or so many frames, of the response."""
    if (after_bytes is None) == (after_frames is None):
        raise ValueError("give either after_bytes or after_frames")
    given = after_bytes if after_bytes is not None else after_frames
    if given is None or given < 0:
        raise ValueError("a response is cut after 0 or more bytes or frames")
    return Fault(kind="cut_bytes" if after_bytes is not None else "cut_frames", number=given)


def slow(bytes_per_second: int, *, piece: int = 64) -> Fault:
    """Forward the response at so many bytes per second, in pieces of ``piece`` bytes."""
    _positive(piece, "piece")
    return Fault(kind="slow", number=_positive(bytes_per_second, "bytes_per_second"), other=piece)


def status(code: int, *, retry_after: int | None = None) -> Fault:
    """Answer with an HTTP status instead of the server, which never receives the request."""
    if not 400 <= code <= 599:
        raise ValueError(f"status() takes a status from 400 to 599, not {code!r}")
    return Fault(kind="status", number=code, text="" if retry_after is None else str(retry_after))


def wrong_version(version: str = "99.0") -> Fault:
    """Make the request name another version of the protocol. The server's response is
    not changed.
    """
    return Fault(kind="wrong_version", text=version)


def _positive(number: int, name: str) -> int:
    if number < 1:
        raise ValueError(f"{name} is 1 or more, not {number!r}")
    return number
