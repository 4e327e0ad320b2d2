"""Options of TLS. This module must import nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

PASSWORD_VARIABLE = "PARLEY_TLS_KEY_PASSWORD"
"""The environment variable with the passphrase of encrypted private keys."""

CallerCertificates = Literal["none", "optional", "required"]
"""Whether callers are asked for a certificate."""


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a server's TLS, all PEM.

    ``cert`` is the server's certificate with its chain, ``key`` its private key; the passphrase of
    an encrypted one is in ``PARLEY_TLS_KEY_PASSWORD``. With ``client_ca``, the authorities of
    callers' certificates, callers are asked for one. The files are read again when they change;
    ``check_interval`` is in seconds.

    Raises ``ValueError`` for a missing file name.
    """

    cert: str | Path
    key: str | Path
    client_ca: str | Path | None = None
    check_interval: float = 2.0

    def __post_init__(self) -> None:
        if not str(self.cert) or not str(self.key):
            raise ValueError("TLS takes a certificate and its key: give the files of both")
        if self.client_ca is not None and not str(self.client_ca):
            raise ValueError("the authorities of callers' certificates are in a file: name it")


def tls_options(
    cert: str | Path | None = None,
    key: str | Path | None = None,
    client_ca: str | Path | None = None,
) -> TlsOptions | None:
    """Return the options for these files, ``None`` without any.

    Raises ``ValueError`` for files that make no sense together.
    """
    if cert is None and key is None:
        if client_ca is not None:
            raise ValueError(
                "certificates of callers need TLS: give a certificate and its key (tls_cert, "
                "tls_key) beside tls_client_ca"
            )
        return None
    if cert is None or key is None:
        raise ValueError("TLS takes a certificate and its key: give both, tls_cert and tls_key")
    return TlsOptions(cert=cert, key=key, client_ca=client_ca)
