"""The body of a request, read up to a limit."""

from __future__ import annotations

from starlette.types import Receive, Scope

from parley.server.byte_budget import ByteReservation


class BodyTooLarge(Exception):
    """The body is larger than the server takes."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(
    receive: Receive, scope: Scope, declared: bytes | None, limit: int, held: ByteReservation
) -> bytes:
    """Read the body of a request, at most ``limit`` bytes of it.

    ``declared`` is the Content-Length header: a body that says that it is too large is not read.
    While it is not whole, what came of it counts among what is ``held``.

    Raises ``BodyTooLarge``, ``ClientGone``, and ``OverloadedError`` when too much is held.
    """
    if (
        declared is not None
        and declared.isdigit()
        and (len(declared) > 18 or int(declared) > limit)
    ):
        raise BodyTooLarge
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    piece: bytes = message.get("body", b"")
    if len(piece) > limit:
        raise BodyTooLarge
    if not message.get("more_body", False):
        return piece
    client = scope.get("client")
    return await _read_on(receive, piece, limit, held, client[0] if client else "")


async def _read_on(
    receive: Receive, piece: bytes, limit: int, held: ByteReservation, address: str
) -> bytes:
    """Read a body whose first piece is not all of it."""
    pieces = bytearray()
    counted = 0
    try:
        while True:
            held.take(address, len(piece))
            counted += len(piece)
            pieces += piece
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            piece = message.get("body", b"")
            if len(pieces) + len(piece) > limit:
                raise BodyTooLarge
            if not message.get("more_body", False):
                pieces += piece
                return bytes(pieces)
    finally:
        held.give_back(address, counted)
