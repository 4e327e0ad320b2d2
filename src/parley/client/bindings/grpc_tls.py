"""Whom to trust over gRPC, and as whom to appear. Nothing here needs gRPC to be installed."""

from __future__ import annotations

from pathlib import Path

import msgspec


class GrpcTls(msgspec.Struct, frozen=True, kw_only=True):
    """Certificates for gRPC, as PEM files.

    ``ca`` are the authorities to trust in place of the system's; ``cert`` and ``key`` this side's
    own certificate, for servers that ask for one. Where this is given TLS is always used.

    Raises ``ValueError`` for a certificate without its key.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("a certificate goes with its key: give both")
