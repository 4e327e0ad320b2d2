"""Limits on what gRPC calls make the server hold: unfinished requests and unsent answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import grpc

from parley.model.errors import A2AError, InternalError, InvalidRequestError, OverloadedError
from parley.server.limits.byte_budget import ByteReservation
from parley.server.limits.slow_readers import UnsentBytes
from parley.server.settings import Settings
from parley.wire.protobuf.errors import STATUS_KEY, write_status

_SLOW_SECONDS = 0.5
"""The time after which an incoming message counts against the budget of bodies; a tenth of it when
there are more incoming messages than the budget holds.
"""

_LOOP_PASSES = 4
"""Passes of the event loop before that, for messages that arrived while it was busy."""

_CALL_BYTES = 16 * 1024
"""The cost of a call whose answer is not read, besides the answer."""


class TooSlow(InvalidRequestError):
    """The request did not arrive in time."""

    grpc_status = "DEADLINE_EXCEEDED"


class GrpcLimits:
    """Receives the messages of calls, and counts their answers, within the limits of the server.

    gRPC shows no message before it is complete, so a slow one counts as if it had the largest
    allowed size.
    """

    def __init__(self, settings: Settings, held: ByteReservation, unsent: UnsentBytes) -> None:
        self._settings = settings
        self._held = held
        self._unsent = unsent
        self._max_incoming = settings.max_body_bytes_held // settings.max_body_bytes
        self._incoming = 0

    async def receive(self, context: Any) -> bytes | None:
        """Return the next message of a call, or ``None`` at the end.

        Raises ``OverloadedError`` while it arrives, and ``TooSlow``.
        """
        task = asyncio.current_task()
        assert task is not None
        slow_after = min(_SLOW_SECONDS, self._settings.body_timeout)
        if self._incoming > self._max_incoming:
            slow_after /= 10
        incoming = _IncomingMessage(self._settings, self._held, context, task, slow_after)
        self._incoming += 1
        try:
            data = await context.read()
        except asyncio.CancelledError:
            if incoming.error is None or task.uncancel():
                raise
            raise incoming.take_error() from None
        finally:
            self._incoming -= 1
            incoming.close()
        return None if data is grpc.aio.EOF else bytes(data)

    def check_room(self, context: Any) -> None:
        """Reject a call from a host with too many unsent bytes. Raises ``OverloadedError``."""
        if not self._unsent.is_small:
            self._unsent.check(host_of(context.peer()))

    def count_until_sent(self, context: Any, size: int) -> None:
        """Count the answer to a call until its task ends.

        Raises ``InternalError`` if the answer exceeds the limit: the operation has been done.
        """
        task = asyncio.current_task()
        assert task is not None
        host = host_of(context.peer())
        size += _CALL_BYTES
        try:
            self._unsent.reserve(host, size)
        except OverloadedError as error:
            raise InternalError(f"the answer is not sent: {error.message}") from None
        task.add_done_callback(lambda _: self._unsent.release(host, size))

    @contextmanager
    def sending(self, context: Any, size: int) -> Iterator[None]:
        """Count an event of a stream within the context. Raises ``OverloadedError``."""
        if size <= _CALL_BYTES:
            yield
            return
        host = host_of(context.peer())
        self._unsent.reserve(host, size)
        try:
            yield
        finally:
            self._unsent.release(host, size)

    async def receive_or_abort(self, context: Any) -> bytes | None:
        """Return the next message of a call to another service than A2A's, or abort the call."""
        try:
            return await self.receive(context)
        except A2AError as error:
            status = getattr(grpc.StatusCode, error.grpc_status)
            await context.abort(status, error.message, ((STATUS_KEY, write_status(error)),))
            raise AssertionError("to abort is to raise") from None


class _IncomingMessage:
    """A message that a call waits for, and its timer."""

    __slots__ = ("_address", "_counted", "_held", "_settings", "_task", "_timer", "error")

    def __init__(
        self,
        settings: Settings,
        held: ByteReservation,
        context: Any,
        task: asyncio.Task[Any],
        slow_after: float,
    ) -> None:
        self._settings = settings
        self._held = held
        self._task = task
        self._counted = 0
        self._address = ""
        self.error: A2AError | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(slow_after, self._check, context, _LOOP_PASSES)

    def take_error(self) -> A2AError:
        """Return the error that ended the wait, and forget it: a cycle would keep it alive."""
        error, self.error = self.error, None
        assert error is not None
        return error

    def close(self) -> None:
        """Stop the timer and release what was counted."""
        self._timer.cancel()
        if self._counted:
            self._held.release(self._address, self._counted)
            self._counted = 0

    def _check(self, context: Any, passes: int) -> None:
        if passes:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(0.005, self._check, context, passes - 1)
        else:
            self._count(context)

    def _count(self, context: Any) -> None:
        self._address = host_of(context.peer())
        try:
            self._held.reserve(self._address, self._settings.max_body_bytes)
        except OverloadedError as error:
            self._end(error)
            return
        self._counted = self._settings.max_body_bytes
        seconds = self._settings.body_timeout
        late = TooSlow(f"the request did not come within {seconds:g} seconds")
        remaining = max(0.0, seconds - _SLOW_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(remaining, self._end, late)

    def _end(self, error: A2AError) -> None:
        self.error = error
        self._task.cancel()


def address_of(peer: str) -> tuple[str, int] | None:
    """Return the host and port of a peer, as in ``ipv4:127.0.0.1:50000``."""
    family, _, address = peer.partition(":")
    host, _, port = unquote(address).rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.strip("[]"), int(port)


@lru_cache(maxsize=4096)
def host_of(peer: str) -> str:
    """Return the host of a peer, empty if it has none: that of one connection for many calls."""
    address = address_of(peer)
    return "" if address is None else address[0]
