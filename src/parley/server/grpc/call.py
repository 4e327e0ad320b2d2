"""One call over gRPC, from its request to its status, within limits (specification §10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, cast
from urllib.parse import unquote

import grpc
import msgspec
from starlette.types import Scope

from parley.extensions.resumable_streams import numbered
from parley.model.errors import (
    A2AError,
    FieldViolation,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    OverloadedError,
    UnauthenticatedError,
    VersionNotSupportedError,
    shutting_down,
)
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.operations import Operation, SendMessageRequest
from parley.model.service import ANONYMOUS, NO_TRACE, Caller, StreamItem, TraceContext
from parley.model.tasks import Event
from parley.security.limits.agent_limits import fields_of, standings_of
from parley.security.networks import client_address
from parley.server.dispatch import Parameters, ServiceCall, read_trace
from parley.server.endpoint import Interfaces
from parley.server.http.exchange import Identify, ServedEndpoint, extension_uris
from parley.server.http.open_credentials import OpenCredentials, open_credentials
from parley.server.http.responses import challenges_of
from parley.server.http.streams import is_input_required
from parley.server.limits import ByteReservation, UnsentBytes
from parley.server.log import failure_of
from parley.server.restrictions import Gate, NotVisible
from parley.server.settings import Settings
from parley.wire import versions
from parley.wire.protobuf.errors import STATUS_KEY, write_status
from parley.wire.versions import Dialect, GrpcCodec

# -- limits -----------------------------------------------------------------------------------

_SLOW_SECONDS = 0.5
"""The time after which an incoming message counts against the budget of bodies; a tenth of it when
there are more incoming messages than the budget holds.
"""

_LOOP_PASSES = 4
"""Iterations of the event loop before that, for messages that arrived while it was busy."""

_CALL_BYTES = 16 * 1024
"""The memory of a call whose answer is not read, in addition to the answer."""


class TooSlow(InvalidRequestError):
    """The request did not arrive in time."""

    grpc_status = "DEADLINE_EXCEEDED"


class GrpcLimits:
    """Receives the messages of calls, and counts their answers, within the limits of the server.

    gRPC shows a message only when it is complete, so a slow message counts with the maximum size.
    """

    def __init__(self, settings: Settings, held: ByteReservation, unsent: UnsentBytes) -> None:
        self._settings = settings
        self._held = held
        self._unsent = unsent
        self._max_incoming = settings.max_body_bytes_held // settings.max_body_bytes
        self._incoming = 0

    async def receive(self, context: Any) -> bytes | None:
        """Return the next message of a call, or ``None`` at the end.

        Raises ``OverloadedError`` while it arrives, and ``TooSlow``.
        """
        task = asyncio.current_task()
        assert task is not None
        slow_after = min(_SLOW_SECONDS, self._settings.body_timeout)
        if self._incoming > self._max_incoming:
            slow_after /= 10
        incoming = _IncomingMessage(self._settings, self._held, context, task, slow_after)
        self._incoming += 1
        try:
            data = await context.read()
        except asyncio.CancelledError:
            if incoming.error is None or task.uncancel():
                raise
            raise incoming.take_error() from None
        finally:
            self._incoming -= 1
            incoming.close()
        return None if data is grpc.aio.EOF else bytes(data)

    def check_room(self, context: Any) -> None:
        """Reject a call from a host with too many unsent bytes. Raises ``OverloadedError``."""
        if not self._unsent.is_small:
            self._unsent.check(host_of(context.peer()))

    def count_until_sent(self, context: Any, size: int) -> None:
        """Count the answer to a call until its task ends.

        Raises ``InternalError`` if the answer exceeds the limit, although the operation was
        executed.
        """
        task = asyncio.current_task()
        assert task is not None
        host = host_of(context.peer())
        size += _CALL_BYTES
        try:
            self._unsent.reserve(host, size)
        except OverloadedError as error:
            raise InternalError(f"the answer is not sent: {error.message}") from None
        task.add_done_callback(lambda _: self._unsent.release(host, size))

    @contextmanager
    def sending(self, context: Any, size: int) -> Iterator[None]:
        """Count an event of a stream within the context. Raises ``OverloadedError``."""
        if size <= _CALL_BYTES:
            yield
            return
        host = host_of(context.peer())
        self._unsent.reserve(host, size)
        try:
            yield
        finally:
            self._unsent.release(host, size)

    async def receive_or_abort(self, context: Any) -> bytes | None:
        """Return the next message of a call to another service than A2A's, or abort the call."""
        try:
            return await self.receive(context)
        except A2AError as error:
            status = getattr(grpc.StatusCode, error.grpc_status)
            await context.abort(status, error.message, ((STATUS_KEY, write_status(error)),))
            raise AssertionError("to abort is to raise") from None


