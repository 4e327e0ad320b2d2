"""A signature with a shared secret, in the form of Standard Webhooks."""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterator, Mapping

from parley.push.proofs.proof import (
    CREDENTIALS,
    Problem,
    ProofFailed,
    StaticProof,
    WebhookAttempt,
    WrongUrl,
)

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
