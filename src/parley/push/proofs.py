"""The authentication of this server to webhooks: one proof for each scheme of a configuration.

Also validates configurations and encrypts their secrets. The wire format is
``docs/reference/extensions/push-proofs.md``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec.structs import replace

from parley.model.concurrency import SingleFlight
from parley.model.errors import FieldViolation, InvalidParamsError
from parley.model.ids import new_id
from parley.model.operations import AuthenticationInfo, TaskPushNotificationConfig, server_of
from parley.push.scheduler import DeliveryCall, DestinationBusy
from parley.security.egress import (
    Egress,
    ForbiddenAddress,
    find_cause,
    find_forbidden,
    normalize_host,
)
from parley.security.issuers import ClientIdentity, lifetime_of
from parley.security.outbound import read_start
from parley.security.response_limits import ResponseLimitExceeded
from parley.security.sealing import SealBroken, Sealer
from parley.security.signing.keys import SigningKeys, stamp_of
from parley.store.protocols.webhooks import PushRecord

if TYPE_CHECKING:
    import ssl

    import aiohttp

Problem = tuple[str, str]
"""A field of a configuration, and its right form. Repeats no secret."""

WrongUrl = Callable[[str], str]
"""Returns the fault of an address that this server shall call, empty for a right address."""

SCHEME, CREDENTIALS = "authentication.scheme", "authentication.credentials"

SENDS_SECRET = ("bearer", "basic", "apikey", "oauth2")
"""Schemes with which a reader of a delivery could send others, so plain http is rejected."""


class WebhookAttempt(NamedTuple):
    """One attempt to deliver a body to a webhook.

    ``id`` is the delivery's, ``at`` the time of this attempt in seconds since 1970.
    ``id`` is the delivery's, ``at`` the time of this attempt in seconds since 1970. ``task_id`` is
    empty for a direct reply. ``caller`` owns the configuration. ``session`` returns the guarded
    session for a host; ``requests`` counts the requests of the attempt.
    """

    push: PushRecord
    body: bytes
    id: str
    at: int
    task_id: str
    caller: str
    session: Callable[[str], aiohttp.ClientSession]
    requests: DeliveryCall | None = None

    @property
    def scheme(self) -> str:
        """The scheme of the configuration, in lower case."""
        authentication = self.push.config.authentication
        return "" if authentication is None else authentication.scheme.lower()

    @property
    def credentials(self) -> str:
        """The credentials of the configuration."""
        authentication = self.push.config.authentication
        return "" if authentication is None else authentication.credentials


class ProofFailed(Exception):
    """There is no proof, so nothing is sent. The message has the reason, without secrets.

    ``is_refusal``: a person has to change something first.
    """

    def __init__(self, reason: str, *, is_refusal: bool = False) -> None:
        super().__init__(reason)
        self.is_refusal = is_refusal


def may_be_plain(host: str, egress: Egress) -> bool:
    """Return whether secrets may be sent to a host over plain http.

    The operator must allow this host, by its name or as one of its networks. Decided by the URL
    alone: a public name never counts as a private network.
    """
    if egress.trusts(host):
        return True
    try:
        egress.check_host(host)
    except ForbiddenAddress:
        return False
    try:
        Egress().check_host(host)
    except ForbiddenAddress:
        return True
    return False


def _is_private(url: str, egress: Egress) -> bool:
    """Return whether a secret may be sent to an address."""
    address = urlsplit(url)
    return address.scheme == "https" or may_be_plain(address.hostname or "", egress)


# -- client token -----------------------------------------------------------------------------


BASIC, POST = METHODS = ("client_secret_basic", "client_secret_post")

TIMEOUT = 8.0
MAX_BYTES = 64 * 1024
MAX_TOKEN = 16 * 1024

RENEWED_BEFORE = 60.0
"""The seconds before its end that a token is renewed; a fifth of its time, if that is less."""

DEFAULT_LIFETIME = 300.0
"""The seconds that a token is cached if its endpoint does not state its lifetime."""

MAX_LIFETIME = 24 * 3600.0

PAUSE, PAUSE_AFTER_REFUSAL = 1.0, 10.0
"""The pause in seconds before an endpoint is called again after it failed, or rejected a
request."""

_BEARER_TOKEN = re.compile(r"[\x21-\x7e]+")
_ERROR_CODE = re.compile(r"[a-z0-9_.-]{1,64}")


class TokenRequest(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """A request to a token endpoint. ``repr`` shows no secrets."""

    token_url: str
    client_id: str
    client_secret: str
    scope: str = ""
    audience: str = ""
    resource: str = ""
    auth_method: str = BASIC

    def __repr__(self) -> str:
        return f"TokenRequest(token_url='{server_of(self.token_url)}/...')"


class ClientToken:
    """A token and its lifetime. At most one request runs at a time."""

    def __init__(self, request: TokenRequest, monotonic: Callable[[], float]) -> None:
        self._request = request
        self._monotonic = monotonic
        self._value = ""
        self._renew_at = self._expires_at = self._next_attempt = 0.0
        self._failure: ProofFailed | None = None
        self._attempt: WebhookAttempt
        self._flight = SingleFlight(self._renew)

    def __repr__(self) -> str:
        return f"ClientToken({self._request!r})"

    async def get(self, attempt: WebhookAttempt) -> str:
        """Return a valid token, requesting one for the attempt if needed. Raises
        ``ProofFailed``."""
        now = self._monotonic()
        if self._value and now < self._renew_at:
            return self._value
        if now >= self._next_attempt:
            self._attempt = attempt
            await self._flight.join()
        if self._value and self._monotonic() < self._expires_at:
            return self._value
        failure = self._failure
        raise ProofFailed(
            str(failure or "the request for an access token was interrupted"),
            is_refusal=failure is not None and failure.is_refusal,
        )

    def drop(self, value: str) -> None:
        """Drop a token that a webhook rejected, unless it has been replaced."""
        if value and value == self._value:
            self._value, self._next_attempt = "", 0.0

    async def close(self) -> None:
        """Cancel the request in progress."""
        await self._flight.close()

    async def _renew(self) -> None:
        try:
            value, lifetime = await self._obtain()
        except ProofFailed as failure:
            log.info("%s", failure)
            self._failure = failure
            pause = PAUSE_AFTER_REFUSAL if failure.is_refusal else PAUSE
            self._next_attempt = self._monotonic() + pause
            return
        now = self._monotonic()
        self._value, self._failure, self._next_attempt = value, None, 0.0
        self._expires_at = now + lifetime
        self._renew_at = self._expires_at - min(RENEWED_BEFORE, lifetime / 5)

    async def _obtain(self) -> tuple[str, float]:
        """Return a new token and its lifetime in seconds. Raises ``ProofFailed``."""
        import aiohttp

        where = f"the token endpoint at {server_of(self._request.token_url)}"
        host = urlsplit(self._request.token_url).hostname or ""
        requests = self._attempt.requests
        try:
            with nullcontext() if requests is None else requests.token(host):
                return _read_answer(where, *await self._post(host))
        except TimeoutError:
            raise ProofFailed(f"{where} does not answer in {TIMEOUT:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            forbidden = find_forbidden(error)
            if forbidden is not None:
                raise ProofFailed(f"{where} is {forbidden.where}", is_refusal=True) from None
            if find_cause(error, DestinationBusy) is not None:
                raise ProofFailed(f"{where}: its limit of requests is reached") from None
            if find_cause(error, ResponseLimitExceeded) is not None:
                raise ProofFailed(f"{where} sends an answer that exceeds the limits") from None
            reason = type(error).__name__
            raise ProofFailed(f"{where} cannot be reached ({reason})") from None

    async def _post(self, host: str) -> tuple[int, bytes]:
        """Ask the endpoint. Return the status and the body of the answer."""
        asked = self._request
        client = ClientIdentity(asked.client_id, asked.client_secret, asked.auth_method)
        form = {"grant_type": "client_credentials"}
        form |= {name: getattr(asked, name) for name in ("scope", "audience", "resource")}
        headers, form = client.apply({name: value for name, value in form.items() if value})
        headers |= {"Accept": "application/json", "Accept-Encoding": "identity"}
        async with (
            asyncio.timeout(TIMEOUT),
            self._attempt.session(host).post(
                asked.token_url, data=form, headers=headers, allow_redirects=False
            ) as response,
        ):
            body = await read_start(response.content, MAX_BYTES + 1)
            if len(body) > MAX_BYTES:
                raise ResponseLimitExceeded
            return response.status, body


def _read_answer(where: str, status: int, body: bytes) -> tuple[str, float]:
    try:
        content: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        content = {}
    if status != 200:
        error = content.get("error")
        reason = f": {error}" if isinstance(error, str) and _ERROR_CODE.fullmatch(error) else ""
        raise ProofFailed(
            f"{where} answers with HTTP {status}{reason}",
            is_refusal=300 <= status < 500 and status not in (408, 425, 429),
        )
    value, kind = content.get("access_token"), content.get("token_type")
    if not isinstance(value, str) or len(value) > MAX_TOKEN or not _BEARER_TOKEN.fullmatch(value):
        raise ProofFailed(f"{where} answers without an access token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise ProofFailed(f"{where} answers with a token that is not of the type Bearer")
    return value, min(lifetime_of(content) or DEFAULT_LIFETIME, MAX_LIFETIME)


# -- authorization ----------------------------------------------------------------------------

AUTHORIZATION = "Authorization"


def _basic_problems(credentials: str) -> Iterator[Problem]:
    """Yield a violation unless there is a user and a password, plain or in base64 (RFC 7617)."""
    if not credentials or not (":" in credentials or _is_encoded(credentials)):
        yield CREDENTIALS, "user:password, or the base64 of it"


def _basic(attempt: WebhookAttempt) -> Mapping[str, str]:
    """Return user and password in base64."""
    credentials = attempt.credentials
    if ":" in credentials:
        credentials = base64.b64encode(credentials.encode()).decode()
        return {AUTHORIZATION: f"Basic {credentials}"}
    return as_configured(attempt)


def as_configured(attempt: WebhookAttempt) -> Mapping[str, str]:
    """Return ``<scheme> <credentials>``."""
    authentication = attempt.push.config.authentication
    if authentication is None or not authentication.credentials:
        return {}
    return {AUTHORIZATION: f"{authentication.scheme} {authentication.credentials}"}


def _is_encoded(credentials: str) -> bool:
    try:
        return b":" in base64.b64decode(credentials, validate=True)
    except (ValueError, binascii.Error):
        return False


# -- api key ----------------------------------------------------------------------------------

_NAMED = re.compile(
    r"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}): ([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)"
)

# Headers for framing and routing of the request, and headers that Parley itself sets.
_RESERVED = frozenset(
    [
        "accept", "accept-encoding", "age", "allow", "alt-svc", "cache-control", "connection",
        "cookie", "cookie2", "date", "expect", "forwarded", "host", "http2-settings", "keep-alive",
        "location", "origin", "range", "referer", "set-cookie", "te", "trailer",
        "transfer-encoding", "upgrade", "user-agent", "via",
    ]
)  # fmt: skip
_RESERVED_PREFIXES = (
    "a2a-", "content-", "if-", "proxy-", "sec-", "webhook-", "x-a2a-", "x-forwarded-",
    "x-http-method", "x-method-", "x-original-", "x-real-", "x-rewrite-",
)  # fmt: skip


def _api_key_problems(credentials: str) -> Iterator[Problem]:
    """Yield a violation for credentials that name no header, or one of another meaning."""
    named = _NAMED.fullmatch(credentials)
    if named is None:
        yield CREDENTIALS, "the name of a header and the key, such as X-API-Key: 7f3a"
    elif is_reserved(named[1]):
        yield (
            CREDENTIALS,
            f"the name of a header that is free for a key, such as X-API-Key; {named[1]} "
            "has another meaning in the request",
        )


def _api_key(attempt: WebhookAttempt) -> Mapping[str, str]:
    """Return the header of the key: ``<header name>: <key>``."""
    named = _NAMED.fullmatch(attempt.credentials)
    if named is None or is_reserved(named[1]):
        return as_configured(attempt)  # stored before keys had names
    return {named[1]: named[2]}


def is_reserved(name: str) -> bool:
    """Return whether a header has another meaning in the request, so that no key may be sent in
    it."""
    name = name.lower()
    return name in _RESERVED or name.startswith(_RESERVED_PREFIXES)


# -- hmac sha256 ------------------------------------------------------------------------------

SIGNATURE = "webhook-signature"
PREFIX = "whsec_"

MIN_SECRET_BYTES = 24
MAX_SECRETS = 5


def _hmac_problems(credentials: str) -> Iterator[Problem]:
    """Yield a violation for secrets that cannot be used."""
    try:
        secrets_in(credentials)
    except ValueError as error:
        yield CREDENTIALS, str(error)


def _hmac(attempt: WebhookAttempt) -> Mapping[str, str]:
    """Return HMAC-SHA256 of the id, the time and the body: one signature for each secret."""
    try:
        secrets = secrets_in(attempt.credentials)
    except ValueError:
        raise ProofFailed("its configuration has no secrets to sign with") from None
    signed = f"{attempt.id}.{attempt.at}.".encode("ascii") + attempt.body
    return {SIGNATURE: " ".join(f"v1,{signature(secret, signed)}" for secret in secrets)}


def signature(secret: bytes, signed: bytes) -> str:
    """Return the signature of bytes in base64."""
    return base64.b64encode(hmac.digest(secret, signed, "sha256")).decode("ascii")


def secrets_in(credentials: str) -> tuple[bytes, ...]:
    """Return the secrets in credentials. Raises ``ValueError``, which does not quote them."""
    given = credentials.split(" ")
    if not credentials or "" in given or len(given) > MAX_SECRETS:
        raise ValueError(
            f"a secret, such as whsec_<base64>, or up to {MAX_SECRETS} separated by single spaces"
        )
    secrets = tuple(map(_secret, given))
    if any(len(secret) < MIN_SECRET_BYTES for secret in secrets):
        raise ValueError(f"secrets of {MIN_SECRET_BYTES} bytes or more")
    return secrets


def _secret(text: str) -> bytes:
    if not text.startswith(PREFIX):
        return text.encode()
    try:
        encoded = text.removeprefix(PREFIX)
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (ValueError, binascii.Error):
        raise ValueError(f"base64 behind {PREFIX}, or a secret without that prefix") from None


# -- jwt --------------------------------------------------------------------------------------

LIFETIME = 300
"""The seconds that a JWT is valid."""


class _Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    audience: str = ""


class WebhookClaims(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The claims of a delivery."""

    iss: str
    aud: str
    iat: int
    exp: int
    jti: str
    task_id: str = msgspec.field(default="", name="taskId")
    request_body_sha256: str