class _IncomingMessage:
    """A message that a call waits for, and its timer."""

    __slots__ = ("_address", "_counted", "_held", "_settings", "_task", "_timer", "error")

    def __init__(
        self,
        settings: Settings,
        held: ByteReservation,
        context: Any,
        task: asyncio.Task[Any],
        slow_after: float,
    ) -> None:
        self._settings = settings
        self._held = held
        self._task = task
        self._counted = 0
        self._address = ""
        self.error: A2AError | None = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(slow_after, self._check, context, _LOOP_PASSES)

    def take_error(self) -> A2AError:
        """Return the error that ended the wait, and drop it to avoid a reference cycle."""
        error, self.error = self.error, None
        assert error is not None
        return error

    def close(self) -> None:
        """Stop the timer and release the counts."""
        self._timer.cancel()
        if self._counted:
            self._held.release(self._address, self._counted)
            self._counted = 0

    def _check(self, context: Any, passes: int) -> None:
        if passes:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(0.005, self._check, context, passes - 1)
        else:
            self._count(context)

    def _count(self, context: Any) -> None:
        self._address = host_of(context.peer())
        try:
            self._held.reserve(self._address, self._settings.max_body_bytes)
        except OverloadedError as error:
            self._end(error)
            return
        self._counted = self._settings.max_body_bytes
        seconds = self._settings.body_timeout
        late = TooSlow(f"the request did not come within {seconds:g} seconds")
        remaining = max(0.0, seconds - _SLOW_SECONDS)
        self._timer = asyncio.get_running_loop().call_later(remaining, self._end, late)

    def _end(self, error: A2AError) -> None:
        self.error = error
        self._task.cancel()


def address_of(peer: str) -> tuple[str, int] | None:
    """Return the host and port of a peer, as in ``ipv4:127.0.0.1:50000``."""
    family, _, address = peer.partition(":")
    host, _, port = unquote(address).rpartition(":")
    if family not in ("ipv4", "ipv6") or not port.isdigit():
        return None
    return host.strip("[]"), int(port)


@lru_cache(maxsize=4096)
def host_of(peer: str) -> str:
    """Return the host of a peer, empty if it has none."""
    address = address_of(peer)
    return "" if address is None else address[0]


# -- scope ------------------------------------------------------------------------------------


class HttpServer(NamedTuple):
    """The HTTP server that runs together with gRPC: its scheme, host and port."""

    scheme: str
    address: tuple[str, int]


def scope_of(context: Any, path: str, server: HttpServer) -> Scope:
    """Return the scope of a call of the method at ``path``."""
    headers = [
        (name.encode(), value.encode() if isinstance(value, str) else value)
        for name, value in context.invocation_metadata() or ()
    ]
    scope: Scope = {
        "type": "grpc",
        "http_version": "2",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": address_of(context.peer()),
        "server": server.address,
        "extensions": {},
    }
    authentication = context.auth_context()
    if authentication.get("transport_security_type") == [b"ssl"]:
        scope["scheme"] = "https"
        chain = authentication.get("x509_pem_cert", ())
        scope["extensions"]["tls"] = {
            "client_cert_chain": [pem.decode() for pem in chain],
            "client_cert_name": _name(authentication),
        }
    return scope


