"""Services of gRPC that not everyone may see (``Settings.restrict``)."""

from __future__ import annotations

from typing import Any

import grpc

from parley.model.errors import A2AError
from parley.server.failures import log_unforeseen
from parley.server.grpc.scope import HttpServer, scope_of
from parley.server.restrictions import Gate, NotVisible
from parley.wire.protobuf.errors import STATUS_KEY, write_status

NO_METHOD = "Method not found!"
"""What gRPC itself says where there is no service."""


class GrpcGate:
    """Aborts calls that a gate does not admit; without one it admits all."""

    def __init__(self, gate: Gate | None, server: HttpServer, service: str) -> None:
        self._gate = gate
        self._server = server
        self._path = f"/{service}/"

    async def admit(self, context: Any) -> None:
        """Abort a call that may not see the service.

        An address that may not gets what an unknown service gets.
        """
        if self._gate is None:
            return
        try:
            await self._gate.check(scope_of(context, self._path, self._server))
        except NotVisible:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_METHOD)
        except A2AError as error:
            await _abort(context, error)
        except Exception:
            await _abort(context, log_unforeseen("identifying a caller"))


async def _abort(context: Any, error: A2AError) -> None:
    trailing: list[tuple[str, str | bytes]] = [(STATUS_KEY, write_status(error))]
    trailing += [("www-authenticate", each) for each in error.challenges]
    await context.abort(getattr(grpc.StatusCode, error.grpc_status), error.message, tuple(trailing))
