"""Protected resource metadata: the issuers whose tokens an agent accepts (RFC 9728)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from starlette.types import Receive, Scope, Send

from parley.security.authorization import Authorization
from parley.server.address import BadAddress
from parley.server.cards.advertised_interfaces import AdvertisedInterfaces
from parley.server.endpoint import Endpoint
from parley.server.http.responses import (
    refuse_method,
    reply,
    reply_with_message,
    reply_without_body,
)
from parley.server.settings import Settings

PROTECTED_RESOURCE = "/.well-known/oauth-protected-resource"
"""Where the metadata of an agent is: its path follows."""


class ProtectedResource:
    """Serves the metadata of one agent, or of a tenant, and names its address in challenges."""

    def __init__(
        self,
        path: str,
        advertised: AdvertisedInterfaces,
        content: dict[str, list[str]],
        *,
        settings: Settings,
        tenant: str = "",
    ) -> None:
        self._path = path
        self._tenant = f"/{tenant}" if tenant else ""
        self._advertised = advertised
        self._content = content
        self._cached = (b"cache-control", b"public, max-age=%d" % settings.card_max_age)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer GET and HEAD."""
        if scope["method"] not in ("GET", "HEAD"):
            await refuse_method(scope, send, "GET, HEAD", "metadata is read with GET")
            return
        try:
            address = self._advertised.address(scope).rstrip("/") + self._tenant
        except BadAddress as error:
            await reply_with_message(scope, send, 400, str(error))
            return
        headers = [self._cached]
        if varies := self._advertised.varies:
            headers.append((b"vary", b", ".join(varies)))
        if scope["method"] == "HEAD":
            await reply_without_body(send, 200, headers)
        else:
            body = msgspec.json.encode({"resource": address, **self._content})
            await reply(send, 200, body, headers)

    def address(self, scope: Scope) -> str:
        """Return the address of the metadata as the sender of a request sees it.

        Empty if the request names no valid host.
        """
        agent = self._advertised.agent_address(scope) + self._tenant
        if not agent.endswith(self._path):
            return ""
        return f"{agent.removesuffix(self._path)}{PROTECTED_RESOURCE}{self._path}"


def resource_metadata(agents: Iterable[Endpoint]) -> dict[str, list[str]] | None:
    """Return what the schemes of agents say, ``None`` if they accept no issuer's tokens."""
    authorizations = [each.authorization for each in agents if each.authorization is not None]
    servers = list(dict.fromkeys(_servers(authorizations)))
    if not servers:
        return None
    content = {"authorization_servers": servers, "bearer_methods_supported": ["header"]}
    if scopes := sorted(set(_scopes(authorizations))):
        content["scopes_supported"] = scopes
    return content


def _servers(authorizations: Iterable[Authorization]) -> Iterable[str]:
    for authorization in authorizations:
        for security in authorization.securities:
            for scheme in security.schemes:
                yield from scheme.authorization_servers


def _scopes(authorizations: Iterable[Authorization]) -> Iterable[str]:
    for authorization in authorizations:
        for security in authorization.listed_securities:
            for alternative in security.alternatives:
                for each in alternative:
                    if each.scheme.authorization_servers:
                        yield from (*each.scopes, *each.scheme.scopes)