def _name(authentication: Mapping[str, Any]) -> str | None:
    names = authentication.get("x509_common_name") or ()
    return f"CN={names[0].decode()}" if names else None


# -- restrictions -----------------------------------------------------------------------------

NO_METHOD = "Method not found!"
"""gRPC's own message for an unknown service."""


class GrpcGate:
    """Aborts calls that its gate does not admit; without a gate it admits all calls."""

    def __init__(self, gate: Gate | None, server: HttpServer, service: str) -> None:
        self._gate = gate
        self._server = server
        self._path = f"/{service}/"

    async def admit(self, context: Any) -> None:
        """Abort a call that may not see the service.

        An excluded address gets the answer for an unknown service.
        """
        if self._gate is None:
            return
        try:
            await self._gate.check(scope_of(context, self._path, self._server))
        except NotVisible:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_METHOD)
        except Exception as error:
            await _abort(context, failure_of(error, "identifying a caller"))


async def _abort(context: Any, error: A2AError) -> None:
    trailing: list[tuple[str, str | bytes]] = [(STATUS_KEY, write_status(error))]
    trailing += [("www-authenticate", each) for each in error.challenges]
    await context.abort(getattr(grpc.StatusCode, error.grpc_status), error.message, tuple(trailing))


# -- call -------------------------------------------------------------------------------------

Context = Any
"""A ``grpc.aio.ServicerContext``."""

_MAX_MESSAGE_LENGTH = 1000


class VersionCodec(NamedTuple):
    """A version of the protocol, and its codec for gRPC."""

    dialect: Dialect
    codec: GrpcCodec


