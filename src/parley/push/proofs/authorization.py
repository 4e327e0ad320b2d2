"""Proofs that are an ``Authorization`` header as the configuration says it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping

from parley.push.proofs.proof import (
    CREDENTIALS,
    Problem,
    StaticProof,
    WebhookAttempt,
    WebhookProof,
    WrongUrl,
)

AUTHORIZATION = "Authorization"


class AuthorizationProof(StaticProof):
    """Any scheme that has no proof of its own: ``<scheme> <credentials>``, if there are some."""

    sends_secret = False

    def problems(self, credentials: str, url: str, wrong_url: WrongUrl) -> Iterator[Problem]:
        """Yield nothing: what the scheme means is known to the webhook only."""
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
