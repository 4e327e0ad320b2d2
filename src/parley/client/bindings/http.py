"""HTTP as the bindings see it: bytes go out, a status, headers and bytes come back.

The one file that knows which HTTP library is underneath; it is imported when it is first used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urljoin, urlsplit

from parley.client.bindings.grpc_tls import GrpcTls
from parley.client.errors import (
    ClientError,
    ConnectionClosed,
    Disconnected,
    ResponseTooLarge,
    Timeout,
    UnexpectedStatus,
    Unreachable,
    Untrusted,
)
from parley.client.origin import PUBLIC_HEADERS, Origin
from parley.model.distribution import VERSION
from parley.security.response_limits import bounded_connector

if TYPE_CHECKING:
    import ssl

    import aiohttp

logger = logging.getLogger(__name__)

MAX_RESPONSE = 64 * 1024 * 1024
MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# A little under the five seconds after which common servers close an idle connection, so that a
# request is not sent into a connection that is being closed.
KEEP_ALIVE = 4.0


class Reply(NamedTuple):
    """A whole answer. Header names are in lower case; ``url`` is where it came from in the end."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


class Answer:
    """An answer whose body is still to come. It is read once, with ``read`` or ``chunks``."""

    def __init__(self, response: aiohttp.ClientResponse, http: HttpTransport) -> None:
        self._response = response
        self._http = http
        self.status = response.status
        self.url = str(response.url)
        self.headers: dict[str, str] = {}
        for name, value in response.headers.items():
            known = self.headers.get(name.lower())
            self.headers[name.lower()] = value if known is None else f"{known}, {value}"

    async def read(self, limit: int | None = None) -> bytes:
        """Return the whole body.

        Raises ``ResponseTooLarge`` as soon as it is known to exceed ``limit``, and what
        ``HttpTransport`` raises.
        """
        limit = self._http.max_response if limit is None else limit
        announced = self._response.content_length
        if announced is not None and announced > limit:
            raise _too_large(self.url, limit)
        pieces: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                raise _too_large(self.url, limit)
            pieces.append(chunk)
        return b"".join(pieces)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes in; a body that breaks off raises ``Disconnected``."""
        import aiohttp

        content = self._response.content
        while True:
            try:
                chunk = await content.readany()
            except (aiohttp.ClientError, OSError) as error:
                raise self._http.translate(error, self.url) from error
            if not chunk:
                return
            yield chunk


class HttpTransport:
    """Connections to HTTP servers: pooled, verified, bounded. An async context manager.

    ``connect_timeout`` bounds the making of a connection, TLS included. ``max_response`` bounds
    what is held of an answer, in bytes. ``tls`` is for authorities or client certificates of one's
    own, and ``grpc_tls`` the same for gRPC, which cannot use an ``SSLContext``'s certificates;
    ``insecure`` switches verification off. ``trust_env`` takes proxies from the environment, and
    nothing else: no password from ``~/.netrc``.
    Redirects are followed by ``get`` only, three at most, and never from an encrypted address to
    one that is not; another server gets none of the headers that may be secret. No cookies are
    kept.

    Every method raises ``Unreachable`` when nothing was sent, ``Disconnected`` when the connection
    broke later, ``Timeout``, and ``ConnectionClosed`` after ``close``. A transport belongs to the
    event loop that uses it first.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 10.0,
        max_response: int = MAX_RESPONSE,
        max_connections: int = 1000,
        tls: ssl.SSLContext | None = None,
        grpc_tls: GrpcTls | None = None,
        insecure: bool = False,
        trust_env: bool = False,
    ) -> None:
        if insecure:
            logger.warning("TLS certificates are not verified; do not use this in production")
        self.connect_timeout = connect_timeout
        self.max_response = max_response
        self._max_connections = max_connections
        self._ssl: ssl.SSLContext | bool = False if insecure else (tls or True)
        self.tls = tls
        self.grpc_tls = grpc_tls
        self.insecure = insecure
        self.trust_env = trust_env
        self._session: aiohttp.ClientSession | None = None
        self._responses: set[aiohttp.ClientResponse] = set()
        self.closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; calls under way fail with ``ConnectionClosed``. Idempotent."""
        self.closed = True
        session, self._session = self._session, None
        if session is None:
            return
        # Closing the session would leave those who wait for a piece of a body waiting for ever.
        for response in self._responses:
            response.content.set_exception(ConnectionResetError("closed by this side"))
        await session.close()

    async def get(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        attach: Callable[[str], Mapping[str, str]] | None = None,
        timeout: float | None = None,
        limit: int | None = None,
    ) -> Reply:
        """Fetch ``url``, following redirects, all within ``timeout``.

        ``headers`` are for the server of ``url``. ``attach`` gives what goes along to an address,
        and is asked for each that a redirect leads to until there is one that gets nothing.
        """
        clock = asyncio.get_running_loop().time
        end = None if timeout is None else clock() + timeout
        here, more = url, attach(url) if attach is not None else {}
        for _ in range(MAX_REDIRECTS + 1):
            left = None if end is None else max(end - clock(), 0.001)
            async with self.open("GET", here, {**headers, **more}, None, timeout=left) as answer:
                status, there = answer.status, answer.headers.get("location")
                if status not in REDIRECTS or there is None:
                    return Reply(status, answer.headers, await answer.read(limit), answer.url)
            target = _target(answer.url, there, status)
            if not is_same_server(answer.url, target):
                headers = {n: v for n, v in headers.items() if n.lower() in PUBLIC_HEADERS}
            # Who was led away may be led back with a purpose: nothing goes along any more.
            here, more = target, attach(target) if attach is not None and more else {}
        raise UnexpectedStatus(
            f"{place(url)} redirects more than {MAX_REDIRECTS} times", status=status
        )

    async def send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        timeout: float | None = None,
    ) -> Reply:
        """Send a request and return its whole answer; ``timeout`` bounds the exchange."""
        async with self.open(method, url, headers, body, timeout=timeout) as answer:
            return Reply(answer.status, answer.headers, await answer.read(), answer.url)

    @asynccontextmanager
    async def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        timeout: float | None = None,
        idle: float | None = None,
    ) -> AsyncIterator[Answer]:
        """Send a request and give its answer as soon as the headers are there.

        ``idle`` bounds the time in which nothing at all arrives (``Disconnected``), ``timeout``
        the whole (``Timeout``). Redirects are not followed. The connection is given up when the
        block is left early.
        """
        if self.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        import aiohttp

        try:
            response = await self._open_session().request(
                method,
                url,
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(
                    total=timeout, connect=self.connect_timeout, sock_read=idle
                ),
                allow_redirects=False,
                proxy=_proxy_for(url) if self.trust_env else None,
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.translate(error, url) from error
        self._responses.add(response)
        try:
            yield Answer(response, self)
        finally:
            self._responses.discard(response)
            # An answer that was not read to its end takes its connection with it.
            response.release()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=bounded_connector(
                    limit=self._max_connections,
                    keepalive_timeout=KEEP_ALIVE,
                    ssl=self._ssl,
                    socket_factory=_socket,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"parley/{VERSION}"},
                # Otherwise passwords from ~/.netrc would go to any port of their hosts too.
                trust_env=False,
            )
        return self._session

    def translate(self, error: Exception, url: str) -> ClientError:
        """Return what ``error`` of the HTTP library means to a caller."""
        if self.closed:
            return ConnectionClosed("the connection was closed during the call")
        if isinstance(error, ClientError):
            return error
        import aiohttp

        where = place(url)
        match error:
            case aiohttp.ConnectionTimeoutError():
                return Unreachable(f"no connection to {where} within {self.connect_timeout:g} s")
            case aiohttp.ServerTimeoutError():
                return Disconnected(f"{where} went silent in the middle of a call")
            case TimeoutError():
                return Timeout(f"{where} did not answer in time")
            case aiohttp.ClientConnectorCertificateError():
                return Untrusted(
                    f"the certificate of {where} is not trusted: {error.certificate_error}"
                )
            case aiohttp.ClientConnectorDNSError():
                return Unreachable(f"the host of {where} is not known: {_reason(error)}")
            case aiohttp.ClientConnectorError():
                return Unreachable(f"cannot connect to {where}: {_reason(error)}")
            case aiohttp.ClientHttpProxyError():
                return Unreachable(f"the proxy refuses to connect to {where}: {error.status}")
            case aiohttp.ClientResponseError():
                return Disconnected(f"the answer of {where} is not HTTP: {error.message}")
            case aiohttp.ClientPayloadError():
                return Disconnected(f"the answer of {where} broke off")
            case aiohttp.ClientConnectionError() | OSError():
                return Disconnected(f"the connection to {where} broke: {_reason(error)}")
            case aiohttp.InvalidURL():
                return ClientError(f"{where!r} is not an address of the form http://host/path")
            case ValueError():
                return ClientError(f"the request to {where} cannot be sent: {error}")
            case _:
                return ClientError(f"the call to {where} failed: {_reason(error)}")


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket on which the system looks every minute whether the other side is there.

    A call may wait for hours on a silent connection; the default is to look after two of them.
    """
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Systems differ in which of these they have, and macOS in the name of the first.
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        option = getattr(socket, name, None)
        if option is None and name == "TCP_KEEPIDLE":
            option = getattr(socket, "TCP_KEEPALIVE", None)
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


