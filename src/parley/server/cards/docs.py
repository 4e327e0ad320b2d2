"""The OpenAPI document of an agent, and the page that shows it to people."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from functools import cache
from importlib.resources import files

import msgspec
from starlette.types import Receive, Scope, Send

from parley.model.cards import AgentCard
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.catalog_link import CatalogLink
from parley.server.endpoint import Endpoint
from parley.server.http.responses import (
    Headers,
    answering_errors,
    refuses_method,
    reply,
    reply_without_body,
)
from parley.server.settings import Settings
from parley.wire import versions

OPENAPI_PATH = "/openapi.json"
DOCS_PATH = "/docs"

# Documents that are cached: a server has few names.
_MAX_CACHED = 16

_INLINE = re.compile(rb"<(style|script)>(.*?)</\1>", re.DOTALL)
_SCRIPT = re.compile(rb'<script src="(\w+\.js)"></script>')


class OpenApiPage:
    """Serves the OpenAPI document of one agent, or of a tenant below its address.

    Making a document takes much longer than answering a request, so the latest ones are cached, by
    address.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        advertised: AdvertisedInterfaces,
        *,
        settings: Settings,
        tenant: str = "",
    ) -> None:
        self._endpoint = endpoint
        self._advertised = advertised
        self._settings = settings
        self._path = f"/{tenant}" if tenant else ""
        self._cache: dict[str, tuple[AgentCard, bytes]] = {}

    @answering_errors("making an OpenAPI document")
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD."""
        if await refuses_method(scope, send, "an OpenAPI document is read with GET"):
            return
        body = self._document(self._advertised.address(scope).rstrip("/") + self._path)
        headers = [(b"cache-control", b"public, max-age=%d" % self._settings.card_max_age)]
        if varies := self._advertised.varies:
            headers.append((b"vary", b", ".join(varies)))
        await _answer(scope, send, body, b"application/json", headers)

    def _document(self, address: str) -> bytes:
        endpoint, settings = self._endpoint, self._settings
        assert endpoint.card is not None
        card = endpoint.card(())
        cached = self._cache.get(address)
        if cached is not None and cached[0] == card:
            return cached[1]
        from parley.server.cards.openapi import document

        body = msgspec.json.encode(
            document(
                card,
                endpoint.extensions,
                url=address,
                names_version=settings.missing_version != versions.LATEST,
            )
        )
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        self._cache[address] = card, body
        return body


class DocsPage:
    """The page that shows the document, with a ``link`` to a catalog in its head."""

    link: tuple[CatalogLink, str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD."""
        if await refuses_method(scope, send, "a page is read with GET"):
            return
        body, headers = _page()
        if self.link is not None:
            link, path = self.link
            from html import escape  # loads the names of all characters

            address = escape(link.reference(path))
            head = f'<link rel="{link.relation}" type="{link.media_type}" href="{address}">'
            body = body.replace(b"</title>", b"</title>\n" + head.encode("ascii"), 1)
        await _answer(scope, send, body, b"text/html; charset=utf-8", headers)


async def _answer(
    scope: Scope, send: Send, body: bytes, media_type: bytes, headers: Headers
) -> None:
    if scope["method"] == "HEAD":
        length = b"%d" % len(body)
        head = [(b"content-type", media_type), (b"content-length", length), *headers]
        await reply_without_body(send, 200, head)
    else:
        await reply(send, 200, body, headers, media_type)


@cache
def _page() -> tuple[bytes, Headers]:
    """Return the page, including its scripts, and its headers, which allow only these scripts."""
    server = files("parley.server")
    page = server.joinpath("docs.html").read_bytes()
    body = _SCRIPT.sub(
        lambda found: b"<script>" + server.joinpath(found[1].decode()).read_bytes() + b"</script>",
        page,
    )
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, inline in _INLINE.findall(body):
        digest = b64encode(hashlib.sha256(inline).digest()).decode()
        hashes[kind.decode()].append(f"'sha256-{digest}'")
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; "
        f"style-src {' '.join(hashes['style'])}; "
        "img-src data:; connect-src 'self'; require-trusted-types-for 'script'; trusted-types; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return body, (
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"public, max-age=3600"),
    )