def _jwt_problems(missing: str, credentials: str, url: str) -> Iterator[Problem]:
    """Yield missing settings of the server, and an audience that is not the webhook's."""
    if missing:
        yield SCHEME, f"a scheme that this server can prove: {missing}"
    try:
        _audience(credentials, url)
    except ValueError as error:
        yield CREDENTIALS, str(error)


def _jwt(
    keys: SigningKeys | None, issuer: str, missing: str, attempt: WebhookAttempt
) -> Mapping[str, str]:
    """Return a JWT about this attempt: ``Authorization: Bearer <JWT>``."""
    try:
        audience = _audience(attempt.credentials, attempt.push.config.url)
    except ValueError as error:
        if attempt.credentials.startswith("{"):
            raise ProofFailed(f"its configuration states no right audience: {error}") from None
        return as_configured(attempt)  # a token, from before this server signed
    if keys is None or missing:
        raise ProofFailed(missing)
    claims = WebhookClaims(
        iss=issuer,
        aud=audience,
        iat=attempt.at,
        exp=attempt.at + LIFETIME,
        jti=attempt.id,
        task_id=attempt.task_id,
        request_body_sha256=hashlib.sha256(attempt.body).hexdigest(),
    )
    token = keys.signers[0].jws({"typ": "JWT"}, msgspec.json.encode(claims))
    return {AUTHORIZATION: f"Bearer {token}"}


