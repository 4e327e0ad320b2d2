"""gRPC's health service: whether the server accepts calls (grpc.health.v1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc

from parley.server.grpc.limits import GrpcLimits
from parley.server.grpc.restricted import GrpcGate
from parley.server.lifecycle import Lifecycle
from parley.wire.protobuf.messages import Messages, Schema

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
SERVICE = "grpc.health.v1.Health"

_SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = 1, 2, 3

_POLL_SECONDS = 1.0
"""The interval at which Watch compares the status with the last one that it sent."""


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
            SERVICE,
            {
                "Check": grpc.stream_unary_rpc_method_handler(self._check),
                "List": grpc.stream_unary_rpc_method_handler(self._list),
                "Watch": grpc.stream_stream_rpc_method_handler(self._watch),
            },
        )

    def drain(self) -> None:
        """Tell those who watch that the end is near."""
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
