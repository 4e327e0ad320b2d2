"""All of A2A over the envelope protocol: ``parley.connect(url, binding="envelope")``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from parley.client.bindings.binding import waits_for_task
from parley.client.bindings.http import HttpTransport, redacted
from parley.client.bindings.request_auth import RequestAuth, join_items
from parley.client.errors import ConnectionClosed, Timeout
from parley.envelope.answers import (
    message,
    read_operation_result,
    read_stream_event,
    write_operation,
)
from parley.envelope.client.answers import EnvelopeFailed, payload_of
from parley.envelope.client.connection import EnvelopeConnection
from parley.envelope.client.identity import EnvelopeIdentity
from parley.envelope.client.settings import LinkEndpoint, LinkSettings
from parley.envelope.messages import (
    OPERATION_PREFIX,
    Envelope,
    MessageType,
    RequestMetadata,
    RequestPayload,
)
from parley.model.errors import InvalidAgentResponseError
from parley.model.operations import Operation
from parley.model.service import CallContext, StreamItem
from parley.model.struct import A2AStruct
from parley.wire.versions import Dialect


class EnvelopeClientBinding:
    """Calls one address by the envelope protocol; each operation is an action ``a2a.<name>``.

    All calls share a WebSocket, or HTTP where none can be had. A call whose connection breaks fails
    with ``Disconnected``: whether it is repeated is for the caller to say, as over other bindings.
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
        self._endpoint = LinkEndpoint(url, headers=headers, auth=auth)
        self._dialect = dialect
        self._timeout = timeout
        self._numbered = numbered
        self._identity = EnvelopeIdentity.of()
        self._settings = LinkSettings(idle=idle, max_message=http.max_response)
        self._connection: EnvelopeConnection | None = None
        self._is_closed = False
        self._where = redacted(url)

    async def call(self, operation: Operation, request: A2AStruct, context: CallContext) -> Any:
        """Return what the operation answers."""
        timeout = None if waits_for_task(request) else self._timeout
        try:
            async with asyncio.timeout(timeout) as limit:
                async with aclosing(self._ask(operation, request, context)) as answers:
                    async for answer in answers:
                        result = _only_result(answer)
                        return read_operation_result(operation, result)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Timeout(f"{self._where} did not answer in time") from None
        raise InvalidAgentResponseError(f"{self._where} sent no answer")

    async def stream(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncIterator[StreamItem]:
        """Yield the events of a stream."""
        is_begun = False
        async with aclosing(self._ask(operation, request, context)) as answers:
            async for answer in answers:
                payload = _checked(answer)
                if answer.message.type == MessageType.EVENT:
                    is_begun = True
                    number = payload.metadata.sequence if self._numbered else None
                    yield StreamItem(read_stream_event(_only_result(answer)), number)
                elif not is_begun and len(payload.results) == 1:
                    yield StreamItem(read_stream_event(payload.results[0]))

    async def aclose(self) -> None:
        """Close the WebSocket; calls under way fail with ``ConnectionClosed``. Idempotent."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()

    def _ask(
        self, operation: Operation, request: A2AStruct, context: CallContext
    ) -> AsyncGenerator[Envelope]:
        if self._is_closed or self._http.closed:
            raise ConnectionClosed("this connection was closed; open a new one")
        if self._connection is None:
            self._connection = EnvelopeConnection(
                self._http, (self._endpoint,), self._identity, self._settings
            )
        after = context.last_event_id
        given = message(
            MessageType.REQUEST,
            RequestPayload(
                action=OPERATION_PREFIX + operation.name,
                parameters=write_operation(operation, request),
                metadata=RequestMetadata(
                    stream=operation.streaming,
                    after=int(after) if after is not None and after.isdecimal() else None,
                    service_parameters=self._service_parameters(context),
                ),
            ),
            source=self._identity.source,
        )
        return self._connection.ask(given, repeats=False)

    def _service_parameters(self, context: CallContext) -> dict[str, str]:
        """Return the service parameters of A2A (specification §3.2.6)."""
        ours: dict[str, str] = {}
        if context.extensions:
            ours[self._dialect.extensions_header] = join_items(sorted(context.extensions))
        if context.trace:
            ours |= context.trace.headers
        return ours


def _checked(answer: Envelope) -> Any:
    try:
        return payload_of(answer)
    except EnvelopeFailed as failed:
        raise failed.a2a_error from None


def _only_result(answer: Envelope) -> Any:
    """Return the one result of an operation. Raises the error in the answer."""
    payload = _checked(answer)
    if len(payload.results) != 1:
        raise InvalidAgentResponseError(
            f"an operation has one result, and the answer has {len(payload.results)}"
        )
    return payload.results[0]