def default_audience(url: str) -> str:
    """Return the audience of a webhook that states none: its URL up to the query."""
    return url.partition("#")[0].partition("?")[0]


def _audience(credentials: str, url: str) -> str:
    """Return the audience of a webhook. Raises ``ValueError``.

    If any audience were accepted, a caller could have a JWT made for another receiver, at another
    host or path, sent to a webhook of its own, and use it there.
    """
    if not credentials:
        return default_audience(url)
    try:
        stated = msgspec.json.decode(credentials, type=_Options).audience
    except (msgspec.DecodeError, ValueError, RecursionError):
        raise ValueError(
            'nothing, or an audience such as {"audience": "https://example.com/notifications"}'
        ) from None
    if stated and not _is_leading(stated, url):
        raise ValueError(
            "an audience that is the webhook's own url, or its beginning up to the end of the host "
            "or of a segment of the path"
        )
    return stated or default_audience(url)


def _is_leading(stated: str, url: str) -> bool:
    if stated == url:
        return True
    address = urlsplit(url)
    is_whole = stated.endswith("/") or url[len(stated) : len(stated) + 1] in ("/", "?", "#")
    return (
        url.startswith(stated)
        and is_whole
        and len(stated) >= len(f"{address.scheme}://{address.netloc}")
        # These segments are resolved before the call, so the beginning may be a path that is not
        # called.
        and not any(unquote(segment) in (".", "..") for segment in address.path.split("/"))
    )


