"""The body of a request, read up to a limit."""

from __future__ import annotations

from starlette.types import Receive


class BodyTooLarge(Exception):
    """The body is larger than the server takes."""


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(receive: Receive, declared: bytes | None, limit: int) -> bytes:
    """Read the body of a request, at most ``limit`` bytes of it.

    ``declared`` is the Content-Length header: a body that says that it is too large is not read.

    Raises ``BodyTooLarge``, ``ClientGone``.
    """
    if (
        declared is not None
        and declared.isdigit()
        and (len(declared) > 18 or int(declared) > limit)
    ):
        raise BodyTooLarge
    pieces = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        if len(pieces) + len(piece) > limit:
            raise BodyTooLarge
        if message.get("more_body", False):
            pieces += piece
        else:
            return bytes(pieces + piece) if pieces else piece
