"""The client side of the gRPC binding (specification §10)."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from parley.client.bindings.binding import waits_for_task
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.bindings.request_auth import (
    NOTHING,
    Refusal,
    RequestAuth,
    RequestParameters,
    join_items,
)
from parley.client.errors import (
    AuthenticationRequired,
    ClientError,
    ConnectionClosed,
    Disconnected,
    ResponseTooLarge,
    Timeout,
    UnexpectedStatus,
    Unreachable,
    Untrusted,
)
from parley.client.origin import Origin
from parley.extensions.resumable_streams import number_of
from parley.model.distribution import install_command
from parley.model.errors import InvalidRequestError, UnsupportedOperationError
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.operations import Operation
from parley.model.parts import Message
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.security.egress import Egress
from parley.security.networks import is_loopback
from parley.wire.versions import Dialect

try:
    import grpc

    from parley.wire.protobuf.errors import STATUS_KEY, has_reason, read_status
except ImportError as error:
    raise ImportError(f"gRPC is not installed: {install_command('grpc')}") from error

logger = logging.getLogger(__name__)

# Seconds between keepalive pings. Other implementations may drop clients that ping more often.
_MIN_PING_UNKNOWN_AGENT = 300.0
_MIN_PING = 10.0

_NO_SUCH_SERVICE = re.compile(r"method not found|unknown (?:service|method)", re.IGNORECASE)
_BROKEN = re.compile(r"received rst_stream|stream removed|socket closed|goaway", re.IGNORECASE)
_PROBE = "/grpc.health.v1.Health/Check"

_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")

_State = grpc.ChannelConnectivity


class GrpcTarget(NamedTuple):
    """The address of an interface (``host:port``), with or without TLS, and its query."""

    address: str
    secure: bool
    query: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, url: str, *, insecure: bool = False) -> GrpcTarget:
        """Return the target of a URL: ``host:port``, or an http or https address.

        The scheme decides about TLS. Without a scheme TLS is on, except for loopback addresses and
        for ``insecure`` callers. Raises ``ClientError`` for an invalid address.
        """
        try:
            origin = Origin.of_grpc(url, insecure=insecure)
        except ValueError:
            raise ClientError(
                f"{redacted(url)!r} is not an address of the form host:port"
            ) from None
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        query = urlsplit(url if "://" in url else f"//{url}").query
        return cls(f"{host}:{origin.port}", origin.scheme == "https", tuple(parse_qsl(query)))

    @property
    def host(self) -> str:
        """The host, without brackets."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port."""
        return int(self.address.rpartition(":")[2])

    @property
    def name(self) -> str:
        """The address for gRPC: always a DNS name, never another URI scheme of gRPC."""
        return f"dns:///{quote(self.address, safe='[]:')}"


