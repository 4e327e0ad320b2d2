"""ASGI's TLS extension: what the handshake of a connection told about its other end."""

from __future__ import annotations

import ssl
from typing import Any

_VERSIONS = {"TLSv1.2": 0x0303, "TLSv1.3": 0x0304}


def tls_extension(connection: ssl.SSLObject) -> dict[str, Any]:
    """Return the extension ``tls`` of the ASGI scopes of a connection.

    A certificate in it is one that the handshake verified. Before Python 3.13 the chain is the
    caller's own certificate alone.
    """
    chain = _chain(connection)
    cipher = connection.cipher()
    numbers = {each["name"]: each["id"] & 0xFFFF for each in connection.context.get_ciphers()}
    return {
        "server_cert": None,
        "client_cert_chain": [ssl.DER_cert_to_PEM_cert(each) for each in chain],
        "client_cert_name": _name(chain[0]) if chain else None,
        "client_cert_error": None,
        "tls_version": _VERSIONS.get(connection.version() or ""),
        "cipher_suite": numbers.get(cipher[0]) if cipher else None,
    }


def _chain(connection: ssl.SSLObject) -> list[bytes]:
    own = connection.getpeercert(binary_form=True)
    if own is None:
        return []
    verified = getattr(connection, "get_verified_chain", None)
    # A resumed session has no chain, but the certificate that its first handshake verified.
    return (list(verified()) if verified is not None else []) or [own]


def _name(certificate: bytes) -> str:
    from cryptography import x509

    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
