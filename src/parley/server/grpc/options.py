"""Options of the gRPC server. This module must not import gRPC."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec

from parley.model.distribution import install_command

NEEDED = f"gRPC is not installed: {install_command('grpc')}"


class GrpcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The port for gRPC beside that for HTTP, and its TLS.

    ``port`` 0 takes a free one. ``host`` is that of HTTP unless it is given. ``cert`` and ``key``
    are PEM files of the server's certificate (with its chain) and its private key; without them
    there is no TLS. With ``client_ca``, a PEM file of authorities, only callers with a certificate
    of theirs are accepted.

    Raises ``ValueError`` for options that make no sense together.
    """

    port: int
    host: str | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    client_ca: str | Path | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("TLS for gRPC takes a certificate and its key: give both")
        if self.client_ca is not None and self.cert is None:
            raise ValueError("certificates of callers need TLS: give a certificate and its key")
        if not all(_is_installed(module) for module in ("grpc", "google.protobuf")):
            raise ValueError(NEEDED)


def grpc_options(port: int | None, **others: str | Path | None) -> GrpcOptions | None:
    """Return the options for a port, ``None`` without one.

    Raises ``ValueError`` for other options without a port.
    """
    if port is not None:
        return GrpcOptions(port=port, **others)  # type: ignore[arg-type]
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ValueError(f"gRPC is served where it has a port; {', '.join(given)} alone do nothing")
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False