class GrpcClientBinding:
    """Calls one address over gRPC.

    ``headers`` are sent with every call, as metadata, together with the credentials of ``auth``.
    After a rejection ``auth`` is called again, and the call is repeated if there are new
    credentials. ``timeout`` bounds calls that the agent answers at once; only the caller bounds a
    message that waits for its task. ``idle`` is the silence after which the client sends a
    keepalive ping; agents that may not tolerate pings get one every five minutes at most.
    ``numbered``: the agent numbers stream events on request.

    The first call opens the channel, which belongs to its event loop. Each egress policy has its
    own channel: the client resolves and checks names itself, and passes only addresses to gRPC.
    """

    def __init__(
        self,
        http: HttpTransport,
        url: str,
        *,
        dialect: Dialect,
        headers: Mapping[str, str],
        timeout: float | None,
        idle: float | None,
        numbered: bool,
        peer: str = "",
        auth: RequestAuth | None = None,
    ) -> None:
        self._http = http
        self._auth = auth
        self._target = GrpcTarget.of(url, insecure=http.insecure)
        if http.grpc_tls is not None:
            self._target = self._target._replace(secure=True)
        self._dialect = dialect
        self._codec = dialect.grpc().for_peer(peer)
        entries = {**headers, **dict(self._target.query)}.items()
        self._metadata = tuple(_metadata_entry(name.lower(), value) for name, value in entries)
        self._timeout = timeout
        self._idle = idle
        self._numbered = numbered
        self._channels: dict[Egress | None, Any] = {}
        self._opening = asyncio.Lock()
        self._closed = False

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return the operation's result."""
        path, data = self._path(operation), self._codec.write_request(operation, request)
        timeout = None if waits_for_task(request) else self._timeout
        may_ask = True
        while True:
            given = await self._auth.parameters(request) if self._auth else NOTHING
            metadata = self._call_metadata(context, given)
            rpc = (await self._connected()).unary_unary(path)
            logger.debug("> %s %s (%d bytes)", self._target.address, path, len(data))
            try:
                answer: bytes = await rpc(data, metadata=metadata, timeout=timeout)
            except grpc.aio.AioRpcError as error:
                if may_ask and await self._has_others(error, request, given):
                    may_ask = False
                    continue
                raise self._translate(error) from error
            except asyncio.CancelledError:
                raise self._cancelled_error() from None
            logger.debug("< %s (%d bytes)", path, len(answer))
            return self._codec.read_result(operation, answer)

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield the events of a stream."""
        path, data = self._path(operation), self._codec.write_request(operation, request)
        if self._numbered:
            extensions = context.extensions | {RESUMABLE_STREAMS}
            context = msgspec.structs.replace(context, extensions=extensions)
        may_ask = True
        while True:
            given = await self._auth.parameters(request) if self._auth else NOTHING
            metadata = self._call_metadata(context, given)
            rpc = (await self._connected()).unary_stream(path)
            logger.debug("> %s %s (%d bytes)", self._target.address, path, len(data))
            call = rpc(data, metadata=metadata)
            try:
                async for answer in call:
                    may_ask = False
                    logger.debug("< %s (%d bytes)", path, len(answer))
                    item = self._item(self._codec.read_event(answer))
                    yield item
                    if self._codec.ends_stream(item.event):
                        return
                return
            except grpc.aio.AioRpcError as error:
                if may_ask and await self._has_others(error, request, given):
                    may_ask = False
                    continue
                raise self._translate(error) from error
            except asyncio.CancelledError:
                raise self._cancelled_error() from None
            finally:
                call.cancel()

    async def _has_others(
        self, error: grpc.aio.AioRpcError, request: A2AStruct, given: RequestParameters
    ) -> bool:
        """Return whether new credentials are available for a rejected call."""
        refusal = _refusal_in(error)
        if refusal is None or self._auth is None:
            return False
        return await self._auth.answer(refusal, request, given)

    async def aclose(self) -> None:
        """Close the channel; pending calls fail with ``ConnectionClosed``. Idempotent."""
        self._closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    # -- the channel ---------------------------------------------------------------------------

    async def _connected(self) -> Any:
        """Return the channel once it is connected.

        Only a call on an established connection shows whether it was sent. Raises ``Unreachable``
        and ``ConnectionClosed``.
        """
        if self._closed or self._http.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        egress = self._http.egress
        channel: Any = self._channels.get(egress) or await self._opened(egress)
        state = channel.get_state(try_to_connect=True)
        if state is _State.READY:
            return channel
        timeout = self._http.connect_timeout
        try:
            async with asyncio.timeout(timeout):
                while state in (_State.IDLE, _State.CONNECTING):
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise Unreachable(
                f"no connection to {self._target.address} within {timeout:g} s"
            ) from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            raise self._cancelled_error() from None
        if state is _State.TRANSIENT_FAILURE:
            try:
                await self._raise_connection_error(channel)
            except Unreachable:
                if egress is not None:  # the next call must resolve the name again
                    await self._drop(egress, channel)
                raise
        return channel

    async def _drop(self, egress: Egress, channel: Any) -> None:
        if self._channels.get(egress) == channel:
            del self._channels[egress]
            await channel.close()

    async def _opened(self, egress: Egress | None) -> Any:
        """Return the channel for a policy. Raises ``AddressNotAllowed`` and ``Unreachable``."""
        if egress is None:
            return self._channels.setdefault(None, self._open())
        async with self._opening:
            if egress not in self._channels:
                host, port = self._target.host, self._target.port
                own_proxy = self._proxy()
                if own_proxy:  # the proxy resolves the name and connects
                    self._http.check_host(egress, host, port)
                    opened = self._open()
                else:
                    addresses = await self._http.resolve(egress, host, port)
                    opened = self._open(_pinned(addresses, port))
                if self._closed or self._http.closed:
                    await opened.close()
                    raise ConnectionClosed("this connection was closed; open a new one")
                self._channels[egress] = opened
            return self._channels[egress]

    async def _raise_connection_error(self, channel: Any) -> None:
        """Raise ``Unreachable`` with the reason for the missing connection, unless it is connected.

        gRPC reports the reason only to a call, so this method makes a call without effect.
        """
        try:
            await channel.unary_unary(_PROBE)(b"", timeout=self._http.connect_timeout)
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return
            words = (error.details() or "").rpartition("last error: ")[2].removeprefix("UNKNOWN: ")
            address = self._target.address
            if "CERTIFICATE_VERIFY_FAILED" in words:
                raise Untrusted(f"the certificate of {address} is not trusted") from None
            if "Hostname Verification" in words:
                raise Untrusted(f"the certificate of {address} is for another name") from None
            raise Unreachable(f"cannot connect to {address}: {words}") from None
        except asyncio.CancelledError:
            raise self._cancelled_error() from None

    def _open(self, pinned: str = "") -> Any:
        """Open a channel to checked addresses, or to the target's name."""
        own_proxy = None if pinned else self._proxy()
        options = [
            ("grpc.max_receive_message_length", self._http.max_response),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", int(own_proxy is not None)),
            # The client has its own rules for retries. gRPC's retries would also keep a core busy
            # while a server closes every connection.
            ("grpc.enable_retries", 0),
            # Keeps gRPC's reconnects from being faster than the client's retries.
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.primary_user_agent", "parley"),
        ]
        if self._idle is not None:
            ping = max(self._idle, _MIN_PING if self._numbered else _MIN_PING_UNKNOWN_AGENT)
            options += [
                ("grpc.keepalive_time_ms", int(ping * 1000)),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.max_pings_without_data", 0),
            ]
        name = pinned or self._target.name
        if pinned:
            options += [
                ("grpc.default_authority", self._target.address),
                ("grpc.ssl_target_name_override", self._target.host),
                ("grpc.service_config_disable_resolution", 1),
            ]
        if own_proxy:
            options.append(("grpc.http_proxy", own_proxy))
        if not self._target.secure:
            return grpc.aio.insecure_channel(name, options=options)
        return grpc.aio.secure_channel(name, _credentials(self._http), options=options)

    def _proxy(self) -> str | None:
        """Return the proxy: empty for the environment's proxy, ``None`` for no proxy."""
        if self._http.proxy is None:
            return "" if self._http.trust_env and self._http.egress is None else None
        host = urlsplit(f"//{self._target.address}").hostname or ""
        return None if is_loopback(host) else self._http.proxy

    # -- metadata and errors -------------------------------------------------------------------

    def _path(self, operation: Operation) -> str:
        name = self._codec.names.get(operation.name)
        if name is None:
            raise UnsupportedOperationError(
                f"version {self._dialect.version} of the protocol has no {operation.name} "
                "over gRPC",
                metadata={"operation": operation.name},
            )
        return f"/{self._codec.service}/{name}"

    def _call_metadata(
        self, context: CallContext, given: RequestParameters
    ) -> tuple[tuple[str, str | bytes], ...]:
        ours = {"a2a-version": self._dialect.version}
        if context.extensions:
            ours[self._dialect.extensions_header] = join_items(sorted(context.extensions))
        if context.last_event_id is not None:
            ours["last-event-id"] = context.last_event_id
        ours |= context.trace.headers
        if given is NOTHING:
            return (*(pair for pair in self._metadata if pair[0] not in ours), *ours.items())
        entries = {**given.headers, **given.query}.items()
        theirs = dict(_metadata_entry(name.lower(), value) for name, value in entries)
        known = {**theirs, **ours}
        return (*(pair for pair in self._metadata if pair[0] not in known), *known.items())

    def _item(self, event: Event) -> StreamItem:
        """Return an event with its number from the event's metadata."""
        if not self._numbered or isinstance(event, Message) or event.metadata is None:
            return StreamItem(event)
        seq = number_of(event)
        metadata = {
            name: item for name, item in event.metadata.items() if name != RESUMABLE_STREAMS
        }
        return StreamItem(msgspec.structs.replace(event, metadata=metadata or None), seq)

    def _cancelled_error(self) -> BaseException:
        """Return the error for a call that this side cancelled."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return asyncio.CancelledError()
        return ConnectionClosed("the connection was closed during the call")

    def _translate(self, error: grpc.aio.AioRpcError) -> Exception:
        """Return the error for a failed call."""
        status, words = error.code().name, error.details() or ""
        trailing = dict(error.trailing_metadata() or ())
        details = trailing.get(STATUS_KEY)
        where = self._target.address
        logger.debug("< %s: %s", status, words)
        refusal = _refusal_in(error)
        advice = self._auth.advice(refusal) if refusal and self._auth else ""
        if has_reason(details):
            read = read_status(status, words, details)
            if advice:
                read.message = f"{read.message}; {advice}"
                read.args = (read.message,)
            return read
        match status:
            case "DEADLINE_EXCEEDED":
                return Timeout(f"{where} did not answer in time")
            case "CANCELLED" if self._closed:
                return ConnectionClosed("the connection was closed during the call")
            case "CANCELLED" | "UNAVAILABLE":
                return Disconnected(f"the connection to {where} broke: {words}")
            case "INTERNAL" | "UNKNOWN" if _BROKEN.match(words):
                return Disconnected(f"the connection to {where} broke: {words}")
            case "UNAUTHENTICATED" | "PERMISSION_DENIED":
                refused = status == "PERMISSION_DENIED"
                said = "rejects these credentials" if refused else "wants credentials"
                return AuthenticationRequired(
                    f"{where} {said}" + (f"; {advice}" if advice else ""),
                    status=403 if refused else 401,
                    challenge=refusal.challenge if refusal else "",
                )
            case "RESOURCE_EXHAUSTED" if "larger than max" in words:
                if words.startswith("SERVER"):
                    return InvalidRequestError(f"the request is larger than {where} accepts")
                most = self._http.max_response
                return ResponseTooLarge(f"the answer of {where} is larger than {most:,} bytes")
            case "UNIMPLEMENTED" if _NO_SUCH_SERVICE.match(words):
                return UnexpectedStatus(
                    f"{where} does not have the service {self._codec.service}", status=404
                )
        return read_status(status, words, details)


def _pinned(addresses: list[str], port: int) -> str:
    """Return the target for addresses, which gRPC tries in this order without DNS."""
    if not any(":" in each for each in addresses):
        return "ipv4:" + ",".join(f"{each}:{port}" for each in addresses)
    # A target has one address family: IPv4 addresses are mapped into IPv6.
    mapped = (each if ":" in each else f"::ffff:{each}" for each in addresses)
    return "ipv6:" + ",".join(f"[{each}]:{port}" for each in mapped)


def _refusal_in(error: grpc.aio.AioRpcError) -> Refusal | None:
    """Return the rejection of credentials in a failed call, if it is one."""
    statuses = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403}
    status = statuses.get(error.code().name)
    if status is None:
        return None
    pairs = (*(error.initial_metadata() or ()), *(error.trailing_metadata() or ()))
    challenges = [str(value) for name, value in pairs if name == "www-authenticate"]
    return Refusal(status, ", ".join(challenges))


def _metadata_entry(name: str, value: str) -> tuple[str, str | bytes]:
    """Return a header as metadata. Raises ``ClientError`` if gRPC cannot carry it."""
    if name.endswith("-bin"):
        return name, value.encode()
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise ClientError(
            f"gRPC cannot carry the header {name[:60]}: its name has to be of letters, digits and "
            "_-. alone, and its value of printable ASCII"
        )
    return name, value


def _credentials(http: HttpTransport) -> Any:
    """Return channel credentials with the authorities of HTTP, unless files name others.

    Raises ``ClientError`` if those authorities cannot be read; there is no fallback to others.
    """
    files = http.grpc_tls or http.tls_files
    if files is not None and files.ca is not None and Path(files.ca).is_file():
        roots: bytes | None = Path(files.ca).read_bytes()
    elif http.tls is None and "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH" in os.environ:
        roots = None
    else:
        context = http.tls or ssl.create_default_context()
        held = context.get_ca_certs(binary_form=True)
        roots = "".join(map(ssl.DER_cert_to_PEM_cert, held)).encode() or None
        if roots is None and http.tls is not None:
            raise ClientError(
                "the authorities of this SSLContext cannot be given to gRPC: name them in a file, "
                "with HttpTransport(grpc_tls=GrpcTls(ca=...))"
            )
    cert = key = None
    if files is not None and files.cert is not None:
        cert, key = Path(files.cert).read_bytes(), Path(files.key or files.cert).read_bytes()
    return grpc.ssl_channel_credentials(roots, private_key=key, certificate_chain=cert)
