"""Whether the server takes calls, as gRPC's own health service tells it (grpc.health.v1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc

from parley.server.lifecycle import Lifecycle
from parley.wire.protobuf import Messages, Schema

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


class Health:
    """Serves until the server drains, then no more. ``services`` are those that it knows of."""

    def __init__(self, lifecycle: Lifecycle, services: Collection[str]) -> None:
        self._lifecycle = lifecycle
        self._services = frozenset(services)
        self._messages = Messages(SCHEMA)
        self._changed = asyncio.Event()
        self.pool = self._messages.pool

    def handler(self) -> Any:
        """Return the service."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "List": grpc.unary_unary_rpc_method_handler(self._list),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    def drain(self) -> None:
        """Tell those who watch that the end is near."""
        self._changed.set()

    async def _check(self, data: bytes, context: Any) -> bytes:
        service = self._asked(data)
        if not self._knows(service):
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service here")
        return self._told(self._status)

    async def _list(self, data: bytes, context: Any) -> bytes:
        response = self._messages["HealthListResponse"]()
        for service in ("", *sorted(self._services)):
            response.statuses[service].status = self._status
        return response.SerializeToString()  # type: ignore[no-any-return]

    async def _watch(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        if not self._knows(self._asked(data)):
            yield self._told(_SERVICE_UNKNOWN)
        elif not self._lifecycle.draining:
            yield self._told(self._status)
        await self._changed.wait()
        yield self._told(_NOT_SERVING)

    @property
    def _status(self) -> int:
        return _NOT_SERVING if self._lifecycle.draining else _SERVING

    def _knows(self, service: str) -> bool:
        return not service or service in self._services

    def _asked(self, data: bytes) -> str:
        return str(self._messages.parse("HealthCheckRequest", data).service)

    def _told(self, status: int) -> bytes:
        message = self._messages["HealthCheckResponse"](status=status)
        return message.SerializeToString()  # type: ignore[no-any-return]
