"""One call over gRPC, from its request to its status (specification §10)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple, NoReturn, cast

import grpc
import msgspec
from starlette.types import Scope

from parley.extensions.resumable_streams import numbered
from parley.model.errors import (
    A2AError,
    FieldViolation,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    UnauthenticatedError,
    VersionNotSupportedError,
)
from parley.model.extensions import RESUMABLE_STREAMS
from parley.model.operations import Operation, SendMessageRequest
from parley.model.service import ANONYMOUS, NO_TRACE, Caller, StreamItem, TraceContext
from parley.model.tasks import Event
from parley.security.networks import client_address
from parley.security.rates.exceeded import fields_of
from parley.server.dispatch import Parameters, ServiceCall
from parley.server.endpoint import Interfaces
from parley.server.failures import log_unforeseen
from parley.server.grpc.limits import GrpcLimits
from parley.server.grpc.restricted import NO_METHOD
from parley.server.grpc.scope import HttpServer, scope_of
from parley.server.http.exchange import Identify, ServedEndpoint, challenges_of, extension_uris
from parley.server.http.open_credentials import OpenCredentials, open_credentials
from parley.server.http.streams import is_input_required, shutting_down
from parley.server.limits.rates import standings_of
from parley.server.restrictions import Gate
from parley.server.trace_headers import read_trace
from parley.wire import versions
from parley.wire.dialect import Dialect, GrpcCodec
from parley.wire.protobuf.errors import STATUS_KEY, write_status

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
    follows, as in ``time/acme``. An agent alone gets every request. ``gate`` decides about the
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
        # The agent is known only once the body is read: its schemes are among all of them.
        self.identify = self.first.identify if self.is_alone else identify

    def find(self, request: Any) -> tuple[ServedEndpoint, Any]:
        """Return where a request goes, and the request as it is seen there.

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
                else "several agents share this address: name the tenant that yours is"
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
        except A2AError as error:
            failure = error
        except asyncio.CancelledError:
            if self._task is not None and self._task.cancelling():
                raise
            # Not this call, but something within the service was cancelled.
            failure = log_unforeseen(self._operation.name)
        except Exception:
            failure = log_unforeseen(self._operation.name)
        else:
            await self._context.send_initial_metadata(self._echo)
            return result
        await self._abort(failure)

    async def _result(self) -> bytes:
        # A frame of its own: the frame that aborts a call lives until garbage collection.
        call = await self._read_call()
        begun = call.begin()
        answer = await (call.answer() if begun is None else call.later_reply(begun))
        if call.grant is not None:
            self._echo += call.grant.fields
        result = self._codec.write_result(self._operation, answer)
        self._agents.limits.count_until_sent(self._context, len(result))
        return result

    async def stream(self) -> None:
        """Send the events that answer a request.

        They end without an error when the server drains. An error, before the first event or later,
        is the status of the call.
        """
        failure: A2AError | None = None
        started = False
        last: Event | None = None
        try:
            call = await self._read_call()
            is_numbered = RESUMABLE_STREAMS in call.context.extensions
            with self._around.streams.registered(self, call.context, self._credentials):
                if call.grant is not None:
                    await call.grant.settle()
                    self._echo += call.grant.fields
                items = cast("AsyncGenerator[StreamItem, None]", call.stream())
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
        except A2AError as error:
            failure = error
        except asyncio.CancelledError:
            if self._drained and self._task is not None and self._task.uncancel() == 0:
                failure = self._refusal
                answers = self._operation.request is SendMessageRequest
                if failure is None and (not started or (answers and is_input_required(last))):
                    failure = shutting_down()
            elif self._task is not None and self._task.cancelling():
                raise
            else:
                failure = log_unforeseen("a stream")
        except grpc.aio.BaseError:
            return  # the client disconnected
        except Exception:
            failure = log_unforeseen("a stream")
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
            raise InvalidRequestError("a call carries one message, and this one carries none")
        request = self._codec.read_request(
            self._operation, data, max_depth=settings.max_depth, max_parts=settings.max_parts
        )
        self._around, request = self._agents.find(request)
        parameters = Parameters(
            version=self._dialect.version,
            caller=caller,
            extensions=extension_uris(extensions) if extensions else (),
            last_event_id=metadata.get("last-event-id"),
            trace=self._trace() if "traceparent" in metadata else NO_TRACE,
            reply_timeout=self._reply_timeout(),
            addresses=self,
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
        values: dict[str, list[str]] = {"traceparent": [], "tracestate": []}
        for name, value in self._context.invocation_metadata() or ():
            if name in values:
                values[name].append(value)
        return read_trace(values["traceparent"], values["tracestate"])

    def _reply_timeout(self) -> float | None:
        """Return how long to wait for a reply, a little less than until the deadline."""
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
        # Its frames, and all that they hold, would live as long as the error.
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