def _proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for an address."""
    from urllib.request import getproxies, proxy_bypass  # pulls in much, and is seldom needed

    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


def place(url: str) -> str:
    """Return ``url`` without its query and credentials, which may be secret.

    It may be ``host:port`` alone, as gRPC has it.
    """
    try:
        parts = urlsplit(url if "://" in url or url.startswith("/") else f"//{url}")
    except ValueError:
        before, slashes, rest = url.partition("?")[0].partition("//")
        return before + slashes + rest.rpartition("@")[2]
    host = parts.netloc.rpartition("@")[2]
    scheme = f"{parts.scheme}://" if parts.scheme else ""
    return f"{scheme}{host}{parts.path}" if host else parts.path


def _target(url: str, location: str, status: int) -> str:
    """Return where a redirect leads. Raises ``UnexpectedStatus`` for where none is followed to."""
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
        # Asking for a port that is none raises.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UnexpectedStatus(
            f"{place(url)} redirects to {location[:200]!r}, which is no address of the form "
            "https://host/path",
            status=status,
        )
    if parts.scheme == "http" and urlsplit(url).scheme == "https":
        raise UnexpectedStatus(
            f"{place(url)} redirects to {place(target)}, which is not encrypted", status=status
        )
    return target


def is_same_server(url: str, target: str) -> bool:
    """Whether a redirect stays with whom the headers are for: also from HTTP to its HTTPS."""
    try:
        return Origin.of(url).covers(Origin.of(target))
    except ValueError:
        return False


def _reason(error: BaseException) -> str:
    cause: Any = getattr(error, "os_error", None) or error
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and not isinstance(cause, socket.gaierror):
        return os.strerror(number)
    return str(getattr(cause, "strerror", None) or cause) or type(cause).__name__


def _too_large(url: str, limit: int) -> ResponseTooLarge:
    return ResponseTooLarge(f"the answer of {place(url)} is larger than {limit:,} bytes")
