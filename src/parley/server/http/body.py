"""Reads the body of a request, up to a limit."""

from __future__ import annotations

from starlette.types import Receive, Scope

from parley.server.limits.byte_budget import ByteReservation


class BodyTooLarge(Exception):
    """The body is larger than the server takes."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(
    receive: Receive,
    scope: Scope,
    declared: bytes | None,
    limit: int,
    request_bytes: ByteReservation,
) -> bytes:
    """Read the body of a request, at most ``limit`` bytes of it.

    ``declared`` is the Content-Length header: a body that declares more is not read. What was read
    of an incomplete body is reserved in ``request_bytes``.

    Raises ``BodyTooLarge``, ``ClientGone``, and ``OverloadedError`` when there is no room.
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
    return await _read_on(receive, piece, limit, request_bytes, client[0] if client else "")


async def _read_on(
    receive: Receive, piece: bytes, limit: int, request_bytes: ByteReservation, address: str
) -> bytes:
    """Read the rest of a body after its first piece."""
    pieces = bytearray()
    reserved = 0
    try:
        while True:
            request_bytes.reserve(address, len(piece))
            reserved += len(piece)
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
        request_bytes.release(address, reserved)
