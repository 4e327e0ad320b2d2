"""The HTTP transport: sends bytes, returns a status, headers and bytes.

The only module of the client that uses the HTTP library, which is imported at the first request.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec

from parley.client.errors import (
    AddressNotAllowed,
    ClientError,
    ConnectionClosed,
    Disconnected,
    ResponseTooLarge,
    Timeout,
    UnexpectedStatus,
    Unreachable,
    Untrusted,
)
from parley.client.origin import (
    PUBLIC_HEADERS,
    Origin,
    check_proxy,
    is_same_server,
    proxy_for,
    redirect_target,
)
from parley.client.origin import redacted as redacted
from parley.model.distribution import VERSION
from parley.security.egress import (
    DENIED,
    Egress,
    ForbiddenAddress,
    ThreadedLookup,
    find_forbidden,
    turn_egress,
)
from parley.security.networks import is_loopback
from parley.security.outbound import guarded_session

if TYPE_CHECKING:
    import ssl

    import aiohttp

    from parley.client.bindings.websocket import OpenSocket

# -- tls --------------------------------------------------------------------------------------


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Authorities and a certificate, as PEM files.

    ``ca`` are the trusted authorities, replacing the system's: a file, or a folder in OpenSSL's
    format. ``cert`` is the client's own certificate with its chain, for servers that require one,
    and ``key`` its key, which may be in the same file. An encrypted key is rejected.

    Raises ``ValueError`` for a key without a certificate.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.cert is None:
            raise ValueError("a key goes with its certificate: give both")

    @property
    def key_file(self) -> str | Path | None:
        """The file of the key."""
        return self.cert if self.key is None else self.key

    def context(self, *, verify: bool = True, with_certificate: bool = False) -> ssl.SSLContext:
        """Return the context of connections. Raises ``ValueError`` for unusable files."""
        import ssl

        ca = None if self.ca is None else Path(self.ca)
        try:
            if ca is not None and ca.is_dir():
                made = ssl.create_default_context(capath=str(ca))
            else:
                made = ssl.create_default_context(cafile=None if ca is None else str(ca))
        except (OSError, ssl.SSLError) as error:
            raise ValueError(
                f"the authorities in {ca} cannot be used: {_file_reason(error)}"
            ) from None
        if not verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        if with_certificate and self.cert is not None:
            try:
                # Without a password function OpenSSL would ask on the terminal.
                made.load_cert_chain(self.cert, self.key, password=lambda: "")
            except (OSError, ssl.SSLError, ValueError) as error:
                raise ValueError(
                    f"the certificate {self.cert} with the key {self.key_file} cannot be used: "
                    f"{_file_reason(error)}; give PEM files that belong together, the key "
                    "unencrypted"
                ) from None
        return made


def _file_reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)


# -- keepalive --------------------------------------------------------------------------------


def keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket with TCP keepalive every minute.

    A call may wait for hours on a silent connection; the default interval is two hours.
    """
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system has all of these options, and macOS has another name for the first.
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        option = getattr(socket, name, None)
        if option is None and name == "TCP_KEEPIDLE":
            option = getattr(socket, "TCP_KEEPALIVE", None)
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


# -- grpc tls ---------------------------------------------------------------------------------


class GrpcTls(msgspec.Struct, frozen=True, kw_only=True):
    """Certificates for gRPC, as PEM files.

    ``ca`` are the trusted authorities, replacing the system's; ``cert`` and ``key`` are the
    client's own certificate, for servers that require one. With a ``GrpcTls`` every connection uses
    TLS.

    Raises ``ValueError`` for a certificate without its key.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("a certificate goes with its key: give both")


# -- http -------------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

MAX_RESPONSE = 64 * 1024 * 1024
MAX_REDIRECTS = 3
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Less than the five seconds after which common servers close an idle connection, so that no request
# is sent on a closing one.
KEEP_ALIVE = 4.0

LARGE = 512 * 1024
"""The size in bytes above which a body is sent in chunks."""

Body = bytes | AsyncIterable[bytes] | None
"""The body of a request. An iterable has a ``Content-Length``, or is sent chunked."""


class Reply(NamedTuple):
    """A complete response. Header names are in lower case; ``url`` is the address after
    redirects."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str


