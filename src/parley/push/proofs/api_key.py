"""An API key in a header that the configuration names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from parley.push.proofs.authorization import as_configured
from parley.push.proofs.proof import CREDENTIALS, Problem, StaticProof, WebhookAttempt, WrongUrl

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
