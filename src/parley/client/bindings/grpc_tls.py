"""The TLS certificates for gRPC. Importable without gRPC."""

from __future__ import annotations

from pathlib import Path

import msgspec


class GrpcTls(msgspec.Struct, frozen=True, kw_only=True):
    """Certificates for gRPC, as PEM files.

    ``ca`` are the authorities to trust in place of the system's; ``cert`` and ``key`` the client's
    own certificate, for servers that require one. With a ``GrpcTls`` every connection uses TLS.

    Raises ``ValueError`` for a certificate without its key.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("a certificate goes with its key: give both")
