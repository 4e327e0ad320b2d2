"""The proofs of a sender, one class for each scheme of a configuration."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from parley.push.proofs.proof import (
    CREDENTIALS,
    METHODS,
    SCHEME,
    ClientToken,
    Problem,
    ProofFailed,
    StaticProof,
    TokenRequest,
    WebhookAttempt,
    WebhookProof,
    WrongUrl,
    may_be_plain,
)
from parley.security.egress import Egress
from parley.security.signing.keys import SigningKeys

# -- authorization ----------------------------------------------------------------------------

AUTHORIZATION = "Authorization"


class AuthorizationProof(StaticProof):
    """Any scheme that has no proof of its own: ``<scheme> <credentials>``, if there are some."""

    sends_secret = False

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield nothing: the meaning of the scheme is known to the webhook only."""
        return iter(())

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return the header of the configuration."""
        return as_configured(attempt)


class BearerProof(StaticProof):
    """A token that the configuration has; without one, a JWT where the server signs them."""

    def __init__(self, jwt: WebhookProof | None) -> None:
        self._jwt = jwt

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield nothing: tokens are opaque."""
        return iter(())

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return the token, or a JWT."""
        if self._jwt is not None and not attempt.credentials:
            return await self._jwt.headers(attempt)
        return as_configured(attempt)


class BasicProof(StaticProof):
    """A user and a password (RFC 7617)."""

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield a violation unless there is a user and a password, plain or in base64."""
        if not credentials or not (":" in credentials or _is_encoded(credentials)):
            yield CREDENTIALS, "user:password, or the base64 of it"

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
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

# What frames the request, what leads it elsewhere, and what Parley says itself.
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


class ApiKeyProof(StaticProof):
    """``<header name>: <key>``."""

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
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

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return the header of the key."""
        named = _NAMED.fullmatch(attempt.credentials)
        if named is None or is_reserved(named[1]):
            return as_configured(attempt)  # from before keys had names
        return {named[1]: named[2]}


def is_reserved(name: str) -> bool:
    """Return whether a header has a meaning in the request, so that no key goes there."""
    name = name.lower()
    return name in _RESERVED or name.startswith(_RESERVED_PREFIXES)


# -- hmac sha256 ------------------------------------------------------------------------------

SIGNATURE = "webhook-signature"
PREFIX = "whsec_"

MIN_SECRET_BYTES = 24
MAX_SECRETS = 5


class HmacProof(StaticProof):
    """HMAC-SHA256 of the id, the time and the body: one signature for each secret."""

    sends_secret = False

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield a violation for secrets that cannot be used."""
        try:
            secrets_in(credentials)
        except ValueError as error:
            yield CREDENTIALS, str(error)

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return the signatures."""
        try:
            secrets = secrets_in(attempt.credentials)
        except ValueError:
            raise ProofFailed("its configuration has no secrets to sign with") from None
        signed = signed_content(attempt.id, attempt.at, attempt.body)
        return {SIGNATURE: " ".join(f"v1,{signature(secret, signed)}" for secret in secrets)}


def signed_content(delivery_id: str, at: int, body: bytes) -> bytes:
    """Return the bytes that are signed."""
    return f"{delivery_id}.{at}.".encode("ascii") + body


def signature(secret: bytes, signed: bytes) -> str:
    """Return the signature of bytes in base64."""
    return base64.b64encode(hmac.digest(secret, signed, "sha256")).decode("ascii")


def secrets_in(credentials: str) -> tuple[bytes, ...]:
    """Return the secrets that credentials have. Raises ``ValueError``, which repeats none."""
    given = credentials.split(" ")
    if not credentials or "" in given or len(given) > MAX_SECRETS:
        raise ValueError(
            f"a secret, such as whsec_<base64>, or up to {MAX_SECRETS} with one space between them"
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


class JwtProof(StaticProof):
    """``Authorization: Bearer <JWT>``. ``issuer`` is the public address of this server."""

    sends_secret = False

    def __init__(self, keys: SigningKeys | None, issuer: str) -> None:
        self._keys = keys
        self._issuer = issuer.rstrip("/")

    @property
    def missing(self) -> str:
        """What this server lacks to sign JWTs; empty if it has all."""
        if self._keys is None:
            return (
                "this server has no signing keys; its operator makes them with "
                "`parley keys generate`, and names the file with signing_keys="
            )
        if not self._issuer:
            return "this server does not know its public address; its operator gives it as url="
        return ""

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield missing settings of the server, and an audience that is not the webhook's."""
        if self.missing:
            yield SCHEME, f"a scheme that this server can prove: {self.missing}"
        try:
            _audience(credentials, url)
        except ValueError as error:
            yield CREDENTIALS, str(error)

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return a JWT about this attempt."""
        try:
            audience = _audience(attempt.credentials, attempt.push.config.url)
        except ValueError as error:
            if attempt.credentials.startswith("{"):
                raise ProofFailed(f"its configuration states no right audience: {error}") from None
            return as_configured(attempt)  # a token, from before this server signed
        if self._keys is None or self.missing:
            raise ProofFailed(self.missing)
        claims = WebhookClaims(
            iss=self._issuer,
            aud=audience,
            iat=attempt.at,
            exp=attempt.at + LIFETIME,
            jti=attempt.id,
            task_id=attempt.task_id,
            request_body_sha256=hashlib.sha256(attempt.body).hexdigest(),
        )
        token = self._keys.signers[0].jws({"typ": "JWT"}, msgspec.json.encode(claims))
        return {AUTHORIZATION: f"Bearer {token}"}


def default_audience(url: str) -> str:
    """Return the audience of a webhook that states none: its URL up to the query."""
    return url.partition("#")[0].partition("?")[0]


def _audience(credentials: str, url: str) -> str:
    """Return the audience of a webhook. Raises ``ValueError``.

    Were any audience accepted, a caller could have a JWT made for somebody else's receiver, at
    another host or another path, sent to a webhook of its own, and use it there.
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
        # these are resolved before the call: the beginning may be a path that is not called
        and not any(unquote(segment) in (".", "..") for segment in address.path.split("/"))
    )


