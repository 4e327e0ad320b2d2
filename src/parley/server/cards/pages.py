"""The page for people at an agent's address, and the OpenAPI document for tools.

The page is one document: the script and the style sheet that ``web/`` builds are inside it. It has
nothing secret and nothing of a caller, so it is for everyone, as the card is.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable
from functools import cache, lru_cache
from importlib.resources import files
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.model.cards import AgentCard
from parley.security.networks import literal_address
from parley.server.address import route_path
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.catalog_link import CatalogLink
from parley.server.cards.discovery import CardFile, card_file, reply_with_file
from parley.server.endpoint import Endpoint
from parley.server.http.exchange import AgentHandler, AgentRequests, requests_of
from parley.server.http.responses import (
    JSON,
    accepts_gzip,
    answering_errors,
    prefers_html,
    refuses_method,
    reply,
    reply_without_body,
)
from parley.server.settings import Settings
from parley.wire import versions

OPENAPI_PATH = "/openapi.json"
FORMER_PATH = "/docs"
"""The path of an earlier page, which leads to the page now."""

# Documents that are cached: a server has few names, agents and issuers.
_MAX_CACHED = 16

_HTML = (b"content-type", b"text/html; charset=utf-8")
_HOST = re.compile(r"[A-Za-z0-9._:-]+")
_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
    "img-src data: blob:; connect-src {origins}; require-trusted-types-for 'script'; "
    "trusted-types; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


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
        if scope["method"] == "HEAD":
            length = (b"content-length", b"%d" % len(body))
            await reply_without_body(send, 200, [JSON, length, *headers])
        else:
            await reply(send, 200, body, headers)

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


# -- the page ---------------------------------------------------------------------------------


class PeoplePage:
    """The page about an agent, or about several.

    ``card`` returns the card of the agent: the page may send requests to the issuers on it.
    ``agents`` returns the paths of (further) agents below the page.
    """

    link: CatalogLink | None = None

    def __init__(
        self,
        card: Callable[[], AgentCard] | None = None,
        agents: Callable[[Scope], Iterable[str]] | None = None,
    ) -> None:
        self._card = card
        self._agents = agents

    @answering_errors("making a page")
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD."""
        head = b""
        if self._agents is not None:
            name = "agents" if self._card is None else "others"
            paths = " ".join(path.strip("/") for path in self._agents(scope) if path)
            head = f'<meta name="parley-{name}" content="{paths}">\n'.encode("ascii")
        link, path = self.link, route_path(scope)
        if link is not None:
            from html import escape  # loads the names of all characters

            address = escape(link.reference(path))
            element = f'<link rel="{link.relation}" type="{link.media_type}" href="{address}">\n'
            head += element.encode("ascii")
        origins = issuers_on(self._card()) if self._card is not None else ()
        zipped = accepts_gzip(scope["headers"])
        headers = [
            (b"content-security-policy", _policy(origins)),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),
            (b"cache-control", b"public, no-cache"),
            (b"vary", b"Accept, Accept-Encoding"),
        ]
        if link is not None:
            headers.append(link.header(path))
        if zipped:
            headers.append((b"content-encoding", b"gzip"))
        await reply_with_file(scope, send, _document(head, zipped), _HTML, *headers)


class WithPage(AgentHandler):
    """Answers browsers with a page, and everybody else as the app ``otherwise`` does."""

    def __init__(self, otherwise: ASGIApp, page: ASGIApp) -> None:
        self.otherwise = otherwise
        self._page = page

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if scope["method"] not in ("GET", "HEAD"):
            return self.otherwise(scope, receive, send)
        if prefers_html(scope["headers"]):
            return self._page(scope, receive, send)
        return self.otherwise(scope, receive, _varying(send))

    def requests(self, scope: Scope) -> AgentRequests | None:
        """Return the requests to the agent with the head of a scope."""
        return requests_of(self.otherwise, scope)


def _varying(send: Send) -> Send:
    """Return a ``send`` that tells caches that the answer depends on ``Accept``."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"vary", b"Accept")]}
        await send(message)

    return sending


async def lead_to_page(scope: Scope, receive: Receive, send: Send) -> None:
    """Lead from the path of an earlier page to the page, one segment above."""
    if not await refuses_method(scope, send, "a page is read with GET"):
        await reply_without_body(send, 308, [(b"location", b"./"), (b"content-length", b"0")])


def issuers_on(card: AgentCard) -> tuple[str, ...]:
    """Return the origins of the issuers on a card, which a browser asks for tokens.

    Only HTTPS, and HTTP to this machine, for development.
    """
    addresses = []
    for scheme in card.security_schemes.values():
        if scheme.open_id_connect_security_scheme is not None:
            addresses.append(scheme.open_id_connect_security_scheme.open_id_connect_url)
        if scheme.oauth2_security_scheme is not None:
            flow = scheme.oauth2_security_scheme.flows.authorization_code
            addresses += [flow.token_url] if flow is not None else []
    return tuple(sorted({origin for address in addresses if (origin := _origin(address))}))


def _origin(address: str) -> str:
    try:
        url = urlsplit(address)
        host, port = url.hostname or "", url.port
    except ValueError:
        return ""
    literal = literal_address(host)
    is_here = host == "localhost" or (literal is not None and literal.is_loopback)
    if url.scheme != "https" and not (url.scheme == "http" and is_here):
        return ""
    if not _HOST.fullmatch(host):
        return ""
    shown = f"[{host}]" if ":" in host else host
    return f"{url.scheme}://{shown}" + (f":{port}" if port is not None else "")


@cache
def _inside() -> tuple[bytes, bytes, bytes]:
    """Return the document, the script and the style sheet."""
    page = files("parley.server") / "page"
    names = ("page.html", "page.js", "page.css")
    document, script, style = (page.joinpath(name).read_bytes() for name in names)
    return document, script, style


@lru_cache(_MAX_CACHED)
def _policy(origins: tuple[str, ...]) -> bytes:
    _, *inside = _inside()
    script, style = (b64encode(hashlib.sha256(each).digest()).decode() for each in inside)
    allowed = " ".join(("'self'", *origins))
    return _POLICY.format(script=script, style=style, origins=allowed).encode("ascii")


@lru_cache(_MAX_CACHED)
def _document(head: bytes, zipped: bool) -> CardFile:
    """Return the page with ``head`` in its head."""
    document, script, style = _inside()
    document = document.replace(b"<style></style>", b"%s<style>%s</style>" % (head, style))
    body = document.replace(b"<script></script>", b"<script>%s</script>" % script)
    return card_file(gzip.compress(body, mtime=0) if zipped else body, time.time(), None)
