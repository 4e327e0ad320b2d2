"""What calls over gRPC can make the server hold: requests that do not come, answers that stay."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import grpc

from parley.model.errors import A2AError, InternalError, InvalidRequestError, OverloadedError
from parley.server.byte_budget import ByteReservation
from parley.server.settings import Settings
from parley.server.slow_readers import UnsentBytes
from parley.wire.protobuf.errors import STATUS_KEY, write_status

_MOMENT = 0.5
"""How many seconds a message may take before it counts as one that is not whole; a tenth of that
when there are more to come than there is room for.
"""

_TURNS = 4
"""So often the event loop goes round before that: what came while it was busy is here then."""

_CALL = 16 * 1024
"""What a call costs whose answer is not read, besides the answer."""


class TooSlow(InvalidRequestError):
    """The request did not come in time."""

    grpc_status = "DEADLINE_EXCEEDED"


class GrpcLimits:
    """Receives the messages of calls, and counts their answers, within the limits of the server.

    gRPC shows no message before it is whole. So one that takes longer than a moment counts as if it
    were as large as it may be.
    """

    def __init__(self, settings: Settings, held: ByteReservation, unsent: UnsentBytes) -> None:
        self._settings = settings
        self._held = held
        self._unsent = unsent
        self._few = settings.max_body_bytes_held // settings.max_body_bytes
        self._coming = 0

    async def receive(self, context: Any) -> bytes | None:
        """Return the next message of a call, and nothing when there is none.

        Raises ``OverloadedError``, before it is here as a whole, and ``TooSlow``.
        """
        task = asyncio.current_task()
        assert task is not None
        moment = min(_MOMENT, self._settings.body_timeout)
        if self._coming > self._few:
            moment /= 10
        coming = _Coming(self._settings, self._held, context, task, moment)
        self._coming += 1
        try:
            data = await context.read()
        except asyncio.CancelledError:
            if coming.error is None or task.uncancel():
                raise
            raise coming.its_error() from None
        finally:
            self._coming -= 1
            coming.close()
        return None if data is grpc.aio.EOF else bytes(data)

    def check_room(self, context: Any) -> None:
        """Refuse a call whose answer nobody would read. Raises ``OverloadedError``."""
        if not self._unsent.is_small:
            self._unsent.check(host_of(context.peer()))

    def count_until_sent(self, context: Any, size: int) -> None:
        """Count the answer to a call until the task that runs it is done, which is its end.

        Raises ``InternalError`` when there is no room for it: what was asked for is done.
        """
        task = asyncio.current_task()
        assert task is not None
        host = host_of(context.peer())
        size += _CALL
        try:
            self._unsent.reserve(host, size)
        except OverloadedError as error:
            raise InternalError(f"the answer is not sent: {error.message}") from None
        task.add_done_callback(lambda _: self._unsent.release(host, size))

    @contextmanager
    def sending(self, context: Any, size: int) -> Iterator[None]:
        """Count an event of a stream while the context lasts. Raises ``OverloadedError``."""
        if size <= _CALL:
            yield
            return
        host = host_of(context.peer())
        self._unsent.reserve(host, size)
        try:
            yield
        finally:
            self._unsent.release(host, size)

    async def receive_or_abort(self, context: Any) -> bytes | None:
        """Return the next message of a call that is not of A2A, or end the call."""
        try:
            return await self.receive(context)
        except A2AError as error:
            status = getattr(grpc.StatusCode, error.grpc_status)
            await context.abort(status, error.message, ((STATUS_KEY, write_status(error)),))
            raise AssertionError("to abort is to raise") from None


class _Coming:
    """A message that a call waits for."""

    __slots__ = ("_address", "_counted", "_held", "_settings", "_task", "_timer", "error")

    def __init__(
        self,
        settings: Settings,
        held: ByteReservation,
        context: Any,
        task: asyncio.Task[Any],
        moment: float,
    ) -> None:
        self._settings = settings
        self._held = held
        self._task = task
        self._counted = 0
        self._address = ""
        self.error: A2AError | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(moment, self._look, context, _TURNS)

    def its_error(self) -> A2AError:
        """Return why it is not waited for any more, once: a cycle would keep it."""
        error, self.error = self.error, None
        assert error is not None
        return error

    def close(self) -> None:
        """It came, or will not."""
        self._timer.cancel()
        if self._counted:
            self._held.release(self._address, self._counted)
            self._counted = 0

    def _look(self, context: Any, turns: int) -> None:
        if turns:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(0.005, self._look, context, turns - 1)
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
        rest = max(0.0, seconds - _MOMENT)
        self._timer = asyncio.get_running_loop().call_later(rest, self._end, late)

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


def host_of(peer: str) -> str:
    """Return the host of a peer, empty if it has none."""
    address = address_of(peer)
    return "" if address is None else address[0]
