"""The gRPC binding, calling (specification §10)."""

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

from parley.client.bindings.http import HttpTransport, place
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
from parley.client.headers import joined
from parley.client.origin import Origin
from parley.extensions.resumable_streams import number_of
from parley.model.distribution import install_command
from parley.model.errors import InvalidRequestError, UnsupportedOperationError
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.operations import Operation
from parley.model.parts import Message
from parley.model.requests import SendMessageRequest
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import Event
from parley.wire.dialect import Dialect

try:
    import grpc

    from parley.wire.protobuf.errors import STATUS_KEY, has_reason, read_status
except ImportError as error:
    raise ImportError(f"gRPC is not installed: {install_command('grpc')}") from error

logger = logging.getLogger(__name__)

# Servers of others may take clients that ask more often whether they are there for a nuisance.
_POLITE_PING = 300.0
_SOONEST_PING = 10.0

_NO_SUCH_SERVICE = re.compile(r"method not found|unknown (?:service|method)", re.IGNORECASE)
_BROKEN = re.compile(r"received rst_stream|stream removed|socket closed|goaway", re.IGNORECASE)
_PROBE = "/grpc.health.v1.Health/Check"

_NAME = re.compile(r"[0-9a-z_.-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")

_State = grpc.ChannelConnectivity


class GrpcTarget(NamedTuple):
    """Where to call: ``host:port``, with TLS or without, and what goes with every call."""

    address: str
    secure: bool
    query: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, url: str, *, insecure: bool = False) -> GrpcTarget:
        """Return what a URL means: ``host:port``, or one with http or https.

        The scheme says whether there is TLS. Without one there is, but for this machine itself and
        for callers that are ``insecure``. Raises ``ClientError`` for what is no address.
        """
        try:
            origin = Origin.of_grpc(url, insecure=insecure)
        except ValueError:
            raise ClientError(f"{place(url)!r} is not an address of the form host:port") from None
        named = f"[{origin.host}]" if ":" in origin.host else origin.host
        query = urlsplit(url if "://" in url else f"//{url}").query
        return cls(f"{named}:{origin.port}", origin.scheme == "https", tuple(parse_qsl(query)))

    @property
    def name(self) -> str:
        """The address as gRPC takes it: a host for DNS, whatever schemes gRPC has besides."""
        return f"dns:///{quote(self.address, safe='[]:')}"


