"""A server that floods its clients: a process of its own, as fast as possible.

``python -m tests.security.flooding KIND`` prints its port, and then for each connection the number
of bytes it sent before the other side closed it.
"""

from __future__ import annotations

import contextlib
import socket
import sys

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
EMPTY = HEAD + b"Content-Length: 0\r\n\r\n"

KINDS: dict[str, tuple[bytes, bytes]] = {
    "interim": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
    "empty-lines": (b"", b"\r\n"),
    "status-line": (b"HTTP/1.1 200 ", b"O"),
    "header": (HEAD + b"X-Long: ", b"x"),
    "headers": (HEAD, b"X: y\r\n"),
    "large-headers": (HEAD, b"X-Large: " + b"x" * 4000 + b"\r\n"),
    "answers": (b"", EMPTY),
    "answers-after": (EMPTY, EMPTY),
    "noise-after": (EMPTY, b"\x00\x01\x02\x03"),
    "empty-lines-after": (EMPTY, b"\r\n"),
    "chunk-extension": (CHUNKED + b"1;x=", b"x"),
    "trailers": (CHUNKED + b"0\r\n", b"X: y\r\n"),
    "body": (HEAD + b"Content-Length: 99999999999\r\n\r\n", b"x"),
    "tiny-chunks": (CHUNKED, b"1\r\nx\r\n"),
}
"""The first bytes, and the repeated bytes. With ``-after``, the flood follows a response."""


def main(kind: str) -> None:
    """Flood every connection."""
    first, again = KINDS[kind]
    block = again * (65536 // len(again) + 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            connection, _ = server.accept()
            sent = 0
            with connection, contextlib.suppress(ConnectionError):
                connection.recv(65536)
                connection.sendall(first)
                while True:
                    sent += connection.send(block)
            print(sent, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
