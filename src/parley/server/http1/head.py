"""Reads heads of requests, determines the ends of bodies (RFC 9112), and writes heads of answers.

httptools reads the lines. Ambiguous requests are rejected here, because a proxy in front of the
server may have read them differently (request smuggling).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import unquote

import httptools

MAX_HEAD = 64 * 1024
"""The most bytes of a request before its body."""

MAX_HEADERS = 256
"""The most header fields of a request."""

MAX_LENGTH_DIGITS = 18
"""The most digits of a Content-Length."""

BAD_REQUEST = b"400 Bad Request"

# The fields that decide about framing, about the connection, or about the target.
_DECIDING = frozenset(
    (b"connection", b"content-length", b"expect", b"host", b"transfer-encoding", b"upgrade")
)
_AUTHORITY = re.compile(
    rb"[A-Za-z0-9._~!$&'()*+,;=%-]*(?::\d{0,5})?|\[[0-9A-Fa-f:.]+\](?::\d{0,5})?"
)
_BEGINNING = re.compile(rb"[A-Z-]{1,20}(?: |\Z)")
_BARE_LF = re.compile(rb"(?:\A|[^\r])\n")


class RequestRefused(Exception):
    """The request is rejected with a status; the connection ends. The message is for the log."""

    def __init__(self, message: str, status: bytes = BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


class RequestHead:
    """The head of one request. ``read_head`` makes one; httptools calls the methods.

    ``headers`` are in the order of the request, with names in lower case. ``target`` is as sent,
    ``raw_path`` its path, ``path`` the path without quoting. ``length`` is the body's: ``None`` for
    chunks. ``keeps_alive``: the connection stays open after the answer. ``is_expecting``: the
    client waits for "100 Continue". ``is_upgrade``: it asks for another protocol.
    """

    __slots__ = (
        "_hosts", "_is_complete", "headers", "http_version", "is_expecting", "is_upgrade",
        "keeps_alive", "length", "method", "path", "query", "raw_path", "target",
    )  # fmt: skip

    method: str
    path: str
    raw_path: bytes
    http_version: str

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.target = b""
        self.query = b""
        self.length: int | None = -1
        self.keeps_alive = True
        self.is_expecting = self.is_upgrade = False
        self._hosts = 0
        self._is_complete = False

    # -- callbacks of httptools ----------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        """Store the request target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header field."""
        name = name.lower()
        self.headers.append((name, value))
        if name in _DECIDING:
            self._decide(name, value)

    def on_headers_complete(self) -> None:
        """Note the end of the head."""
        self._is_complete = True

    def _decide(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            if not value:
                raise RequestRefused("an empty Host")
            self._hosts += 1
        elif name == b"content-length":
            if self.length != -1 or not value.isdigit() or len(value) > MAX_LENGTH_DIGITS:
                raise RequestRefused("Content-Length is not one number, or not the only length")
            self.length = int(value)
        elif name == b"transfer-encoding":
            if self.length != -1:
                raise RequestRefused("Transfer-Encoding is not the only length")
            if value.lower() != b"chunked":
                raise RequestRefused(
                    "the only transfer coding here is chunked", b"501 Not Implemented"
                )
            self.length = None
        elif name == b"connection":
            options = {option.strip() for option in value.lower().split(b",")}
            if b"close" in options:
                self.keeps_alive = False
            if b"upgrade" in options:
                self.is_upgrade = True
        elif name == b"expect" and value.lower() == b"100-continue":
            self.is_expecting = True

    # -- the end of the head -------------------------------------------------------------------

    def finish(self, parser: httptools.HttpRequestParser) -> None:
        """Decide about the whole head. Raises ``RequestRefused``."""
        if not self._is_complete:
            raise RequestRefused("this is no HTTP request")
        version = self.http_version = parser.get_http_version()
        self.method = parser.get_method().decode("ascii")
        if version == "1.1":
            if self._hosts != 1:
                raise RequestRefused("a request of HTTP/1.1 has one Host")
        elif version == "1.0":
            self.keeps_alive = False
            if self.length is None or self._hosts > 1:
                raise RequestRefused("chunks, or two hosts, in a request of HTTP/1.0")
        else:
            raise RequestRefused(f"HTTP/{version}", b"505 HTTP Version Not Supported")
        if self.length == -1:
            self.length = 0
        target = self.target
        if target[:1] != b"/":
            target = self._other_form(target)
        if b"#" in target:
            raise RequestRefused("a fragment in the request target")
        raw_path, _, self.query = target.partition(b"?")
        self.raw_path = raw_path
        path = raw_path.decode("ascii")
        self.path = unquote(path) if "%" in path else path

    def _other_form(self, target: bytes) -> bytes:
        """Return the path and query of a target that is no path (RFC 9112 §3.2)."""
        if target == b"*" and self.method == "OPTIONS":
            return target
        scheme, separator, rest = target.partition(b"://")
        if separator and scheme.lower() in (b"http", b"https"):
            end = min((at for at in map(rest.find, (b"/", b"?")) if at >= 0), default=len(rest))
            authority = rest[:end]
            if authority and _AUTHORITY.fullmatch(authority):
                # It replaces the Host header.
                self.headers[:] = [
                    (name, authority if name == b"host" else value) for name, value in self.headers
                ]
                return rest[end:] if rest[end : end + 1] == b"/" else b"/" + rest[end:]
        raise RequestRefused("the request target is no path")


def read_head(data: bytes) -> RequestHead:
    """Return a head, given with the empty line at its end.

    Raises ``RequestRefused`` for a malformed or ambiguous head.
    """
    if len(data) > MAX_HEAD:
        raise RequestRefused("a long head", b"431 Request Header Fields Too Large")
    if not _BEGINNING.match(data, 0, 21):
        raise RequestRefused("this is no HTTP request")  # httptools would skip leading line ends
    line = data.find(b"\r\n")
    if data.count(b" ", 0, line) != 2:
        raise RequestRefused("the request line is not three words")
    head = RequestHead()
    parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade as stopped:
        if stopped.args[0] != len(data):
            raise RequestRefused("the head ends before its empty line") from None
    except httptools.HttpParserCallbackError as error:
        if isinstance(error.__context__, RequestRefused):
            raise error.__context__ from None
        raise RequestRefused(str(error)) from None
    except httptools.HttpParserError as error:
        raise RequestRefused(str(error)) from None
    if len(head.headers) > MAX_HEADERS:
        raise RequestRefused("many headers", b"431 Request Header Fields Too Large")
    try:
        head.finish(parser)
    except UnicodeDecodeError:
        raise RequestRefused("the request target is not ASCII") from None
    return head


def check_beginning(data: bytes | bytearray, since: int) -> None:
    """Reject data that cannot be the beginning of a head.

    ``since`` is the length that was checked before. Raises ``RequestRefused``.
    """
    if len(data) > MAX_HEAD:
        raise RequestRefused("a long head", b"431 Request Header Fields Too Large")
    if since < 21 and not _BEGINNING.match(data, 0, 21):
        raise RequestRefused("this is no HTTP request")
    if _BARE_LF.search(data, max(0, since - 1)):
        raise RequestRefused("a line that ends without CR")
    if data.count(b"\n") > MAX_HEADERS + 1:
        raise RequestRefused("many headers", b"431 Request Header Fields Too Large")


# -- heads of answers -------------------------------------------------------------------------

Field = tuple[bytes, bytes]

_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_STATUS_LINES = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
    for status in range(100, 600)
}
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# All control characters but the tab: the CR and LF of each line are counted.
_CONTROLS = bytes([*range(9), *range(10, 32), 127])
_MAX_NAMES = 1024

_MAX_KNOWN = 128
_MAX_LINES = 1024

_names: dict[bytes, bytes] = {}
_known_lines: dict[tuple[Field, ...], bytes] = {}
_date = (0, b"")


def field_name(name: bytes) -> bytes:
    """Return a name in lower case. Raises ``ValueError`` for an invalid name."""
    known = _names.get(name)
    if known is None:
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is no name of a header field")
        known = bytes(name).lower()
        if len(_names) < _MAX_NAMES:
            _names[name] = known
    return known


def response_head(status: int, fields: Iterable[Field]) -> bytes:
    """Return a head, with the date, from fields whose names are in lower case.

    Raises ``ValueError`` for control characters in a value: they could begin another answer.
    """
    return b"%b%b%b\r\n" % (_STATUS_LINES[status], date_line(), _lines(fields))


def whole_response(status: int, fields: tuple[Field, ...], body: bytes) -> bytes:
    """Return an answer with its head, as ``response_head`` returns it, and a Content-Length.

    The parts that most answers have in common are checked and joined once.
    """
    lines = _known_lines.get(fields)
    if lines is None:
        lines = _lines(fields)
        if len(lines) <= _MAX_LINES:
            if len(_known_lines) >= _MAX_KNOWN:
                _known_lines.clear()
            _known_lines[fields] = lines
    return b"%b%bcontent-length: %d\r\n%b\r\n%b" % (
        _STATUS_LINES[status], date_line(), len(body), lines, body
    )  # fmt: skip


def _lines(fields: Iterable[Field]) -> bytes:
    """Return the lines of fields. Raises ``ValueError``."""
    lines = [b"%b: %b\r\n" % field for field in fields]
    block = b"".join(lines)
    if len(block.translate(None, _CONTROLS)) != len(block) - 2 * len(lines):
        raise ValueError("a control character in a header field")
    return block


def date_line() -> bytes:
    """Return the header ``Date``."""
    global _date
    now = int(time.time())
    if _date[0] != now:
        _date = now, b"date: " + formatdate(now, usegmt=True).encode() + b"\r\n"
    return _date[1]
