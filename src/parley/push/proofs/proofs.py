"""The proofs of one server, by the scheme that a configuration names; checks of configurations."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.ids import new_id
from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig
from parley.push.proofs.proof import (
    CREDENTIALS,
    SCHEME,
    Problem,
    ProofFailed,
    StaticProof,
    WebhookAttempt,
    WebhookProof,
    WrongUrl,
    may_be_plain,
)
from parley.push.proofs.schemes import (
    ApiKeyProof,
    AuthorizationProof,
    BasicProof,
    BearerProof,
    ClientCredentialsProof,
    HmacProof,
    JwtProof,
)
from parley.security.egress import Egress, ForbiddenAddress, normalize_host
from parley.security.sealing import SealBroken, Sealer
from parley.security.signing.keys import SigningKeys
from parley.store.protocols.webhooks import PushRecord

if TYPE_CHECKING:
    import ssl

# -- mutual tls -------------------------------------------------------------------------------

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


# -- proofs -----------------------------------------------------------------------------------


class Proofs:
    """What this server can prove itself with, and the clock of its attempts.

    ``issuer`` is its public address; without it, or without ``keys``, it signs no JWTs. Raises
    ``ValueError`` for a certificate that cannot be used. ``secret_key`` encrypts the secrets of
    stored configurations.
    """

    def __init__(
        self,
        egress: Egress,
        *,
        issuer: str = "",
        keys: SigningKeys | None = None,
        certificate: WebhookCertificate | None = None,
        secret_key: bytes | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._egress = egress
        self.clock = clock
        self.secrets = WebhookSecrets(secret_key)
        jwt = JwtProof(keys, issuer)
        self._client_credentials = ClientCredentialsProof(egress, monotonic)
        self._other = AuthorizationProof()
        self._proofs: dict[str, WebhookProof] = {
            "bearer": BearerProof(None if jwt.missing else jwt),
            "basic": BasicProof(),
            "apikey": ApiKeyProof(),
            "oauth2": self._client_credentials,
            "hmac-sha256": HmacProof(),
            "jwt": jwt,
            "mutualtls": MutualTlsProof(certificate),
        }

    def of(self, authentication: AuthenticationInfo) -> WebhookProof:
        """Return the proof of a scheme, whose name has no case."""
        return self._proofs.get(authentication.scheme.lower(), self._other)

    def problems(
        self, authentication: AuthenticationInfo, url: str, wrong_url: WrongUrl
    ) -> list[Problem]:
        """Return the faults of a configuration, whose ``url`` is right."""
        proof = self.of(authentication)
        found = list(proof.problems(authentication.credentials, url, wrong_url))
        if proof.sends_secret and authentication.credentials and not self._is_private(url):
            found.append(
                (
                    "url",
                    f"an https URL, as {authentication.scheme} sends a secret; plain http is for "
                    "hosts that the operator allows",
                )
            )
        return found

    def _is_private(self, url: str) -> bool:
        address = urlsplit(url)
        return address.scheme == "https" or may_be_plain(address.hostname or "", self._egress)

    async def close(self) -> None:
        """End the requests for tokens that are under way."""
        await self._client_credentials.close()


# -- secrets at rest --------------------------------------------------------------------------

MARK = "\u00a7"
"""The beginning of an encrypted secret. No secret of a caller has it: those are ASCII."""

_TOKEN, _CREDENTIALS = "token of a webhook", "credentials of a webhook"


class WebhookSecrets:
    """Encrypts the ``token`` and the credentials of configurations with the key of the operator.

    Each is encrypted for its URL, so that no writer to the database can have it sent to
    another. Equal configurations have equal forms: a repeated configuration changes nothing.
    Without a key secrets are kept as they are.
    """

    def __init__(self, key: bytes | None) -> None:
        self._sealer = None if key is None else Sealer(key)

    def sealed(self, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return a configuration as it is stored."""
        if self._sealer is None:
            return config
        authentication = config.authentication
        if config.token:
            config = replace(config, token=self._seal(_TOKEN, config.token, config.url))
        if authentication is not None and authentication.credentials:
            credentials = self._seal(_CREDENTIALS, authentication.credentials, config.url)
            authentication = replace(authentication, credentials=credentials)
            config = replace(config, authentication=authentication)
        return config

    def opened(self, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return a stored configuration as its creator gave it. Raises ``ProofFailed``."""
        authentication = config.authentication
        if config.token.startswith(MARK):
            config = replace(config, token=self._open(_TOKEN, config.token, config.url))
        if authentication is not None and authentication.credentials.startswith(MARK):
            credentials = self._open(_CREDENTIALS, authentication.credentials, config.url)
            authentication = replace(authentication, credentials=credentials)
            config = replace(config, authentication=authentication)
        return config

    def _seal(self, purpose: str, text: str, url: str) -> str:
        assert self._sealer is not None
        return MARK + self._sealer.seal_equally(purpose, text.encode(), url)

    def _open(self, purpose: str, text: str, url: str) -> str:
        try:
            if self._sealer is None:
                raise SealBroken
            return self._sealer.open(purpose, text.removeprefix(MARK), url).decode()
        except SealBroken:
            raise ProofFailed(
                "its secrets in the store cannot be read with this server's secret key; create "
                "the configuration again",
                is_refusal=True,
            ) from None


# -- validation -------------------------------------------------------------------------------

MAX_ID = 256
MAX_URL = 2048
MAX_SECRET = 4096

_SCHEME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
_HEADER = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_IN_URL = re.compile(r"[\s\x00-\x20\x7f-\x9f\\\ud800-\udfff]")
_IN_BRACKETS = re.compile(r"\[[0-9A-Fa-f:.]+\](?::[0-9]*)?")


def validated(
    config: TaskPushNotificationConfig,
    egress: Egress,
    *,
    version: str,
    at: str = "",
    proofs: Proofs | None = None,
) -> PushRecord:
    """Return the record to store for a configuration.

    ``version`` is the request's; notifications are written in it. ``at`` is the path of the
    configuration in the request. ``proofs`` are what this server can prove itself with, and
    encrypt the secrets. Raises ``InvalidParamsError``, which names every violation and repeats no
    secret.
    """
    wrong = _wrong_url(config.url, egress)
    authentication = config.authentication
    problems = [
        ("id", _wrong_id(config.id)),
        ("url", wrong),
        ("token", _wrong_secret(config.token)),
    ]
    malformed = _wrong_authentication(authentication)
    problems += malformed
    proofs = proofs or Proofs(egress)
    if authentication is not None and not wrong and not malformed:
        wrong_url = partial(_wrong_url, egress=egress)
        problems += proofs.problems(authentication, config.url, wrong_url)
    violations = [FieldViolation(f"{at}{field}", problem) for field, problem in problems if problem]
    if violations:
        message = "; ".join(f"{each.field}: {each.description}" for each in violations)
        raise InvalidParamsError(message, violations=tuple(violations))
    if authentication is not None and not authentication.scheme:
        authentication = None  # some clients write "none" so
    config = replace(config, tenant="", task_id="", authentication=authentication)
    return PushRecord(config=proofs.secrets.sealed(config), version=version, revision=new_id())


def _wrong_id(push_id: str) -> str:
    if len(push_id) > MAX_ID or _CONTROLS.search(push_id) or push_id in (".", ".."):
        return f"at most {MAX_ID} characters, none of them a control character"
    return ""


def _wrong_url(url: str, egress: Egress) -> str:
    if len(url) > MAX_URL:
        return f"at most {MAX_URL} characters"
    try:
        address = urlsplit(url)
        host, port = address.hostname or "", address.port  # which has to be a number
    except ValueError:
        host, port = "", None
    if not host or address.scheme not in ("http", "https") or _NOT_IN_URL.search(url):
        return "an absolute http or https URL, such as https://example.com/notifications"
    if "@" in address.netloc:
        return "a URL without user and password; give credentials as authentication"
    if port == 0:
        return "a URL with a port from 1 to 65535, or without one"
    try:
        if "[" in address.netloc and not _IN_BRACKETS.fullmatch(address.netloc):
            raise ValueError("an IPv6 address in brackets, or a name without them")
        host = normalize_host(host)
    except ValueError as error:
        return f"a URL whose host is {error}"
    try:
        egress.check_host(host, port or (443 if address.scheme == "https" else 80))
    except ForbiddenAddress as error:
        return f"{error}, to which this server sends nothing"
    return ""


def _wrong_secret(secret: str) -> str:
    if secret and (len(secret) > MAX_SECRET or not _HEADER.fullmatch(secret)):
        return (
            f"at most {MAX_SECRET} printable ASCII characters, not beginning or ending with "
            "a space, as it is sent in a header"
        )
    return ""


def _wrong_authentication(given: AuthenticationInfo | None) -> list[tuple[str, str]]:
    """Return what is malformed."""
    if given is None or not (given.scheme or given.credentials):
        return []
    scheme = "" if _SCHEME.fullmatch(given.scheme) else "an HTTP authentication scheme, as Bearer"
    found = [
        ("authentication.scheme", scheme),
        ("authentication.credentials", _wrong_secret(given.credentials)),
    ]
    return [each for each in found if each[1]]
