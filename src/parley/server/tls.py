"""TLS of the server: certificate files that are reloaded, and the certificates of callers."""

from __future__ import annotations

import asyncio
import datetime
import gc
import logging
import os
import ssl
import stat
import time
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec

from parley.security.authorization import Authorization
from parley.security.schemes.scheme import Security
from parley.server.settings import PASSWORD_VARIABLE, CallerCertificates, TlsOptions
from parley.server.sockets import ListenError

if TYPE_CHECKING:
    from parley.security.schemes.mutual_tls import MutualTls

# -- certificates of callers ------------------------------------------------------------------


def asked_of_callers(authorizations: Sequence[Authorization | None]) -> CallerCertificates:
    """Return whether callers must have a certificate of the server's ``client_ca``.

    They must if every agent requires one, or if no agent declares a use of certificates. If there
    are other ways to authenticate, certificates are optional.
    """
    rules = [each for each in authorizations if each is not None]
    if not any(_schemes(each) for each in rules):
        return "required"
    is_required = len(rules) == len(authorizations) and all(map(_is_required, rules))
    return "required" if is_required else "optional"


def lacks_certificates(authorizations: Sequence[Authorization | None]) -> list[MutualTls]:
    """Return the schemes that no caller satisfies on a server that asks for no certificates."""
    found = (scheme for each in authorizations if each is not None for scheme in _schemes(each))
    return [each for each in dict.fromkeys(found) if not each.reads_header]


def _schemes(rules: Authorization) -> list[MutualTls]:
    from parley.security.schemes.mutual_tls import MutualTls

    return [
        scheme
        for security in rules.securities
        for scheme in security.schemes
        if isinstance(scheme, MutualTls)
    ]


def _is_required(rules: Authorization) -> bool:
    own = () if rules.security is None else (rules.security,)
    return bool(own) and all(map(_needs_certificate, (*own, *rules.operations.values())))


def _needs_certificate(security: Security) -> bool:
    from parley.security.schemes.mutual_tls import MutualTls

    return all(
        any(isinstance(each.scheme, MutualTls) and not each.scheme.reads_header for each in needs)
        for needs in security.alternatives
    )


# -- ASGI -------------------------------------------------------------------------------------

_VERSIONS = {"TLSv1.2": 0x0303, "TLSv1.3": 0x0304}


def tls_extension(connection: ssl.SSLObject) -> dict[str, Any]:
    """Return the extension ``tls`` of the ASGI scopes of a connection.

    The handshake has verified its certificates. Before Python 3.13 the chain is only the caller's
    own certificate.
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
    # A resumed session has no chain, only the certificate that its first handshake verified.
    return (list(verified()) if verified is not None else []) or [own]


def _name(certificate: bytes) -> str:
    from cryptography import x509

    return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()


# -- files ------------------------------------------------------------------------------------

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""The cipher suites of TLS 1.2: forward secrecy and authenticated encryption. 1.3 has no others."""

_SOON = datetime.timedelta(days=7)
_MAX_FILE = 1024 * 1024

_log = logging.getLogger("parley.server")


class TlsFailure(ListenError):
    """A server's TLS files cannot be used; the message says why, in one line."""


class TlsFiles(msgspec.Struct, frozen=True):
    """The contents of a server's TLS files: PEM, the key decrypted.

    ``context`` serves HTTP with it.
    """

    cert: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext


Stamp = tuple[tuple[int, ...] | None, ...]
"""The identity of the files' contents, which differs after each change."""


def stamp_of(options: TlsOptions) -> Stamp:
    """Return the stamp of the current files; links are followed."""
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
    except OSError:  # removed since it was read: loading it fails
        return
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning("other users can read the private key %s: chmod o-rw it", key)


def _warn_about_dates(path: str | Path, content: bytes) -> None:
    """Warn of a certificate that has expired, expires soon, or is not valid yet."""
    from cryptography import x509

    try:
        own = x509.load_pem_x509_certificates(content)[0]
    except (ValueError, IndexError):
        return
    now = datetime.datetime.now(datetime.UTC)
    until = own.not_valid_after_utc
    if until < now:
        _log.warning("the certificate %s has expired on %s: callers reject it", path, until)
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


# -- reloading --------------------------------------------------------------------------------

MAX_HANDSHAKES = 5000
HANDSHAKE_SECONDS = 60.0
"""The default time that an event loop waits for a handshake."""