# -- oauth2 -----------------------------------------------------------------------------------

MAX_TOKENS = 4096
"""The maximum number of cached access tokens; the least recently used one is dropped."""

MAX_TOKENS_PER_CALLER = 256

_TEXT = re.compile(r"[\x20-\x7e]+")


def _oauth2_problems(credentials: str, wrong_url: WrongUrl, egress: Egress) -> Iterator[Problem]:
    """Yield the faults of a request for a token, member by member."""
    try:
        asked = msgspec.json.decode(credentials or "null", type=dict[str, object])
    except (msgspec.DecodeError, ValueError, RecursionError):
        yield (
            CREDENTIALS,
            'a JSON object with "tokenUrl", "clientId" and "clientSecret", and perhaps '
            '"scope", "audience", "resource" and "authMethod"',
        )
        return
    for name in ("tokenUrl", "clientId", "clientSecret"):
        if name not in asked or asked[name] == "":
            yield f"{CREDENTIALS}.{name}", "a text"
    for name, value in asked.items():
        if not value and isinstance(value, str) and name != "authMethod":
            continue  # reported above if it is required
        if name not in TokenRequest.__struct_encode_fields__:
            known = ", ".join(TokenRequest.__struct_encode_fields__)
            yield CREDENTIALS, f"no other members than {known}"
        elif not isinstance(value, str) or not _TEXT.fullmatch(value):
            yield f"{CREDENTIALS}.{name}", "a text of printable ASCII characters"
        elif name == "authMethod" and value not in METHODS:
            yield f"{CREDENTIALS}.{name}", " or ".join(METHODS)
        elif name == "tokenUrl" and (problem := _wrong_endpoint(value, wrong_url, egress)):
            yield f"{CREDENTIALS}.{name}", problem


