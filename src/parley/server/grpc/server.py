"""The gRPC server: one port for all versions and agents (specification §10).

It also serves health (grpc.health.v1) and reflection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from parley.model.errors import InvalidRequestError
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
from parley.wire.protobuf.errors import CODES
from parley.wire.protobuf.messages import Messages, Schema

# -- health -----------------------------------------------------------------------------------

SCHEMA = Schema(
    package="grpc.health.v1",
    messages={
        "HealthCheckRequest": "1 service string",
        "HealthCheckResponse": "1 status ServingStatus",
        "HealthListRequest": "",
        "HealthListResponse": "1 statuses HealthCheckResponse{}",
    },
    enums={"ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
    services={
        "Health": {
            "Check": ("HealthCheckRequest", "HealthCheckResponse"),
            "List": ("HealthListRequest", "HealthListResponse"),
            "Watch": ("HealthCheckRequest", "HealthCheckResponse[]"),
        }
    },
)
HEALTH_SERVICE = "grpc.health.v1.Health"

_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3

_POLL_SECONDS = 1.0
"""The interval at which Watch looks for a changed status."""


class Health:
    """The health of ``services``: not serving once the server drains, or without its store."""

    def __init__(
        self, lifecycle: Lifecycle, services: Collection[str], limits: GrpcLimits, gate: GrpcGate
    ) -> None:
        self._gate = gate
        self._lifecycle = lifecycle
        self._limits = limits
        self._services = frozenset(services)
        self._messages = Messages(SCHEMA)
        self._changed = asyncio.Event()
        self.pool = self._messages.pool

    def handler(self) -> Any:
        """Return the service."""
        return grpc.method_handlers_generic_handler(
            HEALTH_SERVICE,
            {
                "Check": grpc.stream_unary_rpc_method_handler(self._check),
                "List": grpc.stream_unary_rpc_method_handler(self._list),
                "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
            },
        )

    def drain(self) -> None:
        """Report to watchers that the server ends."""
        self._changed.set()

    async def _check(self, messages: object, context: Any) -> bytes:
        await self._gate.admit(context)
        service = self._service_of(await self._limits.receive_or_abort(context))
        if not self._knows(service):
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service here")
        return self._response(self._status)

    async def _list(self, messages: object, context: Any) -> bytes:
        await self._gate.admit(context)
        await self._limits.receive_or_abort(context)
        response = self._messages["HealthListResponse"]()
        for service in ("", *sorted(self._services)):
            response.statuses[service].status = self._status
        return response.SerializeToString()  # type: ignore[no-any-return]

    async def _watch(self, messages: object, context: Any) -> AsyncIterator[bytes]:
        await self._gate.admit(context)
        is_known = self._knows(self._service_of(await self._limits.receive_or_abort(context)))
        sent = 0
        while True:
            is_over = self._changed.is_set()
            status = self._status if is_known or is_over else _SERVICE_UNKNOWN
            if status != sent:
                sent = status
                yield self._response(status)
            if is_over:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._changed.wait()

    @property
    def _status(self) -> int:
        lifecycle = self._lifecycle
        is_over = lifecycle.draining or self._changed.is_set()
        return _NOT_SERVING if is_over or lifecycle.unavailable_reason else _SERVING

    def _knows(self, service: str) -> bool:
        return not service or service in self._services

    def _service_of(self, data: bytes | None) -> str:
        return str(self._messages.parse("HealthCheckRequest", data or b"").service)

    def _response(self, status: int) -> bytes:
        message = self._messages["HealthCheckResponse"](status=status)
        return message.SerializeToString()  # type: ignore[no-any-return]


# -- reflection -------------------------------------------------------------------------------

# The two versions differ only in name; tools ask for either.
VERSIONS = ("v1", "v1alpha")
REFLECTION_SERVICES = tuple(f"grpc.reflection.{version}.ServerReflection" for version in VERSIONS)


def _schema(version: str) -> Schema:
    return Schema(
        package=f"grpc.reflection.{version}",
        messages={
            "ServerReflectionRequest": (
                "1 host string, 3 file_by_filename string |message_request, "
                "4 file_containing_symbol string |message_request, "
                "5 file_containing_extension ExtensionRequest |message_request, "
                "6 all_extension_numbers_of_type string |message_request, "
                "7 list_services string |message_request"
            ),
            "ExtensionRequest": "1 containing_type string, 2 extension_number int32",
            "ServerReflectionResponse": (
                "1 valid_host string, 2 original_request ServerReflectionRequest, "
                "4 file_descriptor_response FileDescriptorResponse |message_response, "
                "5 all_extension_numbers_response ExtensionNumberResponse |message_response, "
                "6 list_services_response ListServiceResponse |message_response, "
                "7 error_response ErrorResponse |message_response"
            ),
            "FileDescriptorResponse": "1 file_descriptor_proto bytes[]",
            "ExtensionNumberResponse": "1 base_type_name string, 2 extension_number int32[]",
            "ListServiceResponse": "1 service ServiceResponse[]",
            "ServiceResponse": "1 name string",
            "ErrorResponse": "1 error_code int32, 2 error_message string",
        },
        services={
            "ServerReflection": {
                "ServerReflectionInfo": ("ServerReflectionRequest[]", "ServerReflectionResponse[]")
            }
        },
    )


class Reflection:
    """Describes ``services``, whose descriptors are in ``pools``, and itself."""

    def __init__(
        self, services: Collection[str], pools: Sequence[Any], limits: GrpcLimits, gate: GrpcGate
    ) -> None:
        self._gate = gate
        self._limits = limits
        self._messages = [Messages(_schema(version)) for version in VERSIONS]
        self._pools = [*pools, *(messages.pool for messages in self._messages)]
        self._services = (*services, *REFLECTION_SERVICES)

    def handlers(self) -> tuple[Any, ...]:
        """Return the service, in each of its versions."""
        return tuple(
            grpc.method_handlers_generic_handler(
                service,
                {
                    "ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(
                        _answering(self, messages, self._limits, self._gate)
                    )
                },
            )
            for service, messages in zip(REFLECTION_SERVICES, self._messages, strict=True)
        )

    def answer(self, messages: Messages, data: bytes) -> bytes:
        """Return the answer to one question."""
        response = messages["ServerReflectionResponse"]()
        try:
            request = messages.parse("ServerReflectionRequest", data)
        except InvalidRequestError as error:
            _set_error(response, "INVALID_ARGUMENT", error.message)
            return response.SerializeToString()  # type: ignore[no-any-return]
        response.valid_host = request.host
        response.original_request.CopyFrom(request)
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._services:
                    response.list_services_response.service.add(name=name)
            case "file_by_filename":
                self._describe(response, "FindFileByName", request.file_by_filename)
            case "file_containing_symbol":
                symbol = request.file_containing_symbol
                self._describe(response, "FindFileContainingSymbol", symbol)
            case "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                if self._file("FindMessageTypeByName", name) is None:
                    _set_error(response, "NOT_FOUND", f"there is no {name[:100]} here")
                else:
                    response.all_extension_numbers_response.base_type_name = name
            case "file_containing_extension":
                _set_error(response, "NOT_FOUND", "there are no extensions here")
            case _:
                _set_error(response, "INVALID_ARGUMENT", "the request asks for nothing")
        return response.SerializeToString()  # type: ignore[no-any-return]

    def _describe(self, response: Any, method: str, name: str) -> None:
        file = self._file(method, name)
        if file is None:
            _set_error(response, "NOT_FOUND", f"there is no {name[:100]} here")
            return
        # With its dependencies, which saves the client a request for each.
        files, pending = {}, [file]
        while pending:
            each = pending.pop()
            if each.name not in files:
                described = FileDescriptorProto()
                each.CopyToProto(described)
                files[each.name] = described.SerializeToString()
                pending += each.dependencies
        response.file_descriptor_response.file_descriptor_proto.extend(files.values())

    def _file(self, method: str, name: str) -> Any:
        for pool in self._pools:
            try:
                return getattr(pool, method)(name)
            except KeyError:
                continue
        return None


def _answering(
    reflection: Reflection, messages: Messages, limits: GrpcLimits, gate: GrpcGate
) -> Any:
    async def info(requests: object, context: Any) -> AsyncIterator[bytes]:
        await gate.admit(context)
        while (data := await limits.receive_or_abort(context)) is not None:
            yield reflection.answer(messages, data)

    return info


def _set_error(response: Any, status: str, words: str) -> None:
    response.error_response.error_code = CODES[status]
    response.error_response.error_message = words


# -- server -----------------------------------------------------------------------------------

_log = logging.getLogger("parley.server")

# The shortest interval of keep-alive pings that a client may have.
_MIN_PING_SECONDS = 5

# Calls besides streams and blocking sends, which have limits of their own.
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
    the app over HTTP on this machine, and ``tls`` its TLS, which gRPC has too unless the options
    have another certificate. At the end, running calls have ``grace`` seconds. The caller starts
    and stops the app.

    Raises ``ListenError``.
    """
    if not app.agents:
        raise ListenError("there is no agent to serve over gRPC")
    parts = urlsplit(address)
    http = HttpServer(parts.scheme, (parts.hostname or "", parts.port or 0))
    own = _own_tls(options)
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
    reflection = Reflection(
        (*services, HEALTH_SERVICE),
        [*(each.codec.pool for each in supported), health.pool],
        limits,
        docs_gate,
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
    """Return credentials that follow the files of ``tls``: gRPC asks at each handshake.

    gRPC has no optional client certificates: it requires one, or asks for none.
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