class OpenResponse(ABC):
    """A response whose body is not read yet. Read it once, with ``read`` or ``chunks``.

    ``limit`` is the default maximum of bytes that ``read`` returns.
    """

    def __init__(
        self, status: int, url: object, headers: Iterable[tuple[str, str]], *, limit: int
    ) -> None:
        self.status = status
        self._url = url
        self._limit = limit
        self._fields = headers
        self._headers: dict[str, str] | None = None

    @property
    def url(self) -> str:
        """The address of the server that answers."""
        return str(self._url)

    @property
    def headers(self) -> dict[str, str]:
        """The headers, with names in lower case; computed on demand, as they are rarely needed."""
        if self._headers is None:
            self._headers = {}
            for name, value in self._fields:
                known = self._headers.get(name.lower())
                self._headers[name.lower()] = value if known is None else f"{known}, {value}"
        return self._headers

    async def read(self, limit: int | None = None) -> bytes:
        """Return the whole body.

        Raises ``ResponseTooLarge`` as soon as the body exceeds ``limit``, and the errors of
        ``HttpTransport``.
        """
        limit = self._limit if limit is None else limit
        announced = self.headers.get("content-length", "")
        if announced.isdecimal() and len(announced) < 19 and int(announced) > limit:
            raise _too_large(self.url, limit)
        pieces: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > limit:
                raise _too_large(self.url, limit)
            pieces.append(chunk)
        return b"".join(pieces)

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; an incomplete body raises ``Disconnected``."""


class _NetworkResponse(OpenResponse):
    """A response over a network connection."""

    def __init__(self, response: aiohttp.ClientResponse, http: HttpTransport) -> None:
        super().__init__(
            response.status, response.url, response.headers.items(), limit=http.max_response
        )
        self._content = response.content
        self._http = http

    async def read(self, limit: int | None = None) -> bytes:
        """Return the whole body, without waiting if it has arrived, as is usual."""
        most = self._limit if limit is None else limit
        if self._content.is_eof() and self._content.total_bytes <= most:
            return await self._read_any()
        return await super().read(limit)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; an incomplete body raises ``Disconnected``."""
        while chunk := await self._read_any():
            yield chunk

    async def _read_any(self) -> bytes:
        """Return the bytes that have arrived, or the next bytes; empty at the end."""
        import aiohttp

        try:
            return await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise self._http.translate(error, self.url) from error


