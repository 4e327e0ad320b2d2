"""Agent cards at their well-known paths (specification §8.2, §8.6)."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from email.utils import formatdate, parsedate_to_datetime

import msgspec
from starlette.types import Receive, Scope, Send

from parley.server.address import BadAddress
from parley.server.endpoint import Endpoint
from parley.server.failures import unforeseen
from parley.server.offer import Offer, interfaces_at
from parley.server.replies import JSON, refuse_method, reply_in_words, reply_without_body
from parley.server.settings import Settings
from parley.wire import versions

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")

_MOST_ADDRESSES = 64
_ETAG = re.compile(r'"[^"]*"')


class CardFile(msgspec.Struct, frozen=True):
    """A card as it is sent. ``modified`` and ``made`` are seconds since 1970."""

    body: bytes
    etag: str
    modified: int
    made: float


class CardPage:
    """Serves one agent's card.

    The card is made for each address that the agent is reached by, and made anew when it is older
    than caches may keep it. As addresses come out of headers, only the last 64 are kept.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        offer: Offer,
        *,
        settings: Settings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._card = endpoint.card
        self._offer = offer
        self._settings = settings
        self._clock = clock
        self._files: dict[str, CardFile] = {}
        self._headers = [(b"cache-control", b"public, max-age=%d" % settings.card_max_age)]
        if settings.trust_proxy and offer.url is None:
            names = b"X-Forwarded-Proto, X-Forwarded-Host, X-Forwarded-Prefix"
            self._headers.append((b"vary", names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD, conditional ones too."""
        method = scope["method"]
        if method not in ("GET", "HEAD"):
            words = "an agent card is read with GET; requests go to the address that it names"
            await refuse_method(scope, send, "GET, HEAD", words)
            return
        try:
            file = self._file(self._offer.address(scope))
        except BadAddress as error:
            await reply_in_words(scope, send, 400, str(error))
            return
        except Exception:
            await reply_in_words(scope, send, 500, unforeseen("making an agent card").message)
            return
        headers = [
            *self._headers,
            (b"etag", file.etag.encode()),
            (b"last-modified", formatdate(file.modified, usegmt=True).encode()),
        ]
        if _is_known(scope, file):
            await reply_without_body(send, 304, headers)
            return
        headers += [JSON, (b"content-length", b"%d" % len(file.body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        body = file.body if method == "GET" else b""
        await send({"type": "http.response.body", "body": body})

    def _file(self, address: str) -> CardFile:
        now = self._clock()
        file = self._files.pop(address, None)
        if file is None or now - file.made >= self._settings.card_max_age:
            file = _make(
                versions.write_card(self._card(interfaces_at(address)), versions.LATEST), now, file
            )
        self._files[address] = file
        if len(self._files) > _MOST_ADDRESSES:
            del self._files[next(iter(self._files))]
        return file


def _make(body: bytes, now: float, before: CardFile | None) -> CardFile:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    modified = before.modified if before is not None and before.etag == etag else int(now)
    return CardFile(body, etag, modified, now)


def _is_known(scope: Scope, file: CardFile) -> bool:
    """Whether the client says that it has this very card (RFC 9110 §13)."""
    known = [value for name, value in scope["headers"] if name == b"if-none-match"]
    if known:
        tags = b",".join(known).decode("latin-1")
        return tags.strip() == "*" or file.etag in _ETAG.findall(tags)
    for name, value in scope["headers"]:
        if name == b"if-modified-since":
            try:
                return parsedate_to_datetime(value.decode("latin-1")).timestamp() >= file.modified
            except (ValueError, OverflowError):
                return False
    return False
