"""Requests as bytes: valid ones, and request-smuggling attempts."""

from __future__ import annotations

HOST = b"Host: localhost\r\n"
BEHIND = b"GET /behind HTTP/1.1\r\nHost: localhost\r\n\r\n"


def get(line: bytes = b"GET / HTTP/1.1", more: bytes = b"", host: bytes = HOST) -> bytes:
    return line + b"\r\n" + host + more + b"\r\n"


def post(more: bytes, body: bytes, version: bytes = b"1.1") -> bytes:
    return b"POST /p HTTP/" + version + b"\r\n" + HOST + more + b"\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked\r\n"

RIGHT = {
    "a get": get(),
    "a query": get(b"GET /a/b?c=d&e HTTP/1.1"),
    "an empty query": get(b"GET /a? HTTP/1.1"),
    "a quoted path": get(b"GET /a%2Fb%20c HTTP/1.1"),
    "two slashes": get(b"GET //a//b HTTP/1.1"),
    "options of all": get(b"OPTIONS * HTTP/1.1"),
    "a length": post(b"Content-Length: 5\r\n", b"hello"),
    "a length of nothing": post(b"Content-Length: 0\r\n", b""),
    "a length with zeros": post(b"Content-Length: 0005\r\n", b"hello"),
    "chunks": post(CHUNKED, b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"),
    "chunks with extensions": post(CHUNKED, b"5;a=b;c\r\nhello\r\n0;last\r\n\r\n"),
    "chunks with trailers": post(CHUNKED, b"5\r\nhello\r\n0\r\nA: b\r\nC: d\r\n\r\n"),
    "chunks of capital sizes": post(CHUNKED, b"A\r\n0123456789\r\n0\r\n\r\n"),
    "chunks in capitals": post(b"TRANSFER-ENCODING: Chunked\r\n", b"5\r\nhello\r\n0\r\n\r\n"),
    "no chunk": post(CHUNKED, b"0\r\n\r\n"),
    "two": get() + get(b"GET /2 HTTP/1.1"),
    "many": b"".join(get(b"GET /%d HTTP/1.1" % n) for n in range(20)),
    "a body between": get() + post(b"Content-Length: 5\r\n", b"hello") + BEHIND,
    "chunks between": get() + post(CHUNKED, b"5\r\nhello\r\n0\r\n\r\n") + BEHIND,
    "to be closed": get(more=b"Connection: close\r\n") + BEHIND,
    "HTTP/1.0": get(b"GET / HTTP/1.0") + BEHIND,
    "HTTP/1.0 without a host": b"GET / HTTP/1.0\r\n\r\n",
    "an empty line before": b"\r\n" + get(),
    "an empty line between": get() + b"\r\n" + BEHIND,
    "a field without a value": get(more=b"A:\r\n"),
    "spaces around a value": get(more=b"A: \t b \t \r\n"),
    "bytes that are no ASCII": get(more=b"A: \xc3\xa4\xff\r\n"),
    "an upgrade": get(more=b"Connection: upgrade\r\nUpgrade: h2c\r\n") + BEHIND,
}
"""Requests that both servers read alike."""

SMUGGLED = {
    "length and chunks": post(b"Content-Length: 6\r\n" + CHUNKED, b"0\r\n\r\nX"),
    "chunks and length": post(CHUNKED + b"Content-Length: 6\r\n", b"0\r\n\r\nX"),
    "two lengths": post(b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello"),
    "two equal lengths": post(b"Content-Length: 5\r\nContent-Length: 5\r\n", b"hello"),
    "a list of lengths": post(b"Content-Length: 5, 5\r\n", b"hello"),
    "a signed length": post(b"Content-Length: +5\r\n", b"hello"),
    "a negative length": post(b"Content-Length: -5\r\n", b"hello"),
    "a length in hex": post(b"Content-Length: 0x5\r\n", b"hello"),
    "a length with a space": post(b"Content-Length: 5 0\r\n", b"hello"),
    "a length of letters": post(b"Content-Length: five\r\n", b"hello"),
    "no length at all": post(b"Content-Length:\r\n", b"hello"),
    "a length beyond all": post(b"Content-Length: 99999999999999999999\r\n", b"hello"),
    "other digits": post("Content-Length: \u0665\r\n".encode(), b"hello"),
    "a space before the colon": post(b"Content-Length : 5\r\n", b"hello"),
    "a space before the colon of chunks": post(b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"),
    "a folded length": post(b"A: b\r\n Content-Length: 5\r\n", b"hello"),
    "a folded coding": post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
    "a folded first line": b"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n",
    "another coding": post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
    "chunks, then another": post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"),
    "chunks, twice": post(CHUNKED + CHUNKED, b"0\r\n\r\n"),
    "chunks with a tab in the name": post(b"Transfer-Encoding\t: chunked\r\n", b"0\r\n\r\n"),
    "chunks with a control character": post(b"Transfer-Encoding: \x0bchunked\r\n", b"0\r\n\r\n"),
    "chunks in quotes": post(b'Transfer-Encoding: "chunked"\r\n', b"0\r\n\r\n"),
    "a bare LF": b"GET / HTTP/1.1\nHost: localhost\n\n",
    "a bare LF in a field": get(more=b"A: b\nContent-Length: 5\r\n") + b"hello",
    "a bare CR in a field": get(more=b"A: b\rContent-Length: 5\r\n") + b"hello",
    "a NUL in a value": get(more=b"A: b\x00c\r\n"),
    "a NUL in a name": get(more=b"A\x00: b\r\n"),
    "a name without letters": get(more=b": b\r\n"),
    "a line without a colon": get(more=b"nonsense\r\n"),
    "a name that is no ASCII": get(more=b"\xc3\xa4: b\r\n"),
    "a chunk's size that is signed": post(CHUNKED, b"+5\r\nhello\r\n0\r\n\r\n"),
    "a chunk's size in 0x": post(CHUNKED, b"0x5\r\nhello\r\n0\r\n\r\n"),
    "a chunk's size that is negative": post(CHUNKED, b"-5\r\nhello\r\n0\r\n\r\n"),
    "a chunk without a size": post(CHUNKED, b"\r\nhello\r\n0\r\n\r\n"),
    "a chunk's size beyond all": post(CHUNKED, b"1" + b"0" * 16 + b"\r\nhello\r\n0\r\n\r\n"),
    "a chunk that is longer": post(CHUNKED, b"3\r\nhello\r\n0\r\n\r\n"),
    "a chunk that ends with LF": post(CHUNKED, b"5\r\nhello\n0\r\n\r\n"),
    "a size that ends with LF": post(CHUNKED, b"5\nhello\r\n0\r\n\r\n"),
    "a bare CR in an extension": post(CHUNKED, b"5;a\rb\r\nhello\r\n0\r\n\r\n"),
    "a trailer without a colon": post(CHUNKED, b"0\r\nnonsense\r\n\r\n"),
    "a tab in the request line": get(b"GET\t/ HTTP/1.1"),
    "a version of one digit": get(b"GET / HTTP/1"),
    "a later version": get(b"GET / HTTP/1.2"),
    "another protocol": get(b"GET / ICE/1.1"),
    "a method in small letters": get(b"get / HTTP/1.1"),
    "a method that nobody knows": get(b"SMUGGLE / HTTP/1.1"),
    "a target with a tab": get(b"GET /a\tb HTTP/1.1"),
    "a target that is no ASCII": get(b"GET /\xc3\xa4 HTTP/1.1"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a tunnel": get(b"CONNECT localhost:22 HTTP/1.1"),
}
"""Requests that both servers reject."""

STRICTER = {
    "two spaces in the request line": get(b"GET  / HTTP/1.1"),
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/2 as text": get(b"GET / HTTP/2.0"),
    "no host": get(host=b""),
    "an empty host": get(host=b"Host:\r\n"),
    "a host of spaces": get(host=b"Host:   \r\n"),
    "an empty host of HTTP/1.0": get(b"GET / HTTP/1.0", host=b"Host:\r\n"),
    "an empty host beside a whole target": get(
        b"GET http://localhost/ HTTP/1.1", host=b"Host:\r\n"
    ),
    "two hosts": get(more=HOST),
    "two hosts of HTTP/1.0": get(b"GET / HTTP/1.0", more=HOST),
    "a fragment": get(b"GET /a#b HTTP/1.1"),
    "all, with GET": get(b"GET * HTTP/1.1"),
    "two codings": post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"),
    "chunks of HTTP/1.0": post(CHUNKED, b"0\r\n\r\n", b"1.0"),
    "a user in the target": get(b"GET http://a@localhost/ HTTP/1.1"),
    "another scheme": get(b"GET ftp://localhost/ HTTP/1.1"),
}
"""Requests that Parley rejects and uvicorn accepts: other servers may read them differently."""
