"""The index of a server's agents, at its root and in 404 answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.model.errors import A2AError, MethodNotFoundError
from parley.server.address import BadAddress, route_path
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.catalog_link import CatalogLink
from parley.server.cards.discovery import CARD_PATHS, no_assistant
from parley.server.http.responses import (
    NO_STORE,
    ClientGone,
    prefers_html,
    read_body,
    reply,
    reply_with_message,
    reply_without_body,
)
from parley.server.limits import ByteReservation
from parley.server.settings import Settings
from parley.wire import jsonrpc, versions

ASSISTANTS = "/a2a"
"""The path below which every agent is available by name, as in LangGraph's server."""

_MAX_NAMED = 20


class Index:
    """Lists the agents, without tenants: at a root without an agent, and in every 404.

    A JSON-RPC request gets a JSON-RPC error, so that its client shows the text. ``lists`` decides
    who sees the agents, if not everyone does. ``catalog`` is the link to the catalog of the server,
    if it publishes one, with its address: only clients who see the agents see it. ``page`` is for
    browsers at the root.
    """

    catalog: tuple[AdvertisedInterfaces, CatalogLink] | None = None
    page: ASGIApp | None = None

    def __init__(
        self,
        advertised: Sequence[AdvertisedInterfaces],
        settings: Settings,
        held: ByteReservation,
        lists: Callable[[Scope], bool] | None = None,
    ) -> None:
        self._advertised = advertised
        self._lists = lists
        self._held = held
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_read = scope["method"] in ("GET", "HEAD") and route_path(scope) == "/"
        if self.page is not None and is_read and prefers_html(scope["headers"]):
            await self.page(scope, receive, send)
        else:
            await self.answer(scope, receive, send)

    def lists(self, scope: Scope) -> bool:
        """Return whether the sender of a request sees the agents."""
        return self._lists is None or self._lists(scope)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a program."""
        path = route_path(scope)
        try:
            addresses = [each.address(scope) for each in self._advertised]
            if not self.lists(scope):
                addresses = []
        except BadAddress as error:
            await reply_with_message(scope, send, 400, str(error))
            return
        words = f"nothing is at {path[:200]}"
        if path.startswith(f"{ASSISTANTS}/"):
            words = no_assistant(path.split("/")[2])
        if scope["method"] == "POST":
            try:
                request = await self._read_request(scope, receive)
            except ClientGone:
                return
            if request is not None:
                # Clients that know only the host post to the root: like any JSON-RPC endpoint,
                # that answers with 200.
                await _reject(request, words, addresses, 200 if path == "/" else 404, scope, send)
                return
        is_index = path == "/" and scope["method"] in ("GET", "HEAD")
        body: dict[str, Any] = {} if is_index else {"error": words}
        if addresses or is_index:
            body["agents"] = [
                {"url": address, "card": address.rstrip("/") + CARD_PATHS[0]}
                for address in addresses
            ]
        varies = self._advertised[0].varies if self._advertised else ()
        if is_index and self.page is not None:
            varies = (*varies, b"Accept")
        headers = [(b"vary", b", ".join(varies))] if varies else []
        if addresses and self.catalog is not None:
            server, link = self.catalog
            body["catalog"] = server.address(scope).rstrip("/") + link.path
            if path in ("/", *CARD_PATHS):
                headers.append(link.header(path))
        if self._lists is not None or not is_index:
            headers.append(NO_STORE)  # it depends on the caller, or may exist later
        if scope["method"] == "HEAD":
            await reply_without_body(send, 200 if is_index else 404, headers)
        else:
            await reply(send, 200 if is_index else 404, msgspec.json.encode(body), headers)

    async def _read_request(self, scope: Scope, receive: Receive) -> jsonrpc.RpcRequest | None:
        """Return the JSON-RPC request in the body, if it is one. Raises ``ClientGone``."""
        declared = dict(scope["headers"]).get(b"content-length")
        try:
            body = await read_body(
                receive, scope, declared, self._settings.max_body_bytes, self._held
            )
            return jsonrpc.parse_request(body)
        except A2AError:
            return None


async def _reject(
    request: jsonrpc.RpcRequest,
    words: str,
    addresses: Sequence[str],
    status: int,
    scope: Scope,
    send: Send,
) -> None:
    """Answer a JSON-RPC client with the addresses of the agents, in its version."""
    if request.is_notification:
        await reply_without_body(send, 204 if status == 200 else status)
        return
    if addresses:
        words += f"; the agents here are at {', '.join(addresses[:_MAX_NAMED])}"
    error = MethodNotFoundError(words)
    named = dict(scope["headers"]).get(b"a2a-version", b"").decode("latin-1")
    version = versions.supported_for(named) or versions.DEFAULT_VERSION
    written = versions.dialect(version).jsonrpc.write_error(error)
    headers = [(b"a2a-version", version.encode())]
    await reply(send, status, jsonrpc.error_response(request.id, written), headers)
