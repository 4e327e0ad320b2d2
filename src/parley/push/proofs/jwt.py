"""A JWT that the server signs with its rotating keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from parley.push.proofs.authorization import AUTHORIZATION, as_configured
from parley.push.proofs.proof import (
    CREDENTIALS,
    SCHEME,
    Problem,
    ProofFailed,
    StaticProof,
    WebhookAttempt,
    WrongUrl,
)
from parley.security.signing.keys import SigningKeys

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
        """Yield what the server lacks, and an audience that is not the webhook's."""
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
