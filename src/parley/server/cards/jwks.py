"""The public keys of a server: what verifies its cards and webhooks (RFC 7517)."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from starlette.types import Receive, Scope, Send

from parley.security.signing.keys import SigningKeys
from parley.server.cards.discovery import CardFile, card_file, is_fresh, validators
from parley.server.http.responses import refuse_method, reply_without_body

MAX_AGE = 300
"""How long caches may keep the keys, in seconds. The next ones are there long before they sign."""

_CACHED = (b"cache-control", b"public, max-age=%d" % MAX_AGE)
_KEY_SET = (b"content-type", b"application/jwk-set+json")


class KeySetPage:
    """Serves the public JWK Set of a server: the keys of now, of a moment ago and of soon."""

    def __init__(self, keys: SigningKeys, *, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._clock = clock
        self._file: CardFile | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, conditional ones too."""
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            await refuse_method(scope, send, "GET, HEAD", "public keys are read with GET")
            return
        body = msgspec.json.encode(self._keys.published)
        self._file = file = card_file(body, self._clock(), self._file)
        headers = [_CACHED, *validators(file)]
        if is_fresh(scope, file):
            await reply_without_body(send, 304, headers)
            return
        headers += [_KEY_SET, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body if method == "GET" else b""})
