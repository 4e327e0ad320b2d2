"""The page that a browser comes back to after a login, on this machine (RFC 8252 §7.3)."""

from __future__ import annotations

import asyncio
import hmac
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from parley.client.auth.errors import TokenRefused

PATH = "/callback"
MAX_HEAD = 16 * 1024
MAX_OPEN = 16
"""The requests that are read at a time."""

_DONE = "You are logged in. You can close this page."
_FAILED = "The login failed. The program that you logged in for says why."


class RedirectListener:
    """Waits for one redirect with the right ``state``; everything else is turned away.

    Other programs and pages of this machine can call it too: without the state they are told
    nothing, and waiting goes on.
    """

    def __init__(self, state: str, *, port: int = 0) -> None:
        self._state = state
        self._wanted_port = port
        self._server: asyncio.Server | None = None
        self._answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._open = 0
        self.port = 0

    @property
    def url(self) -> str:
        """The address to come back to."""
        return f"http://127.0.0.1:{self.port}{PATH}"

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self._wanted_port, limit=MAX_HEAD
            )
        except OSError as error:
            raise TokenRefused(
                f"the browser cannot come back to 127.0.0.1:{self._wanted_port or ''}: "
                f"{error.strerror or error}"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._server is not None:
            self._server.close()
        self._answer.cancel()

    async def wait(self, timeout: float) -> dict[str, str]:
        """Return the parameters that the browser brings. Raises ``TokenRefused``."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self._answer)
        except TimeoutError:
            raise TokenRefused(f"nobody logged in within {timeout:g} s") from None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_OPEN:
                async with asyncio.timeout(10):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._reply(head.decode("latin-1")))
                    await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError, TimeoutError):
            pass
        finally:
            self._open -= 1
            writer.close()

    def _reply(self, head: str) -> bytes:
        first, *rest = head.split("\r\n")
        method, _, target = first.rpartition(" ")[0].partition(" ")
        hosts = [
            line.partition(":")[2].strip() for line in rest if line.lower().startswith("host:")
        ]
        try:
            parts = urlsplit(target)
        except ValueError:
            return _page(400, "Bad request.")
        # Another name for this machine would be a page of somebody else's (DNS rebinding).
        if hosts != [f"127.0.0.1:{self.port}"] or parts.path != PATH or method != "GET":
            return _page(404, "There is nothing here.")
        given = parse_qsl(parts.query, keep_blank_values=True)
        answer = dict(given)
        right = hmac.compare_digest(answer.get("state", "").encode(), self._state.encode())
        if not right or len(answer) != len(given) or self._answer.done():
            return _page(400, "This is not the login that was asked for.")
        self._answer.set_result(answer)
        return _page(200, _DONE if "code" in answer else _FAILED)


def _page(status: int, words: str) -> bytes:
    reasons = {200: "OK", 400: "Bad Request", 404: "Not Found"}
    body = f"<!doctype html><meta charset=utf-8><title>Parley</title><p>{words}".encode()
    head = (
        f"HTTP/1.1 {status} {reasons[status]}\r\nContent-Type: text/html; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\n"
        "Referrer-Policy: no-referrer\r\n"
        "Content-Security-Policy: default-src 'none'\r\nX-Content-Type-Options: nosniff\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
