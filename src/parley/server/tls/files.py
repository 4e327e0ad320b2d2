"""Reads a certificate, its key and the authorities of callers, and checks that they fit."""

from __future__ import annotations

import datetime
import logging
import os
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from parley.server.sockets import ListenError
from parley.server.tls.options import PASSWORD_VARIABLE, CallerCertificates, TlsOptions

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The cipher suites of TLS 1.2: forward secrecy and authenticated encryption. 1.3 has no others."""

_SOON = datetime.timedelta(days=7)
_MAX_FILE = 1024 * 1024

_log = logging.getLogger("parley.server")


class TlsFailure(ListenError):
    """A server's TLS files cannot be used; the message says why, in one line."""


class TlsFiles(msgspec.Struct, frozen=True):
    """What the files of a server's TLS contain: PEM, the key decrypted.

    ``context`` serves HTTP with it.
    """

    cert: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext


Stamp = tuple[tuple[int, ...] | None, ...]
"""The identity of the files' contents; another one after each change."""


def stamp_of(options: TlsOptions) -> Stamp:
    """Return the stamp of the files as they are now; links are followed."""
    return tuple(_stamp(Path(each)) for each in _paths(options))


def read_files(
    options: TlsOptions,
    callers: CallerCertificates,
    make_context: Callable[[], ssl.SSLContext] | None = None,
) -> TlsFiles:
    """Read and check the files. Raises ``TlsFailure``."""
    cert = _read(options.cert, "certificate")
    key = _read(options.key, "private key")
    _warn_if_open(Path(options.key))
    password = os.environ.get(PASSWORD_VARIABLE, "")
    if is_encrypted(key) and not password:
        raise TlsFailure(
            f"the private key {options.key} is encrypted: set the environment variable "
            f"{PASSWORD_VARIABLE} to its passphrase, or give a key without one"
        )
    context = (make_context or new_context)()
    _load_pair(context, options, password, is_encrypted=is_encrypted(key))
    authorities = None
    if options.client_ca is not None:
        authorities = _read(options.client_ca, "authorities of callers")
        _load_authorities(context, options.client_ca, authorities)
        if callers != "none":
            is_required = callers == "required"
            context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    _warn_about_dates(options.cert, cert)
    if is_encrypted(key):
        key = _decrypted(key, password, options)
    return TlsFiles(cert, key, authorities, context)


def new_context() -> ssl.SSLContext:
    """Return a context of a server, as yet without a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    return context


def is_encrypted(key: bytes) -> bool:
    """Return whether a private key (PEM) needs a passphrase."""
    return b"BEGIN ENCRYPTED PRIVATE KEY" in key or b"Proc-Type: 4,ENCRYPTED" in key


def _paths(options: TlsOptions) -> list[str | Path]:
    return [each for each in (options.cert, options.key, options.client_ca) if each is not None]


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _read(path: str | Path, what: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise TlsFailure(f"the {what} {path} cannot be read: {error.strerror or error}") from None
    if len(content) > _MAX_FILE:
        raise TlsFailure(f"the {what} {path} is larger than a PEM file is: give the right file")
    if b"-----BEGIN " not in content:
        raise TlsFailure(
            f"the {what} {path} is not PEM, text that begins with -----BEGIN; openssl converts it"
        )
    return content


def _load_pair(
    context: ssl.SSLContext, options: TlsOptions, password: str, *, is_encrypted: bool
) -> None:
    # A callable, because OpenSSL would ask the terminal for a passphrase otherwise.
    try:
        context.load_cert_chain(options.cert, options.key, password=lambda: password)
    except ssl.SSLError as error:
        raise TlsFailure(_pair_problem(options, error, is_encrypted=is_encrypted)) from None
    except (OSError, ValueError) as error:
        raise TlsFailure(f"the certificate {options.cert} cannot be used: {error}") from None


def _pair_problem(options: TlsOptions, error: ssl.SSLError, *, is_encrypted: bool) -> str:
    reason = error.reason or ""
    if "MISMATCH" in reason:
        return (
            f"the private key {options.key} does not belong to the certificate {options.cert}: "
            "give the key that the certificate was made for, and its own certificate first"
        )
    if is_encrypted and (not reason or "DECRYPT" in reason or "PASSWORD" in reason):
        return f"{PASSWORD_VARIABLE} is not the passphrase of the private key {options.key}"
    if "TOO_SMALL" in reason or "TOO_WEAK" in reason:
        return f"the certificate {options.cert} is too weak ({reason}): make one with a larger key"
    return (
        f"the certificate {options.cert} and the private key {options.key} cannot be used: "
        f"{reason or 'not PEM as OpenSSL reads it'}"
    )


def _load_authorities(context: ssl.SSLContext, path: str | Path, content: bytes) -> None:
    try:
        context.load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsFailure(
            f"the authorities of callers {path} cannot be used: {getattr(error, 'reason', error)}"
        ) from None
    if not context.cert_store_stats()["x509_ca"]:
        raise TlsFailure(
            f"there is no certificate of an authority in {path}: a caller's own certificate is "
            "none; pin such ones with MutualTls(identities=...)"
        )


def _warn_if_open(key: Path) -> None:
    """Warn of a private key that every user of the machine can read (on POSIX)."""
    try:
        mode = key.stat().st_mode if os.name == "posix" else 0
    except OSError:  # gone since it was read: loading it fails
        return
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning("other users can read the private key %s: chmod o-rw it", key)


def _warn_about_dates(path: str | Path, content: bytes) -> None:
    """Warn of a certificate that has expired, soon expires, or is not valid yet."""
    from cryptography import x509

    try:
        own = x509.load_pem_x509_certificates(content)[0]
    except (ValueError, IndexError):
        return
    now = datetime.datetime.now(datetime.UTC)
    until = own.not_valid_after_utc
    if until < now:
        _log.warning("the certificate %s has expired on %s: callers refuse it", path, until)
    elif own.not_valid_before_utc > now:
        _log.warning("the certificate %s is valid from %s only", path, own.not_valid_before_utc)
    elif until - now < _SOON:
        _log.warning("the certificate %s expires on %s", path, until)


def _decrypted(key: bytes, password: str, options: TlsOptions) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        loaded = serialization.load_pem_private_key(key, password.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise TlsFailure(f"the private key {options.key} cannot be decrypted: {error}") from None
    return loaded.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