class Handshakes:
    """Counts the running handshakes, and rejects more than ``limit``.

    A handshake is over after ``seconds``, when the event loop ends it, or when its object is gone:
    closing a connection does not report the end of its handshake.
    """

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._begun: weakref.WeakKeyDictionary[object, float] = weakref.WeakKeyDictionary()

    def begin(self, handshake: object) -> None:
        """Count a handshake. Raises ``ssl.SSLError`` if there are too many."""
        now = time.monotonic()
        while (first := next(iter(self._begun.items()), None)) is not None:
            if first[1] > now - self._seconds:
                break
            self._begun.pop(first[0], None)
        if len(self._begun) >= self._limit:
            gc.collect(1)  # asyncio leaves closed connections in a reference cycle
        if len(self._begun) >= self._limit:
            raise ssl.SSLError("too many handshakes at a time")
        self._begun[handshake] = now

    def end(self, handshake: object) -> None:
        """Stop counting a handshake."""
        self._begun.pop(handshake, None)


class _Handshake:
    """A handshake that is counted as long as its connection refers to it."""


class _Connection(ssl.SSLObject):
    """The TLS of one connection: its handshake is counted, and its failure logged."""

    handshakes: ClassVar[Handshakes]
    _handshake: _Handshake | None = None

    def do_handshake(self) -> None:
        """Do the next step of the handshake."""
        try:
            if self._handshake is None:
                self._handshake = _Handshake()
                self.handshakes.begin(self._handshake)
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.handshakes.end(self._handshake)
            reason = getattr(error, "reason", "") or str(error)
            is_about_caller = isinstance(error, ssl.SSLCertVerificationError) or (
                "PEER_DID_NOT_RETURN" in reason
            )
            level = logging.INFO if is_about_caller else logging.DEBUG
            why = getattr(error, "verify_message", "") or reason
            _log.log(level, "a TLS handshake failed: %s", why)
            raise
        self.handshakes.end(self._handshake)


class _CurrentContext(ssl.SSLContext):
    """A context for an event loop's server, which uses the current context for each connection."""

    tls: ReloadingTls

    def __new__(cls, tls: ReloadingTls) -> Self:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made.tls = tls
        return made

    def __init__(self, tls: ReloadingTls) -> None:
        """The arguments are those of ``__new__``."""

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Return the TLS of a new connection."""
        return self.tls.files.context.wrap_bio(*args, **options)


class ReloadingTls:
    """The TLS of a server, from files that may change while it runs.

    ``callers`` decides whether callers are asked for a certificate, if the options name
    authorities. Open connections keep their certificates. Unusable files are logged, once for each
    change, and the previous content stays in use.

    ``handshakes`` bounds the running handshakes of HTTP; gRPC has its own limit.

    Raises ``TlsFailure`` if the files cannot be used at the start.
    """

    def __init__(
        self,
        options: TlsOptions,
        callers: CallerCertificates = "required",
        *,
        handshakes: Handshakes | None = None,
    ) -> None:
        handshakes = handshakes or Handshakes(MAX_HANDSHAKES, HANDSHAKE_SECONDS)
        self._connection = type("Connection", (_Connection,), {"handshakes": handshakes})
        self.options = options
        self.callers: CallerCertificates = callers if options.client_ca is not None else "none"
        self._stamp = stamp_of(options)
        self.files: TlsFiles = read_files(options, self.callers, self._context)
        self.context: ssl.SSLContext = _CurrentContext(self)

    def _context(self) -> ssl.SSLContext:
        context = new_context()
        context.sslobject_class = self._connection
        return context

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Follow changes of the files within the context."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.options.check_interval)
            stamp = await asyncio.to_thread(stamp_of, self.options)
            if stamp != self._stamp:
                await self._reload(stamp)

    async def reload(self) -> str:
        """Read the files if they have changed. Return what is new, for the log."""
        before, stamp = self.files, await asyncio.to_thread(stamp_of, self.options)
        if stamp != self._stamp:
            await self._reload(stamp)
        return "" if self.files is before else f"the certificate {self.options.cert}"

    async def _reload(self, stamp: Stamp) -> None:
        """Use the current files, if they are usable and stay the same meanwhile."""
        cert = self.options.cert
        try:
            files = await asyncio.to_thread(read_files, self.options, self.callers, self._context)
        except TlsFailure as failure:
            files = None
            reason = str(failure)
        if await asyncio.to_thread(stamp_of, self.options) != stamp:
            return  # still being written: the next check reads them
        self._stamp = stamp
        if files is None:
            _log.error("the new certificate is not used, the previous one stays in use: %s", reason)
        else:
            self.files = files
            _log.info("the certificate %s was read again, for new connections", cert)
