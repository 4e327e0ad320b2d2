"""gRPC in version 1.0 (specification §10)."""

from __future__ import annotations

from typing import Any


class Grpc:
    """Messages of gRPC (``GrpcCodec``)."""

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError
