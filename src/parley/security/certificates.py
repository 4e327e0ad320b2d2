"""Client certificates: their identity, from the TLS handshake or from a header of a proxy.

``cryptography`` is imported inside functions: the import is slow, and few servers need it.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec

# -- identity ---------------------------------------------------------------------------------

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[\x21-\x7e]+")
_DNS = re.compile(r"(?:\*\.)?[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_FINGERPRINT = re.compile(r"(?:sha256:)?((?:[0-9a-f]{2}:?){31}[0-9a-f]{2})", re.IGNORECASE)
_SPACE_AFTER_COMMA = re.compile(r"(?<!\\),[ ]+")

MAX_NAMES = 100
"""The maximum number of alternative names that are read from a certificate."""


class CertificateInvalid(ValueError):
    """A malformed certificate, or a certificate without a name."""


class Identity(msgspec.Struct, frozen=True):
    """The identity in a certificate.

    ``subject`` and ``issuer`` are names in the form of RFC 4514. ``fingerprint`` is the SHA-256 of
    the certificate in hexadecimal digits. ``not_before`` and ``not_after`` are seconds since the
    epoch. Unknown values are empty or ``None``.
    """

    uris: tuple[str, ...] = ()
    dns: tuple[str, ...] = ()
    subject: str = ""
    issuer: str = ""
    fingerprint: str = ""
    not_before: float | None = None
    not_after: float | None = None

    @property
    def id(self) -> str:
        """The name of the caller: the first URI, else the first DNS name, else the subject."""
        return next(iter((*self.uris, *self.dns)), self.subject)

    @property
    def names(self) -> tuple[str, ...]:
        """All names that can be pinned (see ``pinned``)."""
        found = (*self.uris, *self.dns, self.subject, self.fingerprint)
        return tuple(filter(None, found))


def identity_in_pem(certificate: str) -> Identity:
    """Return the identity of a certificate in PEM. Raises ``CertificateInvalid``."""
    from cryptography import x509

    return _read(x509.load_pem_x509_certificate, certificate.encode())


def identity_in_der(certificate: bytes) -> Identity:
    """Return the identity of a certificate in DER. Raises ``CertificateInvalid``."""
    from cryptography import x509

    return _read(x509.load_der_x509_certificate, certificate)


def identity_named(
    *, uris: tuple[str, ...], dns: tuple[str, ...], subject: str, fingerprint: str
) -> Identity:
    """Return the identity that a proxy describes without the certificate."""
    try:
        subject = canonical_subject(subject) if subject else ""
    except ValueError:
        raise CertificateInvalid("the subject is not a name in the form of RFC 4514") from None
    digest = canonical_fingerprint(fingerprint) if fingerprint else ""
    if digest is None:
        raise CertificateInvalid("the hash of the certificate is not a SHA-256")
    return Identity(_only(_URI, uris), _dns(dns), subject, fingerprint=digest)


def pinned(name: str) -> str:
    """Return an identity from an operator's settings in the form of ``Identity.names``.

    It is a SHA-256 fingerprint, a URI, a subject (RFC 4514) or a DNS name. Raises ``ValueError``.
    """
    if not isinstance(name, str):
        raise ValueError(f"an identity is text, not {name!r}")
    name = name.strip()
    fingerprint = canonical_fingerprint(name)
    if fingerprint is not None:
        return fingerprint
    if _URI.fullmatch(name) and "://" in name:
        return name
    if "=" in name:
        try:
            return canonical_subject(name)
        except ValueError:
            pass
    elif _DNS.fullmatch(name):
        return name.lower()
    raise ValueError(
        f"{name[:200]!r} names no certificate: give a URI (spiffe://example.org/shop), a DNS name "
        "(shop.example.org), a subject in the form of RFC 4514 (CN=shop,O=Example), or the SHA-256 "
        "fingerprint of a certificate (sha256:4f0a...)"
    )


def canonical_fingerprint(text: str) -> str | None:
    """Return a SHA-256 in lower-case hexadecimal digits, ``None`` for any other text."""
    found = _FINGERPRINT.fullmatch(text.strip())
    return None if found is None else found[1].replace(":", "").lower()


def canonical_subject(text: str) -> str:
    """Return a subject in the canonical form of RFC 4514. Raises ``ValueError``."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    names = {
        "emailAddress": NameOID.EMAIL_ADDRESS,
        "serialNumber": NameOID.SERIAL_NUMBER,
        "SN": NameOID.SURNAME,
        "GN": NameOID.GIVEN_NAME,
        "title": NameOID.TITLE,
    }
    try:
        parsed = x509.Name.from_rfc4514_string(_SPACE_AFTER_COMMA.sub(",", text), names)
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(str(error)) from None
    return parsed.rfc4514_string()


def _read(load: Callable[[bytes], Any], certificate: bytes) -> Identity:
    from cryptography import x509

    try:
        return _identity(load(certificate))
    except (
        ValueError,
        Warning,  # raised where warnings are errors
        x509.DuplicateExtension,
        x509.InvalidVersion,
        x509.UnsupportedGeneralNameType,
    ) as error:
        raise CertificateInvalid(f"the certificate cannot be read: {error}") from None


def _identity(certificate: Any) -> Identity:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    uris: list[str] = []
    dns: list[str] = []
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        pass
    else:
        uris = found.value.get_values_for_type(x509.UniformResourceIdentifier)
        dns = found.value.get_values_for_type(x509.DNSName)
    return Identity(
        _only(_URI, uris[:MAX_NAMES]),
        _dns(dns[:MAX_NAMES]),
        certificate.subject.rfc4514_string(),
        certificate.issuer.rfc4514_string(),
        hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest(),
        certificate.not_valid_before_utc.timestamp(),
        certificate.not_valid_after_utc.timestamp(),
    )


def _only(form: re.Pattern[str], names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that have the right form, so that a name is not mistaken for another
    kind."""
    return tuple(name for name in names if form.fullmatch(name))


def _dns(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return the DNS names, without names of 64 hexadecimal digits, which look like
    fingerprints."""
    found = (name.lower() for name in _only(_DNS, names))
    return tuple(name for name in found if canonical_fingerprint(name) is None)


# -- forwarded --------------------------------------------------------------------------------

XFCC = "X-Forwarded-Client-Cert"
CLIENT_CERT = "Client-Cert"

MAX_HEADER = 32 * 1024

_VALUE = re.compile(r'(?P<name>[A-Za-z]+)=(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^",;]*))')
_BYTES = re.compile(r":([A-Za-z0-9+/]*={0,2}):")


def forwarded_identity(header: str, values: Sequence[str]) -> Identity:
    """Return the identity in a trusted proxy's header. Raises ``CertificateInvalid``."""
    if sum(map(len, values)) > MAX_HEADER:
        raise CertificateInvalid("the header is too long")
    return _in_xfcc(",".join(values)) if header == XFCC else _in_client_cert(values)


def _in_client_cert(values: Sequence[str]) -> Identity:
    """Read ``Client-Cert``: one certificate in DER, as a byte sequence (RFC 9440 §2.2)."""
    if len(values) > 1:
        raise CertificateInvalid("the request has the header more than once")
    found = _BYTES.fullmatch(values[0].strip())
    if found is None:
        raise CertificateInvalid("the header is not a byte sequence, :base64:")
    try:
        return identity_in_der(b64decode(found[1], validate=True))
    except binascii.Error:
        raise CertificateInvalid("the header is not base64") from None


def _in_xfcc(value: str) -> Identity:
    """Read the last element of Envoy's header, which the nearest proxy added.

    Earlier elements were in the request to that proxy, and anyone could have written them.
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
