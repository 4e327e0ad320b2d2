"""The client certificate of this server, for webhooks that ask for it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from parley.push.proofs.proof import (
    CREDENTIALS,
    SCHEME,
    Problem,
    ProofFailed,
    StaticProof,
    WebhookAttempt,
    WrongUrl,
)

if TYPE_CHECKING:
    import ssl

log = logging.getLogger("parley.push")

CertificateFiles = tuple[str | Path, str | Path] | tuple[str | Path, str | Path, str | Path]
"""A certificate with its chain, its key, and perhaps authorities of webhooks: PEM files."""


class WebhookCertificate(msgspec.Struct, frozen=True):
    """The certificate that this server shows to webhooks, as PEM files.

    ``cert`` has its chain; ``key`` may be in the same file, and is not encrypted. ``ca`` are the
    authorities of these webhooks' certificates, in place of the system's.
    """

    cert: str | Path
    key: str | Path | None = None
    ca: str | Path | None = None

    @classmethod
    def of(cls, given: WebhookCertificate | CertificateFiles) -> WebhookCertificate:
        """Return a certificate from its files. Raises ``TypeError`` for anything else."""
        if isinstance(given, WebhookCertificate):
            return given
        if isinstance(given, tuple) and len(given) in (2, 3):
            return cls(*given)
        raise TypeError(
            "webhook_certificate= is the files of a certificate and its key, as "
            '("chain.pem", "key.pem"), and perhaps of the authorities of webhooks'
        )

    @property
    def stamp(self) -> object:
        """The identity of the files' contents; another one after each change."""
        found = []
        for path in (self.cert, self.key, self.ca):
            try:
                state = None if path is None else Path(path).stat()
            except OSError:
                state = None
            found.append(state and (state.st_ino, state.st_size, state.st_mtime_ns))
        return found

    def context(self) -> ssl.SSLContext:
        """Return what connections are made with. Raises ``ValueError`` for unusable files."""
        import ssl

        try:
            made = ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except OSError as error:
            raise ValueError(
                f"the authorities in {self.ca} cannot be used: {_reason_of(error)}"
            ) from None
        try:
            # Without a password OpenSSL would ask for one on the terminal.
            made.load_cert_chain(self.cert, self.key, password=lambda: "")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"the certificate for webhooks {self.cert} with the key {self.key or self.cert} "
                f"cannot be used: {_reason_of(error)}; give PEM files that belong together, the "
                "key unencrypted"
            ) from None
        return made


class MutualTlsProof(StaticProof):
    """A connection with the certificate. Its files are read again when they change.

    Raises ``ValueError`` for unusable files.
    """

    sends_secret = False

    def __init__(self, certificate: WebhookCertificate | None) -> None:
        self._certificate = certificate
        if certificate is not None:
            self._stamp = certificate.stamp
            self._context = certificate.context()

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield what is missing: the certificate, or TLS."""
        if self._certificate is None:
            yield (
                SCHEME,
                "a scheme that this server can prove: it has no client certificate; its operator "
                "names one with webhook_certificate=",
            )
        if credentials:
            yield CREDENTIALS, "nothing: the certificate is that of the server"
        if urlsplit(url).scheme != "https":
            yield "url", "an https URL: certificates are part of TLS"

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return no headers: the connection is the proof."""
        if urlsplit(attempt.push.config.url).scheme != "https":
            raise ProofFailed("its URL is not https, and certificates are part of TLS")
        return {}

    def tls(self) -> ssl.SSLContext:
        """Return the context with the certificate. Raises ``ProofFailed`` without one."""
        certificate = self._certificate
        if certificate is None:
            raise ProofFailed("this server has no client certificate for webhooks")
        stamp = certificate.stamp
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = certificate.context()
                log.info("the certificate for webhooks was read again")
            except ValueError as error:
                log.error("the changed certificate cannot be used, the old one goes on: %s", error)
        return self._context


def _reason_of(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
