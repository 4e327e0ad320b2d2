"""Answers the challenge by which a server asks whether a webhook wants its notifications."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re

import msgspec

from parley.push.receiving.request import NotificationRefused

CHALLENGE_HEADER = "a2a-webhook-challenge"
CHALLENGE_BYTES = 4096
_PREFIX = b"parley-webhook-challenge:v1:"
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{22,256}")


class _Challenge(msgspec.Struct):
    challenge: str


def answer_challenge(version: str, body: bytes, token: str) -> bytes:
    """Return the answer to a challenge, by the token of the configuration.

    Raises ``NotificationRefused``.
    """
    if version != "v1":
        raise NotificationRefused(400, f"a challenge of the version {version[:40]!r}")
    try:
        challenge = msgspec.json.decode(body, type=_Challenge).challenge
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotificationRefused(400, "a malformed challenge") from None
    if not _CHALLENGE.fullmatch(challenge):
        raise NotificationRefused(400, "a malformed challenge")
    digest = hmac.digest(token.encode(), _PREFIX + challenge.encode(), hashlib.sha256)
    response = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return msgspec.json.encode({"response": response})