class GrpcBinding:
    """Calls one address over gRPC.

    ``headers`` (with credentials) go with every call, as metadata. ``timeout`` bounds calls that
    the agent answers at once; a message that waits for its task is bounded by its caller alone.
    ``idle`` is the silence after which the other side is asked whether it is there; agents that
    are not known to take that well are asked every five minutes at most. ``numbered``: the agent
    numbers the events of streams for those who ask for it.

    The channel is made by the first call, and belongs to its event loop.
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
    ) -> None:
        self._http = http
        self._target = GrpcTarget.of(url, insecure=http.insecure)
        if http.grpc_tls is not None:
            self._target = self._target._replace(secure=True)
        self._dialect = dialect
        self._codec = dialect.grpc().for_peer(peer)
        given = {**headers, **dict(self._target.query)}
        self._metadata = tuple(_metadatum(name.lower(), value) for name, value in given.items())
        self._timeout = timeout
        self._idle = idle
        self._numbered = numbered
        self._channel: Any = None
        self._closed = False

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return what the operation answers."""
        path, data = self._path(operation), self._codec.write_request(operation, request)
        metadata = self._parameters(context)
        timeout = None if _waits(request) else self._timeout
        rpc = (await self._connected()).unary_unary(path)
        logger.debug("> %s %s (%d bytes)", self._target.address, path, len(data))
        try:
            answer: bytes = await rpc(data, metadata=metadata, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise self._translate(error) from error
        except asyncio.CancelledError:
            raise self._given_up() from None
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
        metadata = self._parameters(context)
        rpc = (await self._connected()).unary_stream(path)
        logger.debug("> %s %s (%d bytes)", self._target.address, path, len(data))
        call = rpc(data, metadata=metadata)
        try:
            async for answer in call:
                logger.debug("< %s (%d bytes)", path, len(answer))
                item = self._item(self._codec.read_event(answer))
                yield item
                if self._codec.ends_stream(item.event):
                    return
        except grpc.aio.AioRpcError as error:
            raise self._translate(error) from error
        except asyncio.CancelledError:
            raise self._given_up() from None
        finally:
            call.cancel()

    async def aclose(self) -> None:
        """Close the channel; calls under way fail with ``ConnectionClosed``. Idempotent."""
        self._closed = True
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    # -- the channel ---------------------------------------------------------------------------

    async def _connected(self) -> Any:
        """Return the channel when it is connected.

        Whether a call has left is certain only for one that was made on a connection.
        Raises ``Unreachable`` and ``ConnectionClosed``.
        """
        if self._closed or self._http.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        if self._channel is None:
            self._channel = self._open()
        channel = self._channel
        state = channel.get_state(try_to_connect=True)
        if state is _State.READY:
            return channel
        patience = self._http.connect_timeout
        try:
            async with asyncio.timeout(patience):
                while state in (_State.IDLE, _State.CONNECTING):
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            raise Unreachable(
                f"no connection to {self._target.address} within {patience:g} s"
            ) from None
        except (asyncio.CancelledError, grpc.aio.UsageError):
            raise self._given_up() from None
        if state is _State.TRANSIENT_FAILURE:
            await self._find_out_why(channel)
        return channel

    async def _find_out_why(self, channel: Any) -> None:
        """Raise ``Unreachable`` with the reason why there is no connection, unless there is one.

        Only a call is told the reason, so one is made that changes nothing.
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
            raise Unreachable(f"cannot connect to {address}: {words}") from None
        except asyncio.CancelledError:
            raise self._given_up() from None

    def _open(self) -> Any:
        options = [
            ("grpc.max_receive_message_length", self._http.max_response),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", int(self._http.trust_env)),
            # A server that is back is found as soon as repeated calls would find it.
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2_000),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.primary_user_agent", "parley"),
        ]
        if self._idle is not None:
            ping = max(self._idle, _SOONEST_PING if self._numbered else _POLITE_PING)
            options += [
                ("grpc.keepalive_time_ms", int(ping * 1000)),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.max_pings_without_data", 0),
            ]
        name = self._target.name
        if not self._target.secure:
            return grpc.aio.insecure_channel(name, options=options)
        return grpc.aio.secure_channel(name, _credentials(self._http), options=options)

    # -- what is sent and what comes back ------------------------------------------------------

    def _path(self, operation: Operation) -> str:
        name = self._codec.names.get(operation.name)
        if name is None:
            raise UnsupportedOperationError(
                f"version {self._dialect.version} of the protocol has no {operation.name} "
                "over gRPC",
                metadata={"operation": operation.name},
            )
        return f"/{self._codec.service}/{name}"

    def _parameters(self, context: CallContext) -> tuple[tuple[str, str | bytes], ...]:
        ours = {"a2a-version": self._dialect.version}
        if context.extensions:
            ours[self._dialect.extensions_header] = joined(sorted(context.extensions))
        if context.last_event_id is not None:
            ours["last-event-id"] = context.last_event_id
        if context.traceparent:
            ours["traceparent"] = context.traceparent
        return (*(pair for pair in self._metadata if pair[0] not in ours), *ours.items())

    def _item(self, event: Event) -> StreamItem:
        """Return an event with its number, which the agent put into its metadata."""
        if not self._numbered or isinstance(event, Message) or event.metadata is None:
            return StreamItem(event)
        seq = number_of(event)
        metadata = {
            name: item for name, item in event.metadata.items() if name != RESUMABLE_STREAMS
        }
        return StreamItem(msgspec.structs.replace(event, metadata=metadata or None), seq)

    def _given_up(self) -> BaseException:
        """Return what it means that a call was cancelled on this side."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return asyncio.CancelledError()
        return ConnectionClosed("the connection was closed during the call")

    def _translate(self, error: grpc.aio.AioRpcError) -> Exception:
        """Return what the end of a call means to a caller."""
        status, words = error.code().name, error.details() or ""
        trailing = dict(error.trailing_metadata() or ())
        details = trailing.get(STATUS_KEY)
        where = self._target.address
        logger.debug("< %s: %s", status, words)
        if has_reason(details):
            return read_status(status, words, details)
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
                return AuthenticationRequired(
                    f"{where} refuses these credentials"
                    if refused
                    else f"{where} wants credentials",
                    status=403 if refused else 401,
                    challenge=str(trailing.get("www-authenticate", "")),
                )
            case "RESOURCE_EXHAUSTED" if "larger than max" in words:
                if words.startswith("SERVER"):
                    return InvalidRequestError(f"the request is larger than {where} takes")
                most = self._http.max_response
                return ResponseTooLarge(f"the answer of {where} is larger than {most:,} bytes")
            case "UNIMPLEMENTED" if _NO_SUCH_SERVICE.match(words):
                return UnexpectedStatus(
                    f"{where} does not have the service {self._codec.service}", status=404
                )
        return read_status(status, words, details)


def _metadatum(name: str, value: str) -> tuple[str, str | bytes]:
    """Return a header as metadata. Raises ``ClientError`` for one that gRPC does not carry."""
    if name.endswith("-bin"):
        return name, value.encode()
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise ClientError(
            f"gRPC cannot carry the header {name[:60]}: its name has to be of letters, digits and "
            "_-. alone, and its value of printable ASCII"
        )
    return name, value


def _waits(request: A2AStruct) -> bool:
    """Whether the agent may answer only when a task has come to its end."""
    if not isinstance(request, SendMessageRequest):
        return False
    return request.configuration is None or not request.configuration.return_immediately


def _credentials(http: HttpTransport) -> Any:
    """Return credentials that trust whom HTTP trusts, unless files say otherwise.

    Raises ``ClientError`` where that cannot be found out: nobody else is trusted instead.
    """
    files = http.grpc_tls
    if files is not None and files.ca is not None:
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
    if files is not None and files.cert is not None and files.key is not None:
        cert, key = Path(files.cert).read_bytes(), Path(files.key).read_bytes()
    return grpc.ssl_channel_credentials(roots, private_key=key, certificate_chain=cert)
