"""The gRPC server: one port for all versions and agents (specification §10).

It also serves health (grpc.health.v1) and reflection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio

from parley.model.operations import Operation
from parley.security.networks import is_loopback
from parley.server.app import App
from parley.server.grpc.call import (
    AgentRouter,
    GrpcCall,
    GrpcGate,
    GrpcLimits,
    HttpServer,
    VersionCodec,
)
from parley.server.lifecycle import Lifecycle
from parley.server.settings import GrpcOptions, Settings, TlsOptions
from parley.server.sockets import ListenError, most_connections
from parley.server.tls import ReloadingTls
from parley.wire import versions
from parley.wire.protobuf.messages import POOL

# -- health -----------------------------------------------------------------------------------

HEALTH_SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_Status = health_pb2.HealthCheckResponse

_POLL_SECONDS = 1.0
"""The interval at which Watch checks for a changed status."""


class Health:
    """The health of ``services``: not serving while the server drains, or without its store."""

    def __init__(
        self, lifecycle: Lifecycle, services: Collection[str], limits: GrpcLimits, gate: GrpcGate
    ) -> None:
        self._gate = gate
        self._lifecycle = lifecycle
        self._limits = limits
        self._services = ("", *services)
        self._changed = asyncio.Event()

    def handler(self) -> Any:
        """Return the service; older releases of grpcio-health-checking have no ``List``."""
        methods = {
            "Check": grpc.stream_unary_rpc_method_handler(self._check),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }
        if hasattr(health_pb2, "HealthListResponse"):
            methods["List"] = grpc.stream_unary_rpc_method_handler(self._list)
        return grpc.method_handlers_generic_handler(HEALTH_SERVICE, methods)

    def drain(self) -> None:
        """Report to watchers that the server ends."""
        self._changed.set()

    async def _check(self, messages: object, context: Any) -> bytes:
        if await self._service(context) not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service here")
        return _bytes(_Status(status=self._status))

    async def _list(self, messages: object, context: Any) -> bytes:
        await self._service(context)
        status = _Status(status=self._status)
        statuses = dict.fromkeys(self._services, status)
        return _bytes(health_pb2.HealthListResponse(statuses=statuses))

    async def _watch(self, messages: object, context: Any) -> AsyncIterator[bytes]:
        is_known = await self._service(context) in self._services
        sent = None
        while True:
            is_over = self._changed.is_set()
            status = self._status if is_known or is_over else _Status.SERVICE_UNKNOWN
            if status != sent:
                sent = status
                yield _bytes(_Status(status=status))
            if is_over:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._changed.wait()

    async def _service(self, context: Any) -> str:
        """Return the name of the service that a call asks about; empty for the server."""
        await self._gate.admit(context)
        data = await self._limits.receive_or_abort(context)
        return str(health_pb2.HealthCheckRequest.FromString(data or b"").service)

    @property
    def _status(self) -> int:
        lifecycle = self._lifecycle
        is_over = lifecycle.draining or self._changed.is_set()
        is_serving = not (is_over or lifecycle.unavailable_reason)
        return int(_Status.SERVING if is_serving else _Status.NOT_SERVING)


# -- reflection -------------------------------------------------------------------------------

REFLECTION_SERVICE = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
# The two versions differ only in name; tools ask for either.
REFLECTION_SERVICES = (REFLECTION_SERVICE.replace("v1alpha", "v1"), REFLECTION_SERVICE)

for _file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
    POOL.AddSerializedFile(_file.serialized_pb)


def _reflection_handlers(
    services: Collection[str], limits: GrpcLimits, gate: GrpcGate
) -> tuple[Any, ...]:
    """Return the service that describes ``services`` and itself, in each of its versions."""
    servicer = aio.ReflectionServicer((*services, REFLECTION_SERVICE), pool=POOL)

    async def questions(context: Any) -> AsyncIterator[Any]:
        while (data := await limits.receive_or_abort(context)) is not None:
            try:
                yield reflection_pb2.ServerReflectionRequest.FromString(data)
            except DecodeError:
                yield reflection_pb2.ServerReflectionRequest()  # an empty request

    async def info(requests: object, context: Any) -> AsyncIterator[bytes]:
        await gate.admit(context)
        async for answer in servicer.ServerReflectionInfo(questions(context), context):
            yield _bytes(answer)

    handler = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(info)}
    return tuple(
        grpc.method_handlers_generic_handler(name, handler) for name in REFLECTION_SERVICES
    )


def _bytes(message: Any) -> bytes:
    return message.SerializeToString()  # type: ignore[no-any-return]


# -- server -----------------------------------------------------------------------------------

_log = logging.getLogger("parley.server")

# The shortest interval of keep-alive pings that a client may have.
_MIN_PING_SECONDS = 5

# Calls other than streams and blocking sends, which have limits of their own.
_OTHER_CALLS = 5000


@asynccontextmanager
async def serving_grpc(
    app: App,
    options: GrpcOptions,
    *,
    host: str,
    address: str,
    grace: float,
    tls: ReloadingTls | None = None,
) -> AsyncIterator[str]:
    """Serve an app's agents over gRPC within the context, and yield its ``host:port``.

    ``host`` is the host of HTTP, and of gRPC unless the options have one; ``address`` is the URL of
    the app over HTTP on this machine, and ``tls`` its TLS, which gRPC uses too unless the options
    have another certificate. At the end, running calls have ``grace`` seconds. The caller starts
    and stops the app.

    Raises ``ListenError``.
    """
    if not app.agents:
        raise ListenError("there is no agent to serve over gRPC")
    parts = urlsplit(address)
    http = HttpServer(parts.scheme, (parts.hostname or "", parts.port or 0))
    own = _own_tls(options)
    if own is not None:
        app.lifecycle.on_reload(own.reload)
    settings = next(iter(app.agents.values())).settings
    limits = GrpcLimits(settings, app.request_bytes, app.unsent_bytes)
    agents = AgentRouter(app.agents, limits, app.identify, app.gate("agents"))
    supported = [
        VersionCodec(each, each.grpc())
        for each in map(versions.dialect, versions.SUPPORTED_VERSIONS)
    ]
    services = [each.codec.service for each in supported]
    health_gate = GrpcGate(app.gate("health"), http, HEALTH_SERVICE)
    docs_gate = GrpcGate(app.gate("docs"), http, REFLECTION_SERVICES[0])
    health = Health(app.lifecycle, services, limits, health_gate)
    server = grpc.aio.server(
        options=_channel(settings, shared=options.shared),
        maximum_concurrent_rpcs=(
            settings.max_streams + settings.max_blocking_requests + _OTHER_CALLS
        ),
    )
    server.add_generic_rpc_handlers(
        (
            *(_handler(agents, version, http) for version in supported),
            health.handler(),
            *_reflection_handlers((*services, HEALTH_SERVICE), limits, docs_gate),
        )
    )
    host = options.host if options.host is not None else host
    port = _bind(server, host, options.port, own or tls)
    unregister = app.lifecycle.on_drain(health.drain)
    try:
        await server.start()
        app.grpc.port = port
        if own is None and tls is None and not is_loopback(host):
            _log.warning("gRPC on %s is not encrypted: give it a certificate and a key", host)
        async with contextlib.nullcontext() if own is None else own.watching():
            yield app.grpc.beside(address)
    except asyncio.CancelledError:  # the owner of the server no longer waits
        grace = 0
        raise
    finally:
        app.grpc.port = None
        unregister()
        health.drain()
        try:
            await server.stop(grace)
        except asyncio.CancelledError:
            await server.stop(None)
            raise


def _handler(agents: AgentRouter, version: VersionCodec, http: HttpServer) -> Any:
    """Return the service of one version, with requests and answers as bytes.

    All requests are streams for gRPC, so that ``GrpcLimits`` can bound the time of a message.
    """
    handlers = {
        name: (
            grpc.stream_stream_rpc_method_handler(_stream(agents, version, operation, http))
            if operation.streaming
            else grpc.stream_unary_rpc_method_handler(_answer(agents, version, operation, http))
        )
        for name, operation in version.codec.methods.items()
    }
    return grpc.method_handlers_generic_handler(version.codec.service, handlers)


def _answer(
    agents: AgentRouter, version: VersionCodec, operation: Operation, http: HttpServer
) -> Callable[[object, Any], Awaitable[bytes]]:
    async def answer(messages: object, context: Any) -> bytes:
        return await GrpcCall(agents, version, operation, context, http).answer()

    return answer


def _stream(
    agents: AgentRouter, version: VersionCodec, operation: Operation, http: HttpServer
) -> Callable[[object, Any], Awaitable[None]]:
    async def stream(messages: object, context: Any) -> None:
        await GrpcCall(agents, version, operation, context, http).stream()

    return stream


def _channel(settings: Settings, *, shared: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),
        (
            "grpc.max_allowed_incoming_connections",
            min(settings.max_connections, most_connections(kinds=2)),
        ),
        ("grpc.server_handshake_timeout_ms", int(settings.head_timeout * 1000)),
        ("grpc.keepalive_time_ms", int(settings.keep_alive * 1000)),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_PING_SECONDS * 1000),
        ("grpc.so_reuseport", int(shared)),  # never share the port of another server
    ]


def _bind(server: Any, host: str, port: int, tls: ReloadingTls | None) -> int:
    if not 0 <= port <= 65535:
        raise ListenError(f"{port} is no port: they go from 1 to 65535, and 0 takes a free one")
    address = f"{_shown(host) or '[::]'}:{port}"
    try:
        if tls is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, _credentials(tls))
    except RuntimeError:
        bound = 0
    if not bound:
        raise ListenError(
            f"cannot listen for gRPC on port {port} of {host}: end what listens there, or "
            "choose another port (0 takes a free one)"
        )
    return int(bound)


def _own_tls(options: GrpcOptions) -> ReloadingTls | None:
    """Return the TLS that is for gRPC alone. Raises ``ListenError``."""
    if options.cert is None or options.key is None:
        return None
    return ReloadingTls(TlsOptions(cert=options.cert, key=options.key, client_ca=options.client_ca))


def _credentials(tls: ReloadingTls) -> Any:
    """Return credentials that follow the files of ``tls``: gRPC asks for them at each handshake.

    gRPC does not support optional client certificates: it requires one, or asks for none.
    """
    is_required = tls.callers == "required"
    used = tls.files

    def configuration() -> Any:
        roots = used.client_ca if is_required else None
        return grpc.ssl_server_certificate_configuration([(used.key, used.cert)], roots)

    def changed() -> Any:
        nonlocal used
        if tls.files is used:
            return None
        used = tls.files
        return configuration()

    return grpc.dynamic_ssl_server_credentials(configuration(), changed, is_required)


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
