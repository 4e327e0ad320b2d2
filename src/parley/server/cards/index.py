"""Where no agent is: what there is instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from parley.model.errors import A2AError, MethodNotFoundError
from parley.server.address import BadAddress, route_path
from parley.server.byte_budget import ByteReservation
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.cards.discovery import CARD_PATHS, no_assistant
from parley.server.http.body import BodyTooLarge, ClientGone, read_body
from parley.server.http.responses import reply, reply_with_message, reply_without_body
from parley.server.settings import Settings
from parley.wire import jsonrpc, versions

ASSISTANTS = "/a2a"
"""Below this, every agent is found by a name of its own, as in LangGraph's server."""

_MOST_NAMED = 20


class Index:
    """Says which agents there are: the root of a server that has none there, and every path
    where nothing is. Tenants are not among them.

    Who sends JSON-RPC is told in JSON-RPC, so that its client shows the words.
    """

    def __init__(
        self, offers: Sequence[AdvertisedInterfaces], settings: Settings, held: ByteReservation
    ) -> None:
        self._offers = offers
        self._held = held
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = route_path(scope)
        try:
            addresses = [offer.address(scope) for offer in self._offers]
        except BadAddress as error:
            await reply_with_message(scope, send, 400, str(error))
            return
        words = f"nothing is at {path[:200]}"
        if path.startswith(f"{ASSISTANTS}/"):
            words = no_assistant(path.split("/")[2])
        if scope["method"] == "POST":
            try:
                asked = await self._asked(scope, receive)
            except ClientGone:
                return
            if asked is not None:
                # The root is where a client posts that knows nothing but the host: there, as
                # always in JSON-RPC, the status says that an answer came.
                await _refuse(asked, words, addresses, 200 if path == "/" else 404, scope, send)
                return
        is_index = path == "/" and scope["method"] in ("GET", "HEAD")
        body: dict[str, Any] = {} if is_index else {"error": words}
        if addresses or is_index:
            body["agents"] = [
                {"url": address, "card": address.rstrip("/") + CARD_PATHS[0]}
                for address in addresses
            ]
        varies = self._offers[0].varies if self._offers else ()
        headers = [(b"vary", b", ".join(varies))] if varies else []
        if scope["method"] == "HEAD":
            await reply_without_body(send, 200 if is_index else 404, headers)
        else:
            await reply(send, 200 if is_index else 404, msgspec.json.encode(body), headers)

    async def _asked(self, scope: Scope, receive: Receive) -> jsonrpc.RpcRequest | None:
        """Return the JSON-RPC request that the body is, if it is one. Raises ``ClientGone``."""
        declared = dict(scope["headers"]).get(b"content-length")
        try:
            body = await read_body(
                receive, scope, declared, self._settings.max_body_bytes, self._held
            )
            return jsonrpc.parse_request(body)
        except (BodyTooLarge, A2AError):
            return None


async def _refuse(
    asked: jsonrpc.RpcRequest,
    words: str,
    addresses: Sequence[str],
    status: int,
    scope: Scope,
    send: Send,
) -> None:
    """Tell a JSON-RPC client where to go, in the version that it speaks."""
    if asked.is_notification:
        await reply_without_body(send, 204 if status == 200 else status)
        return
    if addresses:
        words += f"; the agents here are at {', '.join(addresses[:_MOST_NAMED])}"
    error = MethodNotFoundError(words)
    named = dict(scope["headers"]).get(b"a2a-version", b"").decode("latin-1")
    version = versions.of_interface(named) or versions.DEFAULT_VERSION
    written = versions.dialect(version).jsonrpc.write_error(error)
    headers = [(b"a2a-version", version.encode())]
    await reply(send, status, jsonrpc.error_response(asked.id, written), headers)
