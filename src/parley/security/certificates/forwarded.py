"""Client certificates that a proxy passes on in a header, instead of the handshake itself."""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Sequence
from urllib.parse import unquote

from parley.security.certificates.identity import (
    MAX_NAMES,
    CertificateInvalid,
    Identity,
    identity_in_der,
    identity_in_pem,
    identity_named,
)

XFCC = "X-Forwarded-Client-Cert"
CLIENT_CERT = "Client-Cert"

MAX_HEADER = 32 * 1024

_VALUE = re.compile(r'(?P<name>[A-Za-z]+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^",;]*))')
_BYTES = re.compile(r":([A-Za-z0-9+/]*={0,2}):")


def forwarded_identity(header: str, values: Sequence[str]) -> Identity:
    """Return whom a header of a trusted proxy names. Raises ``CertificateInvalid``."""
    if sum(map(len, values)) > MAX_HEADER:
        raise CertificateInvalid("the header is too long")
    return _in_xfcc(",".join(values)) if header == XFCC else _in_client_cert(values)


def _in_client_cert(values: Sequence[str]) -> Identity:
    """Read ``Client-Cert``: one certificate in DER, as a byte sequence (RFC 9440 §2.2)."""
    if len(values) > 1:
        raise CertificateInvalid("the header is there more than once")
    found = _BYTES.fullmatch(values[0].strip())
    if found is None:
        raise CertificateInvalid("the header is not a byte sequence, :base64:")
    try:
        return identity_in_der(b64decode(found[1], validate=True))
    except binascii.Error:
        raise CertificateInvalid("the header is not base64") from None


def _in_xfcc(value: str) -> Identity:
    """Read the header of Envoy: the last element is the one that the nearest proxy added.

    Elements before it are what that proxy was sent, which anybody could have written.
    """
    fields = _last_element(value)
    uris, dns = fields.get("uri", [])[:MAX_NAMES], fields.get("dns", [])[:MAX_NAMES]
    fingerprint, subject = _one(fields, "hash"), _one(fields, "subject")
    if pem := _one(fields, "cert"):
        identity = identity_in_pem(unquote(pem))
        if fingerprint and fingerprint.lower() != identity.fingerprint:
            raise CertificateInvalid("the hash is not that of the certificate")
        return identity
    return identity_named(
        uris=tuple(uris), dns=tuple(dns), subject=subject, fingerprint=fingerprint
    )


def _last_element(value: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    position = 0
    while position < len(value):
        found = _VALUE.match(value, position)
        if found is None:
            raise CertificateInvalid("the header is not a list of name=value")
        quoted = found["quoted"]
        text = found["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        fields.setdefault(found["name"].lower(), []).append(text)
        position = found.end()
        separator = value[position : position + 1]
        position += 1
        if separator == ",":
            fields = {}
            while value[position : position + 1] == " ":
                position += 1
        elif separator not in (";", ""):
            raise CertificateInvalid("the header is not a list of name=value")
    return fields


def _one(fields: dict[str, list[str]], name: str) -> str:
    found = fields.get(name, [""])
    if len(found) > 1:
        raise CertificateInvalid(f"the header has {name} more than once")
    return found[0]
