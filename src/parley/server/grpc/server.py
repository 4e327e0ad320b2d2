"""The gRPC server: one port for all versions and agents (specification §10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc

from parley.model.operations import Operation
from parley.security.loopback import is_loopback
from parley.server.app import App
from parley.server.grpc.call import AgentRouter, GrpcCall, VersionCodec
from parley.server.grpc.health import SERVICE as HEALTH
from parley.server.grpc.health import Health
from parley.server.grpc.limits import GrpcLimits
from parley.server.grpc.options import GrpcOptions
from parley.server.grpc.reflection import Reflection
from parley.server.settings import Settings
from parley.server.sockets import ListenError, most_connections
from parley.wire import versions

_log = logging.getLogger("parley.server")

# The shortest interval of keep-alive pings that a client may have.
_MIN_PING_SECONDS = 5

# Calls besides those with limits of their own: streams, and blocking sends.
_OTHER_CALLS = 5000


@asynccontextmanager
async def serving_grpc(
    app: App, options: GrpcOptions, *, host: str, address: str, grace: float
) -> AsyncIterator[str]:
    """Serve an app's agents over gRPC within the context, and yield its ``host:port``.

    ``host`` is that of HTTP, and of gRPC unless the options have one; ``address`` is the URL of
    the app over HTTP on this machine. At the end, running calls have ``grace`` seconds. The caller
    starts and stops the app.

    Raises ``ListenError``.
    """
    if not app.agents:
        raise ListenError("there is no agent to serve over gRPC")
    parts = urlsplit(address)
    http = (parts.hostname or "", parts.port or 0)
    settings = next(iter(app.agents.values())).settings
    limits = GrpcLimits(settings, app.request_bytes, app.unsent_bytes)
    agents = AgentRouter(app.agents, limits, app.identify)
    supported = [
        VersionCodec(each, each.grpc())
        for each in map(versions.dialect, versions.SUPPORTED_VERSIONS)
    ]
    services = [each.codec.service for each in supported]
    health = Health(app.lifecycle, services, limits)
    reflection = Reflection(
        (*services, HEALTH), [*(each.codec.pool for each in supported), health.pool], limits
    )
    server = grpc.aio.server(
        options=_channel(settings),
        maximum_concurrent_rpcs=(
            settings.max_streams + settings.max_blocking_requests + _OTHER_CALLS
        ),
    )
    server.add_generic_rpc_handlers(
        (
            *(_handler(agents, version, http) for version in supported),
            health.handler(),
            *reflection.handlers(),
        )
    )
    host = options.host if options.host is not None else host
    port = _bind(server, host, options)
    unregister = app.lifecycle.on_drain(health.drain)
    try:
        await server.start()
        app.grpc.port = port
        if options.cert is None and not is_loopback(host):
            _log.warning("gRPC on %s is not encrypted: give it a certificate and a key", host)
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


def _handler(agents: AgentRouter, version: VersionCodec, http: tuple[str, int]) -> Any:
    """Return the service of one version, with requests and answers as bytes.

    To gRPC all requests are streams, so that ``GrpcLimits`` bounds how long a message takes.
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
    agents: AgentRouter, version: VersionCodec, operation: Operation, http: tuple[str, int]
) -> Callable[[object, Any], Awaitable[bytes]]:
    async def answer(messages: object, context: Any) -> bytes:
        return await GrpcCall(agents, version, operation, context, http).answer()

    return answer


def _stream(
    agents: AgentRouter, version: VersionCodec, operation: Operation, http: tuple[str, int]
) -> Callable[[object, Any], Awaitable[None]]:
    async def stream(messages: object, context: Any) -> None:
        await GrpcCall(agents, version, operation, context, http).stream()

    return stream


def _channel(settings: Settings) -> list[tuple[str, int]]:
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
        ("grpc.so_reuseport", 0),  # never share the port of another server
    ]


def _bind(server: Any, host: str, options: GrpcOptions) -> int:
    if not 0 <= options.port <= 65535:
        raise ListenError(
            f"{options.port} is no port: they go from 1 to 65535, and 0 takes a free one"
        )
    address = f"{_shown(host) or '[::]'}:{options.port}"
    credentials = _credentials(options)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if not port:
        raise ListenError(
            f"cannot listen for gRPC on port {options.port} of {host}: end what listens there, or "
            "choose another port (0 takes a free one)"
        )
    return int(port)


def _credentials(options: GrpcOptions) -> Any:
    if options.cert is None or options.key is None:
        return None
    try:
        key, cert = Path(options.key).read_bytes(), Path(options.cert).read_bytes()
        authorities = Path(options.client_ca).read_bytes() if options.client_ca else None
    except OSError as error:
        raise ListenError(f"the certificate for gRPC cannot be read: {error}") from None
    return grpc.ssl_server_credentials(
        [(key, cert)], root_certificates=authorities, require_client_auth=authorities is not None
    )


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