class HttpTransport:
    """Connections to HTTP servers: pooled, verified, bounded. An async context manager.

    ``connect_timeout`` bounds connecting, including TLS. ``max_response`` is the maximum size of a
    response in memory, in bytes. ``tls`` has your own authorities or client certificates: a
    ``Tls``, which is used for gRPC too, or an ``SSLContext``, whose certificates gRPC cannot use
    (``grpc_tls``). ``certificate_for`` returns whether the client certificate of a ``Tls`` is
    presented to an origin; the default is to all. ``insecure`` turns certificate verification off.
    ``proxy`` is the address of an HTTP proxy for all hosts except this machine; ``trust_env`` reads
    proxies from the environment, and nothing else: no password from ``~/.netrc``.

    Only ``get`` follows redirects, at most three, and never from an encrypted address to an
    unencrypted one; another server gets no header that may be secret. Cookies are not stored. With
    ``egress`` connections are made only to allowed addresses, ignoring proxies of the environment;
    a call to another address raises ``AddressNotAllowed``. A ``proxy`` connects by itself: then
    only hosts are checked, not the addresses of their names. In an agent's function the policy of
    its server applies too, unless the transport is not ``bound_to_turns``.

    Every method raises ``Unreachable`` when nothing was sent, ``Disconnected`` when the connection
    broke later, ``Timeout``, and ``ConnectionClosed`` after ``close``. A transport belongs to the
    event loop that uses it first. ``closes_with_agent``: a connection that is made with the
    transport closes it.
    """

    closes_with_agent = False
    is_local = False
    """True if requests stay in this process."""

    def __init__(
        self,
        *,
        connect_timeout: float = 10.0,
        max_response: int = MAX_RESPONSE,
        max_connections: int = 1000,
        tls: ssl.SSLContext | Tls | None = None,
        grpc_tls: GrpcTls | None = None,
        insecure: bool = False,
        trust_env: bool = False,
        proxy: str | None = None,
        egress: Egress | None = None,
        bound_to_turns: bool = True,
    ) -> None:
        if insecure:
            logger.warning("TLS certificates are not verified; do not use this in production")
        self.connect_timeout = connect_timeout
        self.max_response = max_response
        self._max_connections = max_connections
        self._certified: ssl.SSLContext | None = None
        self.tls_files: Tls | None = None
        if isinstance(tls, Tls):
            self.tls_files, files = tls, tls
            if files.cert is not None:
                self._certified = files.context(verify=not insecure, with_certificate=True)
            tls = files.context() if files.ca is not None else None
        self._ssl: ssl.SSLContext | bool = False if insecure else (tls or True)
        self.tls = tls
        self.grpc_tls = grpc_tls
        self.certificate_for: Callable[[Origin], bool] | None = None
        self.proxy = None if proxy is None else check_proxy(proxy)
        self.insecure = insecure
        self.trust_env = trust_env
        self._egress = egress
        self._bound_to_turns = bound_to_turns
        self._lookup: ThreadedLookup | None = None
        self._sessions: dict[tuple[Egress | None, bool, bool], aiohttp.ClientSession] = {}
        self._responses: set[aiohttp.ClientResponse] = set()
        self._sockets: set[OpenSocket] = set()
        self.closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def is_unverified(self) -> bool:
        """True if certificates of servers are not verified: any server may impersonate another."""
        if self.is_local:
            return False
        return self.insecure or (self.tls is not None and not self.tls.check_hostname)

    def carries(self, url: str) -> bool:
        """Return whether requests to an address are sent to that address."""
        return True

    def guarded(self, egress: Egress) -> HttpTransport:
        """Return a transport for addresses from foreign data. The caller closes it.

        It trusts the same authorities, but presents no certificate. Addresses that this transport
        may not call are forbidden there too.
        """
        files = self.tls_files
        made = HttpTransport(
            connect_timeout=self.connect_timeout,
            tls=self.tls if files is None else Tls(ca=files.ca),
            insecure=self.insecure,
            proxy=self.proxy,
            egress=egress.within(self._egress),
            bound_to_turns=self._bound_to_turns,
        )
        return made

    @property
    def egress(self) -> Egress | None:
        """The policy for a call made now, ``None`` if all addresses are allowed."""
        of_turn = turn_egress.get() if self._bound_to_turns else None
        return of_turn if self._egress is None else self._egress.within(of_turn)

    async def resolve(self, egress: Egress, host: str, port: int) -> list[str]:
        """Return the addresses to connect to for a host.

        For bindings that make their own connections. Raises ``AddressNotAllowed``, ``Unreachable``.
        """
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            async with asyncio.timeout(self.connect_timeout):
                return await egress.resolve(host, port, self._names())
        except ForbiddenAddress as error:
            raise not_allowed(error, where) from error
        except TimeoutError:
            raise Unreachable(
                f"no connection to {where} within {self.connect_timeout:g} s"
            ) from None
        except OSError as error:
            raise Unreachable(f"the host of {where} is not known: {_reason(error)}") from error

    def check_host(self, egress: Egress, host: str, port: int) -> None:
        """Raise ``AddressNotAllowed`` for a host that is forbidden without a DNS query."""
        try:
            egress.check_host(host, port)
        except ForbiddenAddress as error:
            raise not_allowed(error, f"{host}:{port}") from error

    def _names(self) -> ThreadedLookup:
        if self._lookup is None:
            self._lookup = ThreadedLookup()
        return self._lookup

    async def close(self) -> None:
        """Close all connections; pending calls fail with ``ConnectionClosed``. Idempotent."""
        self.closed = True
        sessions, self._sessions = self._sessions, {}
        # Closing only the session would leave pending reads of bodies blocked for ever.
        for response in self._responses:
            response.content.set_exception(ConnectionResetError("closed by this side"))
        for opened in list(self._sockets):
            opened.abort()
        for session in sessions.values():
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

        ``headers`` are for the server of ``url``. ``attach`` returns the credentials for an
        address. It is called for each redirect until it returns none.
        """
        clock = asyncio.get_running_loop().time
        end = None if timeout is None else clock() + timeout
        current, extra = url, attach(url) if attach is not None else {}
        for _ in range(MAX_REDIRECTS + 1):
            left = None if end is None else max(end - clock(), 0.001)
            async with self.open(
                "GET", current, {**headers, **extra}, None, timeout=left
            ) as opened:
                status, location = opened.status, opened.headers.get("location")
                if status not in REDIRECTS or location is None:
                    return Reply(status, opened.headers, await opened.read(limit), opened.url)
            target = redirect_target(opened.url, location, status)
            if not is_same_server(opened.url, target):
                headers = {n: v for n, v in headers.items() if n.lower() in PUBLIC_HEADERS}
            # No credentials are sent after a foreign server: a redirect back may be an attack.
            current, extra = target, attach(target) if attach is not None and extra else {}
        raise UnexpectedStatus(
            f"{redacted(url)} redirects more than {MAX_REDIRECTS} times", status=status
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
        """Send a request and return the complete response, all within ``timeout``."""
        async with self.open(method, url, headers, body, timeout=timeout) as answer:
            return Reply(answer.status, answer.headers, await answer.read(), answer.url)

    def open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body,
        *,
        timeout: float | None = None,
        idle: float | None = None,
    ) -> AbstractAsyncContextManager[OpenResponse]:
        """Send a request and yield the response as soon as its headers have arrived.

        ``idle`` bounds the time without a byte (``Disconnected``), ``timeout`` the whole call
        (``Timeout``). Redirects are not followed. Leaving the block early closes the connection.
        """
        return _Opening(self, method, url, headers, body, timeout, idle)

    async def _request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body,
        timeout: float | None,
        idle: float | None,
    ) -> aiohttp.ClientResponse:
        if self.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        import aiohttp

        try:
            response = await self._session_for(url).request(
                method,
                url,
                # A large body in one piece would block the event loop, and the library warns.
                data=io.BytesIO(body) if isinstance(body, bytes) and len(body) > LARGE else body,
                headers=headers,
                timeout=_client_timeout(timeout, self.connect_timeout, idle),
                allow_redirects=False,
                proxy=self._proxy_of(url),
                **self._certificate_of(url),
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self.translate(error, url) from error
        self._responses.add(response)
        return response

    def _release(self, response: aiohttp.ClientResponse) -> None:
        self._responses.discard(response)
        if not response.closed:  # the body is incomplete: close its connection
            response.release()

    async def open_socket(
        self, url: str, headers: Mapping[str, str], *, handshake: float, **options: Any
    ) -> OpenSocket:
        """Open a WebSocket, with options of ``websocket.open_socket``; the caller closes it.

        ``handshake`` is the time for the server's answer after connecting. Redirects are not
        followed.
        """
        if self.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        from parley.client.bindings.websocket import open_socket

        try:
            opened = await open_socket(
                self._session_for(url, for_sockets=True),
                url,
                headers,
                shown=redacted(url),
                handshake=self.connect_timeout + handshake,
                options={"proxy": self._proxy_of(url), **self._certificate_of(url)},
                on_close=self._sockets.discard,
                translate=self.translate,
                **options,
            )
        except (OSError, ValueError) as error:
            raise self.translate(error, url) from error
        if self.closed:
            opened.abort()
            raise ConnectionClosed("the connection was closed during the call")
        self._sockets.add(opened)
        return opened

    def _proxy_of(self, url: str) -> str | None:
        if self.proxy is not None:
            return None if is_loopback(urlsplit(url).hostname or "") else self.proxy
        return proxy_for(url) if self.trust_env and self.egress is None else None

    def _certificate_of(self, url: str) -> dict[str, Any]:
        """Return the options of a request that may present the client's certificate."""
        if self._certified is None or not url.lower().startswith("https:"):
            return {}
        if self.certificate_for is not None and not self.certificate_for(Origin.of(url)):
            return {}
        return {"ssl": self._certified}

    def _session_for(self, url: str, *, for_sockets: bool = False) -> aiohttp.ClientSession:
        """Return the session for an address. Sessions for WebSockets reject redirects.

        Raises ``ForbiddenAddress`` for a host that is forbidden without a DNS query.
        """
        egress, is_trusted = self.egress, False
        if egress is not None:
            origin = Origin.of(url)
            egress.check_host(origin.host, origin.port)
            is_trusted = egress.trusts(origin.host)
            if self.proxy is not None and not is_loopback(origin.host):
                egress = None
        session = self._sessions.get((egress, is_trusted, for_sockets))
        if session is None:
            more: dict[str, Any] = {}
            if for_sockets:
                from parley.client.bindings.websocket import session_options

                more = session_options(redacted, self.connect_timeout)
            session = self._sessions[egress, is_trusted, for_sockets] = guarded_session(
                egress,
                trusted=is_trusted,
                resolver=None if egress is None else self._names(),
                options={"headers": {"User-Agent": f"parley/{VERSION}"}, **more},
                limit=self._max_connections,
                keepalive_timeout=KEEP_ALIVE,
                ssl=self._ssl,
                socket_factory=keepalive_socket,
            )
        return session

    def translate(self, error: Exception, url: str) -> ClientError:
        """Return the ``ClientError`` for an error of the HTTP library."""
        if self.closed:
            return ConnectionClosed("the connection was closed during the call")
        if isinstance(error, ClientError):
            return error
        import aiohttp

        where = redacted(url)
        forbidden = find_forbidden(error)
        if forbidden is not None:
            return not_allowed(forbidden, where)
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
                return Unreachable(f"the proxy rejects the connection to {where}: {error.status}")
            case aiohttp.ClientResponseError():
                return Disconnected(f"the answer of {where} is not HTTP: {error.message}")
            case aiohttp.ClientPayloadError():
                return Disconnected(f"the answer of {where} broke off")
            case aiohttp.ServerDisconnectedError():
                return Disconnected(f"{where} closed the connection before its answer")
            case aiohttp.ClientConnectionError() | OSError():
                return Disconnected(f"the connection to {where} broke: {_reason(error)}")
            case aiohttp.InvalidURL():
                return ClientError(f"{where!r} is not an address of the form http://host/path")
            case ValueError():
                return ClientError(f"the request to {where} cannot be sent: {error}")
            case _:
                return ClientError(f"the call to {where} failed: {_reason(error)}")