def _wrong_endpoint(url: str, wrong_url: WrongUrl, egress: Egress) -> str:
    if problem := wrong_url(url):
        return problem
    if "#" in url:
        return "a URL without a fragment"
    return "" if _is_private(url, egress) else "an https URL: the client's secret goes there"


class ClientTokens:
    """The access tokens of callers. A token is used for the deliveries of one caller only.

    Belongs to the event loop that uses it first.
    """

    def __init__(self, egress: Egress, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._egress = egress
        self._monotonic = monotonic
        self._tokens: dict[str, OrderedDict[bytes, ClientToken]] = {}

    def of(self, attempt: WebhookAttempt) -> ClientToken:
        """Return the token of a caller's credentials. Raises ``ProofFailed``."""
        key = hashlib.sha256(attempt.credentials.encode()).digest()
        kept = self._tokens.get(attempt.caller)
        found = None if kept is None else kept.get(key)
        if found is None:
            try:
                asked = msgspec.json.decode(attempt.credentials, type=TokenRequest)
            except (msgspec.DecodeError, ValueError, RecursionError):
                raise ProofFailed(
                    "its configuration does not describe how to get a token"
                ) from None
            if not _is_private(asked.token_url, self._egress):
                raise ProofFailed("its token endpoint is not at an https address")
            found = ClientToken(asked, self._monotonic)
            self._make_room(attempt.caller)
        tokens = self._tokens.setdefault(attempt.caller, OrderedDict())
        tokens[key] = found
        tokens.move_to_end(key)
        return found

    async def close(self) -> None:
        """Cancel the requests in progress."""
        tokens, self._tokens = self._tokens, {}
        for each in tokens.values():
            for token in each.values():
                await token.close()

    def _make_room(self, caller: str) -> None:
        """Drop the least recently used token."""
        if len(self._tokens.get(caller, ())) < MAX_TOKENS_PER_CALLER:
            if sum(map(len, self._tokens.values())) < MAX_TOKENS:
                return
            caller = max(self._tokens, key=lambda each: len(self._tokens[each]))
        self._tokens[caller].popitem(last=False)
        if not self._tokens[caller]:
            del self._tokens[caller]


# -- mutual tls -------------------------------------------------------------------------------

log = logging.getLogger("parley.push")

CertificateFiles = tuple[str | Path, str | Path] | tuple[str | Path, str | Path, str | Path]
"""A certificate with its chain, its key, and perhaps authorities of webhooks: PEM files."""


class WebhookCertificate(msgspec.Struct, frozen=True):
    """The certificate that this server presents to webhooks, as PEM files.

    ``cert`` includes its chain; ``key`` may be in the same file, and must not be encrypted. ``ca``
    are the authorities of these webhooks' certificates, replacing the system's.
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
        """The identity of the files' contents, which differs after each change."""
        files = [path for path in (self.cert, self.key, self.ca) if path is not None]
        return [stamp_of(Path(path)) for path in files]

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for connections. Raises ``ValueError`` for unusable files."""
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


def _mutual_tls_problems(
    certificate: WebhookCertificate | None, credentials: str, url: str
) -> Iterator[Problem]:
    """Yield missing requirements: the certificate, or TLS."""
    if certificate is None:
        yield (
            SCHEME,
            "a scheme that this server can prove: it has no client certificate; its operator "
            "names one with webhook_certificate=",
        )
    if credentials:
        yield CREDENTIALS, "nothing: the server's certificate is used"
    if urlsplit(url).scheme != "https":
        yield "url", "an https URL: certificates are part of TLS"


class CertificateContext:
    """The TLS context with a certificate, whose files are read again when they change.

    Raises ``ValueError`` for unusable files.
    """

    def __init__(self, certificate: WebhookCertificate) -> None:
        self._certificate = certificate
        self._stamp = certificate.stamp
        self._context = certificate.context()

    def get(self) -> ssl.SSLContext:
        """Return the context."""
        stamp = self._certificate.stamp
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = self._certificate.context()
                log.info("the certificate for webhooks was read again")
            except ValueError as error:
                log.error(
                    "the changed certificate cannot be used, the old one stays in use: %s", error
                )
        return self._context


def _reason_of(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)


# -- all proofs -------------------------------------------------------------------------------


class Proofs:
    """The proofs that this server can make, and the clock of its attempts.

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
        self.egress = egress
        self.clock = clock
        self.secrets = WebhookSecrets(secret_key)
        self._keys = keys
        self._issuer = issuer.rstrip("/")
        self._tokens = ClientTokens(egress, monotonic)
        self._certificate = certificate
        self._tls = None if certificate is None else CertificateContext(certificate)

    @property
    def _missing_for_jwt(self) -> str:
        """The missing settings for signing JWTs; empty if there are none."""
        if self._keys is None:
            return (
                "this server has no signing keys; its operator makes them with "
                "`parley keys generate`, and names the file with signing_keys="
            )
        if not self._issuer:
            return "this server does not know its public address; its operator gives it as url="
        return ""

    def problems(
        self, authentication: AuthenticationInfo, url: str, wrong_url: WrongUrl
    ) -> list[Problem]:
        """Return the faults of a configuration whose ``url`` is valid."""
        scheme, credentials = authentication.scheme.lower(), authentication.credentials
        found = list(self._problems(scheme, credentials, url, wrong_url))
        if scheme in SENDS_SECRET and credentials and not _is_private(url, self.egress):
            found.append(
                (
                    "url",
                    f"an https URL, as {authentication.scheme} sends a secret; plain http is for "
                    "hosts that the operator allows",
                )
            )
        return found

    def _problems(
        self, scheme: str, credentials: str, url: str, wrong_url: WrongUrl
    ) -> Iterator[Problem]:
        match scheme:
            case "basic":
                return _basic_problems(credentials)
            case "apikey":
                return _api_key_problems(credentials)
            case "hmac-sha256":
                return _hmac_problems(credentials)
            case "jwt":
                return _jwt_problems(self._missing_for_jwt, credentials, url)
            case "oauth2":
                return _oauth2_problems(credentials, wrong_url, self.egress)
            case "mutualtls":
                return _mutual_tls_problems(self._certificate, credentials, url)
        return iter(())  # a token is opaque, and only the webhook knows other schemes

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return the headers that prove the sender. Raises ``ProofFailed``."""
        scheme, credentials = attempt.scheme, attempt.credentials
        if scheme == "bearer" and not credentials and not self._missing_for_jwt:
            scheme = "jwt"  # without a token, if the server signs JWTs
        match scheme:
            case "basic":
                return _basic(attempt)
            case "apikey":
                return _api_key(attempt)
            case "hmac-sha256":
                return _hmac(attempt)
            case "jwt":
                return _jwt(self._keys, self._issuer, self._missing_for_jwt, attempt)
            case "oauth2" if credentials.startswith("{"):
                return {AUTHORIZATION: f"Bearer {await self._tokens.of(attempt).get(attempt)}"}
            case "mutualtls":
                if urlsplit(attempt.push.config.url).scheme != "https":
                    raise ProofFailed("its URL is not https, and certificates are part of TLS")
                return {}
        return as_configured(attempt)

    def tls(self, authentication: AuthenticationInfo | None) -> ssl.SSLContext | None:
        """Return the TLS context of the connection; ``None`` for the default.

        Raises ``ProofFailed``.
        """
        if authentication is None or authentication.scheme.lower() != "mutualtls":
            return None
        if self._tls is None:
            raise ProofFailed("this server has no client certificate for webhooks")
        return self._tls.get()

    def is_renewed(self, attempt: WebhookAttempt, sent: Mapping[str, str]) -> bool:
        """Process a 401. Return whether other headers than the sent ones may help.

        A rejected access token is dropped.
        """
        if attempt.scheme != "oauth2" or not attempt.credentials.startswith("{"):
            return False
        self._tokens.of(attempt).drop(sent.get(AUTHORIZATION, "").removeprefix("Bearer "))
        return True

    async def close(self) -> None:
        """Cancel the requests for tokens in progress."""
        await self._tokens.close()


# -- secrets at rest --------------------------------------------------------------------------

MARK = "\u00a7"
"""The beginning of an encrypted secret. Secrets of callers are ASCII, so none begins with it."""

_TOKEN, _CREDENTIALS = "token of a webhook", "credentials of a webhook"


class WebhookSecrets:
    """Encrypts the ``token`` and the credentials of configurations with the operator's key.

    Each is encrypted for its URL, so that a writer to the database cannot have it sent to another
    URL. Equal configurations have equal ciphertexts: a repeated configuration changes nothing.
    Without a key secrets are stored unencrypted.
    """

    def __init__(self, key: bytes | None) -> None:
        self._sealer = None if key is None else Sealer(key)

    def sealed(self, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return a configuration as it is stored."""
        return config if self._sealer is None else _changed(config, self._seal)

    def opened(self, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        """Return a stored configuration with decrypted secrets. Raises ``ProofFailed``."""
        return _changed(config, self._open)

    def _seal(self, purpose: str, text: str, url: str) -> str:
        assert self._sealer is not None
        return MARK + self._sealer.seal_equally(purpose, text.encode(), url) if text else ""

    def _open(self, purpose: str, text: str, url: str) -> str:
        if not text.startswith(MARK):
            return text
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


def _changed(
    config: TaskPushNotificationConfig, change: Callable[[str, str, str], str]
) -> TaskPushNotificationConfig:
    """Return a configuration whose secrets are changed."""
    authentication = config.authentication
    if authentication is not None:
        credentials = change(_CREDENTIALS, authentication.credentials, config.url)
        authentication = replace(authentication, credentials=credentials)
    token = change(_TOKEN, config.token, config.url)
    return replace(config, token=token, authentication=authentication)


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
    configuration in the request. ``proofs`` are the proofs that this server can make; they encrypt
    the secrets. Raises ``InvalidParamsError`` with every violation, without quoting secrets.
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
        authentication = None  # some clients send this for "none"
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
        host, port = address.hostname or "", address.port  # raises if it is not a number
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
    """Return the malformed members."""
    if given is None or not (given.scheme or given.credentials):
        return []
    scheme = "" if _SCHEME.fullmatch(given.scheme) else "an HTTP authentication scheme, as Bearer"
    found = [
        ("authentication.scheme", scheme),
        ("authentication.credentials", _wrong_secret(given.credentials)),
    ]
    return [each for each in found if each[1]]