class AgentRouter:
    """Routes requests to the agents of one port, by tenant, because gRPC has no paths.

    The agent at the path ``/time`` over HTTP is the tenant ``time`` here; a tenant of that agent
    follows, as in ``time/acme``. A single agent gets every request. ``gate`` decides about the
    address of a caller.
    """

    def __init__(
        self,
        agents: Mapping[str, ServedEndpoint],
        limits: GrpcLimits,
        identify: Identify | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.gate = gate
        self.first = next(iter(agents.values()))
        self.limits = limits
        self._by_name = {prefix.strip("/"): around for prefix, around in agents.items()}
        self.is_alone = len(agents) == 1
        # The agent is known only after the body is read, so the schemes of all agents are verified.
        self.identify = self.first.identify if self.is_alone else identify

    def find(self, request: Any) -> tuple[ServedEndpoint, Any]:
        """Return the endpoint of a request, and the request in the form for that endpoint.

        Raises ``InvalidParamsError`` for an unknown tenant.
        """
        if self.is_alone:
            return self.first, request
        tenant: str = request.tenant
        name = tenant
        while name:
            around = self._by_name.get(name)
            if around is not None:
                own = tenant[len(name) + 1 :]
                return around, msgspec.structs.replace(request, tenant=own)
            name = name.rpartition("/")[0]
        around = self._by_name.get("")
        if around is None:
            description = (
                f"there is no tenant {tenant[:100]!r} here"
                if tenant
                else "several agents share this address: name the tenant of the agent"
            )
            raise InvalidParamsError(
                f"tenant: {description}", violations=(FieldViolation("tenant", description),)
            )
        return around, request


class GrpcCall:
    """One call, from the bytes of its request to its status.

    When the client cancels it, or its deadline passes, the call stops waiting; the agent's turn
    continues.
    """

    def __init__(
        self,
        agents: AgentRouter,
        version: VersionCodec,
        operation: Operation,
        context: Context,
        server: HttpServer,
    ) -> None:
        self._agents = agents
        self._around = agents.first
        self._dialect, self._codec = version
        self._operation = operation
        self._context = context
        self._server = server
        self._echo: list[tuple[str, str]] = [("a2a-version", self._dialect.version)]
        self._task = asyncio.current_task()
        self._drained = False
        self._credentials: OpenCredentials | None = None
        self._refusal: A2AError | None = None

    async def answer(self) -> bytes:
        """Return the answer to a request, or abort the call with an error's status."""
        try:
            result = await self._result()
        except (Exception, asyncio.CancelledError) as error:
            failure = self._failure(error, self._operation.name)
        else:
            await self._context.send_initial_metadata(self._echo)
            return result
        await self._abort(failure)

    async def _result(self) -> bytes:
        # A separate frame: the frame that aborts a call lives until garbage collection.
        call = await self._read_call()
        answer = await call.answer()
        if call.grant is not None:
            self._echo += call.grant.fields
        result = self._codec.write_result(self._operation, answer)
        self._agents.limits.count_until_sent(self._context, len(result))
        return result

    def _failure(self, error: BaseException, doing: str) -> A2AError:
        return self._around.lifecycle.failure(error, doing)

    async def stream(self) -> None:
        """Send the events that answer a request.

        They end without an error when the server drains. An error, before the first event or later,
        becomes the status of the call.
        """
        failure: A2AError | None = None
        started = False
        last: Event | None = None
        try:
            call = await self._read_call()
            is_numbered = RESUMABLE_STREAMS in call.context.extensions
            with self._around.streams.registered(self, call.context, self._credentials):
                items = cast("AsyncGenerator[StreamItem, None]", await call.answer())
                if call.grant is not None:
                    self._echo += call.grant.fields
                async with aclosing(items):
                    async for item in items:
                        if not started:
                            started = True
                            await self._context.send_initial_metadata(self._echo)
                        if is_numbered:
                            item = StreamItem(numbered(item), item.seq)
                        last = item.event
                        data = self._codec.write_event(item)
                        with self._agents.limits.sending(self._context, len(data)):
                            # Waits for a slow reader, so that events do not accumulate.
                            await self._context.write(data)
                        if self._codec.ends_stream(item.event):
                            break
        except grpc.aio.BaseError:
            return  # the client disconnected
        except (Exception, asyncio.CancelledError) as error:
            is_cancelled = isinstance(error, asyncio.CancelledError)
            if is_cancelled and self._drained and self._task and self._task.uncancel() == 0:
                failure = self._refusal
                answers = self._operation.request is SendMessageRequest
                if failure is None and (not started or (answers and is_input_required(last))):
                    failure = shutting_down()
            else:
                failure = self._failure(error, "a stream")
        if failure is not None:
            await self._abort(failure, started=started)

    def refuse(self, error: A2AError) -> None:
        """End the stream with an error."""
        self._refusal = error
        self.drain()

    def drain(self) -> None:
        """End the stream; its reader resumes on another replica."""
        if not self._drained and self._task is not None:
            self._drained = True
            self._task.cancel()

    async def _read_call(self) -> ServiceCall:
        """Identify the caller, receive the request and return its call. Raises ``A2AError``."""
        around, limits = self._around, self._agents.limits
        limits.check_room(self._context)
        await around.dispatcher.start()
        metadata: dict[str, str] = {}
        extensions: list[bytes] = []
        for name, value in self._context.invocation_metadata() or ():
            if isinstance(value, str):
                metadata.setdefault(name, value)
                if name == "user-agent":
                    self._codec = self._codec.for_peer(value)
                if name in versions.EXTENSIONS_HEADERS:
                    extensions.append(value.encode())
        if self._agents.gate is not None and not self._agents.gate.is_visible(self._scope()):
            raise MethodNotFoundError(NO_METHOD)
        caller = ANONYMOUS
        identify = self._agents.identify
        if identify is not None:
            named = identify(self._scope())
            caller = named if isinstance(named, Caller) else await named
            if self._operation.streaming:
                self._credentials = open_credentials(identify, self._scope(), caller)
        self._check_version(metadata.get("a2a-version", ""))
        settings = around.settings
        data = await limits.receive(self._context)
        if data is None:
            raise InvalidRequestError("a call has one message, and this call has none")
        request = self._codec.read_request(
            self._operation, data, max_depth=settings.max_depth, max_parts=settings.max_parts
        )
        self._around, request = self._agents.find(request)
        parameters = Parameters(
            version=self._dialect.version,
            caller=caller,
            extensions=extension_uris(extensions) if extensions else (),
            last_event_id=metadata.get("last-event-id"),
            trace=self._trace() if "traceparent" in metadata or "baggage" in metadata else NO_TRACE,
            reply_timeout=self._reply_timeout(),
            addresses=self,
            system="grpc",
        )
        call = self._around.dispatcher.call(self._operation, parameters, lambda: request)
        if call.context.extensions:
            uris = ", ".join(sorted(call.context.extensions))
            self._echo.append((self._dialect.extensions_header, uris))
        return call

    def sender(self) -> str:
        """Return the address of the sender (``SeenAddresses``)."""
        return client_address(self._scope(), trust_proxy=self._around.settings.trust_proxy)

    def interfaces(self, tenant: str) -> Interfaces:
        """Return the interfaces of the agent of a tenant (``SeenAddresses``)."""
        scope = {**self._scope(), "scheme": self._server.scheme}
        return self._around.interfaces(scope, tenant)

    def vary_by_caller(self) -> None:
        """Do nothing: no cache keeps answers of gRPC (``SeenAddresses``)."""

    def address(self, tenant: str) -> str:
        """Return no URL: a call shows none (``SeenAddresses``)."""
        return ""

    def _trace(self) -> TraceContext:
        values: dict[str, list[str]] = {"traceparent": [], "tracestate": [], "baggage": []}
        for name, value in self._context.invocation_metadata() or ():
            if name in values:
                values[name].append(value)
        return read_trace(*values.values())

    def _reply_timeout(self) -> float | None:
        """Return the time to wait for a reply, which ends a little before the deadline."""
        remaining: float | None = self._context.time_remaining()
        return None if remaining is None else max(0.0, 0.9 * remaining - 0.05)

    def _check_version(self, named: str) -> None:
        """Raise ``VersionNotSupportedError`` if the metadata names another version (§3.6)."""
        version = self._dialect.version
        requested = versions.requested(named)
        if requested == version:
            return
        if not requested and version in (
            versions.DEFAULT_VERSION,
            self._around.settings.missing_version,
        ):
            return
        service = self._codec.service
        raise VersionNotSupportedError(
            f"the service {service} is of version {version}, and this request of version "
            f"{requested or versions.DEFAULT_VERSION}; send the metadata a2a-version: {version}",
            metadata={
                "requestedVersion": requested or versions.DEFAULT_VERSION,
                "supportedVersions": ", ".join(versions.SUPPORTED_VERSIONS),
            },
        )

    def _scope(self) -> Scope:
        """Return the call as an ASGI scope of the type ``grpc``."""
        path = f"/{self._codec.service}/{self._operation.name}"
        return scope_of(self._context, path, self._server)

    def _challenges(self, error: A2AError) -> tuple[str, ...]:
        """Return the challenges of an error, by the agent that is meant, once that is known."""
        if isinstance(error, UnauthenticatedError) and not self._agents.is_alone:
            return challenges_of(error)
        return self._around.challenges(error, {**self._scope(), "scheme": self._server.scheme})

    async def _abort(self, error: A2AError, *, started: bool = False) -> NoReturn:
        """Abort the call with the status and the details of an error."""
        # Otherwise its frames, and everything they reference, would live as long as the error.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        standings = standings_of(error)
        error = self._codec.with_wire_names(error)
        trailing: list[tuple[str, str | bytes]] = [(STATUS_KEY, write_status(error))]
        trailing += fields_of(standings)
        trailing += [("www-authenticate", each) for each in self._challenges(error)]
        if not started:
            await self._context.send_initial_metadata(self._echo)
        status = getattr(grpc.StatusCode, error.grpc_status)
        await self._context.abort(status, error.message[:_MAX_MESSAGE_LENGTH], tuple(trailing))
        raise AssertionError("to abort is to raise")
