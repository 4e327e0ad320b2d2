"""How a catalog is found: Link headers, robots.txt (ARD §6.1)."""

from __future__ import annotations

from collections.abc import Awaitable
from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.model.catalog.entries import CATALOG, CATALOG_PATH
from parley.server.address import BadAddress
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.http.responses import (
    refuse_method,
    reply,
    reply_with_message,
    reply_without_body,
)
from parley.server.settings import Settings

ROBOTS_PATH = "/robots.txt"

RELATION = "ai-catalog"

_LINKING = (200, 304, 405)


def catalog_reference(path: str, url: str | None) -> str:
    """Return the reference to the catalog in an answer of the path ``path`` of the server.

    It is the public address, if the operator named one (``url``), else a relative reference:
    nothing of a request is in it.
    """
    if url is not None:
        return quote(url.rstrip("/"), safe="/:~!$&'()*+,;=@%[]") + CATALOG_PATH
    return "../" * (path.count("/") - 1) + CATALOG_PATH[1:]


def link_to_catalog(reference: str) -> tuple[bytes, bytes]:
    """Return the header that leads to the catalog (RFC 8288)."""
    return b"link", f'<{reference}>; rel="{RELATION}"; type="{CATALOG}"'.encode("ascii")


class LinkedToCatalog:
    """Adds ``Link: <...>; rel="ai-catalog"`` to what an app answers to GET and HEAD.

    Answers that show nothing get none.
    """

    def __init__(self, app: ASGIApp, reference: str) -> None:
        self._app = app
        self._link = link_to_catalog(reference)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if scope["method"] not in ("GET", "HEAD"):
            return self._app(scope, receive, send)

        async def linking(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in _LINKING:
                message = {**message, "headers": [*message["headers"], self._link]}
            await send(message)

        return self._app(scope, receive, linking)


class RobotsPage:
    """Serves a ``robots.txt`` that forbids nothing and says where the catalog is."""

    def __init__(self, advertised: AdvertisedInterfaces, settings: Settings) -> None:
        self._advertised = advertised
        self._cached = (b"cache-control", b"public, max-age=%d" % settings.card_max_age)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD."""
        if scope["method"] not in ("GET", "HEAD"):
            await refuse_method(scope, send, "GET, HEAD", "robots.txt is read with GET")
            return
        try:
            address = self._advertised.address(scope).rstrip("/")
        except BadAddress as error:
            await reply_with_message(scope, send, 400, str(error))
            return
        body = f"User-agent: *\nDisallow:\n\nAgentmap: {address}{CATALOG_PATH}\n".encode()
        headers = [self._cached]
        if varies := self._advertised.varies:
            headers.append((b"vary", b", ".join(varies)))
        kind = b"text/plain; charset=utf-8"
        if scope["method"] == "HEAD":
            length = b"%d" % len(body)
            head = [(b"content-type", kind), (b"content-length", length), *headers]
            await reply_without_body(send, 200, head)
        else:
            await reply(send, 200, body, headers, kind)