class NamedTransports:
    """The transports for addresses on a card, other than ``own``, which fetched the card."""

    def __init__(self, own: HttpTransport) -> None:
        self.own = own
        self._network: HttpTransport | None = None
        self._guarded: HttpTransport | None = None

    def over_network(self, url: str) -> HttpTransport:
        """Return ``own``, or a network transport if ``own`` is local and does not serve ``url``."""
        if self.own.carries(url):
            return self.own
        if self._network is None:
            self._network = HttpTransport(connect_timeout=self.own.connect_timeout)
        return self._network

    def guarded(self, http: HttpTransport, egress: Egress) -> HttpTransport:
        """Return the guarded transport for ``http`` and ``egress``, which is made once."""
        if self._guarded is None:
            self._guarded = http.guarded(egress)
        return self._guarded

    async def aclose(self) -> None:
        """Close all transports except ``own``. Idempotent."""
        for transport in (self._guarded, self._network):
            if transport is not None:
                await transport.close()


class _Opening:
    """A context manager that sends a request on entry."""

    __slots__ = ("_http", "_request", "_response")

    def __init__(self, http: HttpTransport, *request: Any) -> None:
        self._http = http
        self._request = request

    async def __aenter__(self) -> OpenResponse:
        self._response = await self._http._request(*self._request)
        return _NetworkResponse(self._response, self._http)

    async def __aexit__(self, *error: object) -> None:
        self._http._release(self._response)


@lru_cache(maxsize=64)
def _client_timeout(
    total: float | None, connect: float, idle: float | None
) -> aiohttp.ClientTimeout:
    import aiohttp

    return aiohttp.ClientTimeout(total=total, connect=connect, sock_read=idle)


def not_allowed(error: ForbiddenAddress, where: str) -> AddressNotAllowed:
    """Return the error for an address that a policy forbids."""
    if error.kind == DENIED:
        return AddressNotAllowed(f"{where} is {error.where}: it is on a deny-list")
    listed = f'["{error.place}"]'
    option = f"{error.option}={listed}" if error.option else f"egress=Egress.of(allow={listed})"
    return AddressNotAllowed(
        f"{where} is {error.where}, which is not allowed; to allow it, name its host or network, "
        f"as in {option}"
    )


def _reason(error: BaseException) -> str:
    cause: Any = getattr(error, "os_error", None) or error
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and not isinstance(cause, socket.gaierror):
        return os.strerror(number)
    return str(getattr(cause, "strerror", None) or cause) or type(cause).__name__


def _too_large(url: str, limit: int) -> ResponseTooLarge:
    return ResponseTooLarge(f"the answer of {redacted(url)} is larger than {limit:,} bytes")