# -- oauth2 -----------------------------------------------------------------------------------

MAX_TOKENS = 4096
"""How many access tokens are kept; the one unused for longest makes room."""

MAX_TOKENS_PER_CALLER = 256

_TEXT = re.compile(r"[\x20-\x7e]+")


class ClientCredentialsProof(StaticProof):
    """``Authorization: Bearer <access token>``. A token is used for one caller's deliveries only.

    Belongs to the event loop that uses it first.
    """

    def __init__(self, egress: Egress, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._egress = egress
        self._monotonic = monotonic
        self._tokens: dict[str, OrderedDict[bytes, ClientToken]] = {}

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
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
                continue  # a required one was named above
            if name not in TokenRequest.__struct_encode_fields__:
                known = ", ".join(TokenRequest.__struct_encode_fields__)
                yield CREDENTIALS, f"no other members than {known}"
            elif not isinstance(value, str) or not _TEXT.fullmatch(value):
                yield f"{CREDENTIALS}.{name}", "a text of printable ASCII characters"
            elif name == "authMethod" and value not in METHODS:
                yield f"{CREDENTIALS}.{name}", " or ".join(METHODS)
            elif name == "tokenUrl" and (problem := self._wrong_endpoint(str(value), wrong_url)):
                yield f"{CREDENTIALS}.{name}", problem

    def _wrong_endpoint(self, url: str, wrong_url: WrongUrl) -> str:
        if problem := wrong_url(url):
            return problem
        if "#" in url:
            return "a URL without a fragment"
        if not self._is_private(url):
            return "an https URL: the client's secret goes there"
        return ""

    def _is_private(self, url: str) -> bool:
        """Return whether a secret may go to an address."""
        address = urlsplit(url)
        return address.scheme == "https" or may_be_plain(address.hostname or "", self._egress)

    async def headers(self, attempt: WebhookAttempt) -> Mapping[str, str]:
        """Return a token, from the endpoint if none is at hand. Raises ``ProofFailed``."""
        if not attempt.credentials.startswith("{"):
            return as_configured(attempt)  # a token, from before the server obtained them
        token = self._token(attempt)
        return {AUTHORIZATION: f"Bearer {await token.get(attempt.session)}"}

    def is_renewed(self, attempt: WebhookAttempt, sent: Mapping[str, str]) -> bool:
        """Drop the token that was refused. Return whether another may be had at once."""
        if not attempt.credentials.startswith("{"):
            return False
        self._token(attempt).drop(sent.get(AUTHORIZATION, "").removeprefix("Bearer "))
        return True

    async def close(self) -> None:
        """End the requests that are under way."""
        tokens, self._tokens = self._tokens, {}
        for each in tokens.values():
            for token in each.values():
                await token.close()

    def _token(self, attempt: WebhookAttempt) -> ClientToken:
        """Return the token of a caller's credentials. Raises ``ProofFailed``."""
        key = hashlib.sha256(attempt.credentials.encode()).digest()
        tokens = self._tokens.get(attempt.caller)
        found = None if tokens is None else tokens.get(key)
        if found is None:
            try:
                asked = msgspec.json.decode(attempt.credentials, type=TokenRequest)
            except (msgspec.DecodeError, ValueError, RecursionError):
                raise ProofFailed("its configuration does not say how to get a token") from None
            if not self._is_private(asked.token_url):
                raise ProofFailed("its token endpoint is not at an https address")
            found = ClientToken(asked, self._monotonic)
            self._make_room(attempt.caller)
        tokens = self._tokens.setdefault(attempt.caller, OrderedDict())
        tokens[key] = found
        tokens.move_to_end(key)
        return found

    def _make_room(self, caller: str) -> None:
        """Forget the token that its caller did not use for longest."""
        if len(self._tokens.get(caller, ())) < MAX_TOKENS_PER_CALLER:
            if sum(map(len, self._tokens.values())) < MAX_TOKENS:
                return
            caller = max(self._tokens, key=lambda each: len(self._tokens[each]))
        self._tokens[caller].popitem(last=False)
        if not self._tokens[caller]:
            del self._tokens[caller]
