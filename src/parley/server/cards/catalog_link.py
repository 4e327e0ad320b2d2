"""The agents of a server for a catalog, and the links to that catalog (RFC 8288).

The catalog itself is a separate package: its binding adds pages and links with ``App.publish``.
"""

from __future__ import annotations

from collections.abc import Awaitable
from urllib.parse import quote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.endpoint import Endpoint

_LINKING = (200, 304, 405)


class ServedAgent(msgspec.Struct, frozen=True):
    """An agent of the server, with its tenants, as listed by ``App.served``.

    ``path`` is the path of the agent, empty at the root. ``advertised`` returns its address for a
    request.
    """

    path: str
    endpoint: Endpoint
    advertised: AdvertisedInterfaces

    @property
    def place(self) -> str:
        """The path, for people."""
        return self.path or "/"


class CatalogLink(msgspec.Struct, frozen=True):
    """The link to a catalog: its ``path`` on the server, its relation and its media type.

    ``url`` is the public address of the server, if the operator configured one.
    """

    path: str
    relation: str
    media_type: str
    url: str | None = None

    def reference(self, path: str) -> str:
        """Return the reference to the catalog in an answer at the path ``path`` of the server.

        It is below the public address, or relative: it contains nothing from the request.
        """
        if self.url is not None:
            return quote(self.url.rstrip("/"), safe="/:~!$&'()*+,;=@%[]") + self.path
        return "../" * (path.count("/") - 1) + self.path[1:]

    def header(self, path: str) -> tuple[bytes, bytes]:
        """Return the header of an answer of ``path`` that leads to the catalog."""
        words = f'<{self.reference(path)}>; rel="{self.relation}"; type="{self.media_type}"'
        return b"link", words.encode("ascii")


class LinkedPage:
    """Adds the link to a catalog to an app's answers to GET and HEAD.

    Answers without content get no link.
    """

    def __init__(self, app: ASGIApp, link: CatalogLink, path: str) -> None:
        self._app = app
        self._link = link.header(path)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if scope["method"] not in ("GET", "HEAD"):
            return self._app(scope, receive, send)

        async def linking(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in _LINKING:
                headers = [each for each in message["headers"] if each[0] != b"link"]
                message = {**message, "headers": [*headers, self._link]}
            await send(message)

        return self._app(scope, receive, linking)
