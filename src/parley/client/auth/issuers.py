"""Issuers: from what a card and the user name to the endpoints that give tokens.

Who names an endpoint matters, because a card is an agent's word and the agent may lie:

- What the user names (``issuer=``, ``token_url=``) counts before everything.
- Metadata counts before the endpoints of a card's flow, and must be that of the issuer that it
  names (RFC 8414 §3.3, OpenID Connect Discovery §4.3).
- The page where the user logs in must be at the origin of the token endpoint or of the issuer, so
  that no agent can have a code of one issuer sent to another. Where it is elsewhere, the issuer
  must identify itself in its answer (``iss``, RFC 9207).
- A refresh token goes to the origin of the token endpoint alone, to be renewed and to be revoked.
- A challenge may name the agent's metadata (RFC 9728) only at the agent's own origin, and that may
  name only an issuer that the card or the user names too, or one at the agent's own origin.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from parley.client.auth.errors import TokenRefused
from parley.client.auth.issuer_http import IssuerHttp
from parley.client.bindings.http import redacted
from parley.client.origin import Origin
from parley.model.cards import SecurityScheme

OPENID = "/.well-known/openid-configuration"
RFC_8414 = "/.well-known/oauth-authorization-server"
RFC_9728 = "/.well-known/oauth-protected-resource"
MAX_DOCUMENTS = 16
MAX_AGE = 600.0


class TokenIssuer(msgspec.Struct, frozen=True, kw_only=True):
    """An authorization server: its endpoints, as far as they are known.

    ``url`` is its identifier, empty if only a card's flow names its endpoints. ``is_named`` is true
    if the user named it.
    """

    url: str = ""
    authorization_url: str = ""
    token_url: str = ""
    refresh_url: str = ""
    device_url: str = ""
    registration_url: str = ""
    revocation_url: str = ""
    auth_methods: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    sends_iss: bool = False
    is_named: bool = False

    @property
    def key(self) -> str:
        """What tells issuers apart."""
        return self.url or self.token_url

    def owns(self, page: str) -> bool:
        """Return whether a page is at the issuer's origin or its token endpoint's.

        What the user names is not judged.
        """
        own = (_origin(self.url), _origin(self.token_url))
        return self.is_named or _origin(page) in own

    def keeping_refresh_tokens(self) -> TokenIssuer:
        """Return the issuer without endpoints that would take refresh tokens of another origin."""
        own = _origin(self.token_url)
        return msgspec.structs.replace(
            self,
            refresh_url=self.refresh_url if _origin(self.refresh_url) == own else "",
            revocation_url=self.revocation_url if _origin(self.revocation_url) == own else "",
        )


def check_page(page: str) -> None:
    """Raise ``TokenRefused`` for a page that is no address to log in at."""
    origin = _origin(page)
    if origin is None or origin.is_plaintext:
        raise TokenRefused(f"{redacted(page)[:200]!r} is no https address to log in at")


class Issuers:
    """Finds issuers, and keeps their metadata for ten minutes."""

    def __init__(self, http: IssuerHttp) -> None:
        self.http = http
        self._documents: OrderedDict[str, tuple[float, dict[str, Any]]] = OrderedDict()

    async def find(
        self,
        scheme: SecurityScheme | None,
        *,
        issuer: str = "",
        token_url: str = "",
        hinted: str = "",
    ) -> TokenIssuer:
        """Return the issuer of a scheme.

        ``issuer`` and ``token_url`` are the user's; ``hinted`` is an issuer that a challenge led to
        and that may be asked. Raises ``TokenRefused`` if nothing names one.
        """
        if issuer:
            found = msgspec.structs.replace(await self.discover(issuer), is_named=True)
        else:
            found = await self._of_scheme(scheme)
            if not found.key and hinted:
                found = await self.discover(hinted)
        if token_url:
            found = msgspec.structs.replace(
                found, token_url=token_url, refresh_url="", is_named=True
            )
        if not issuer:
            found = found.keeping_refresh_tokens()
        if not found.token_url:
            raise TokenRefused(
                "nothing names an endpoint that gives tokens: name the issuer (issuer=...)"
            )
        return found

    async def discover(self, issuer: str) -> TokenIssuer:
        """Return the issuer with an identifier, by its metadata."""
        parts = urlsplit(issuer)
        path = parts.path.rstrip("/")
        candidates = [
            urlunsplit(parts._replace(path=path + OPENID)),
            urlunsplit(parts._replace(path=RFC_8414 + path)),
        ]
        failure: TokenRefused | None = None
        for url in candidates:
            try:
                document = await self._document(url)
            except TokenRefused as error:
                failure = failure or error
                continue
            return _of_metadata(document, url, issuer)
        raise failure or TokenRefused(f"{redacted(issuer)} has no metadata")

    async def hinted_by(self, resource_metadata: str, agent: Origin) -> list[str]:
        """Return the issuers that an agent's metadata names (RFC 9728), at its own origin only."""
        origin = _origin(resource_metadata)
        if origin is None or not agent.covers(origin):
            return []
        document = await self._document(resource_metadata)
        resource = document.get("resource")
        of_resource = _origin(resource) if isinstance(resource, str) else None
        if of_resource is None or not agent.covers(of_resource):
            return []
        named = document.get("authorization_servers")
        return [each for each in named if isinstance(each, str)] if isinstance(named, list) else []

    async def _of_scheme(self, scheme: SecurityScheme | None) -> TokenIssuer:
        if scheme is None:
            return TokenIssuer()
        if scheme.open_id_connect_security_scheme is not None:
            url = scheme.open_id_connect_security_scheme.open_id_connect_url
            return _of_metadata(await self._document(url), url, "")
        oauth = scheme.oauth2_security_scheme
        if oauth is None:
            return TokenIssuer()
        if oauth.oauth2_metadata_url:
            url = oauth.oauth2_metadata_url
            return _of_metadata(await self._document(url), url, "")
        flows = oauth.flows
        if flows.authorization_code is not None:
            code = flows.authorization_code
            return TokenIssuer(
                authorization_url=code.authorization_url,
                token_url=code.token_url,
                refresh_url=code.refresh_url,
            )
        if flows.client_credentials is not None:
            own = flows.client_credentials
            return TokenIssuer(token_url=own.token_url, refresh_url=own.refresh_url)
        if flows.device_code is not None:
            device = flows.device_code
            return TokenIssuer(
                device_url=device.device_authorization_url,
                token_url=device.token_url,
                refresh_url=device.refresh_url,
            )
        if flows.password is not None:
            return TokenIssuer(token_url=flows.password.token_url)
        return TokenIssuer()

    async def _document(self, url: str) -> dict[str, Any]:
        held = self._documents.get(url)
        if held is not None and time.monotonic() - held[0] < MAX_AGE:
            return held[1]
        document = await self.http.get_json(url)
        self._documents[url] = (time.monotonic(), document)
        while len(self._documents) > MAX_DOCUMENTS:
            self._documents.popitem(last=False)
        return document


def names_issuer(scheme: SecurityScheme, issuer: str) -> bool:
    """Return whether a card's scheme names an issuer, by the origin of its addresses."""
    there = _origin(issuer)
    oauth = scheme.oauth2_security_scheme
    openid = scheme.open_id_connect_security_scheme
    urls = [openid.open_id_connect_url] if openid else []
    if oauth is not None:
        urls.append(oauth.oauth2_metadata_url)
        flows = oauth.flows
        known = (flows.authorization_code, flows.client_credentials, flows.device_code)
        urls += [flow.token_url for flow in known if flow is not None]
    return there is not None and any(_origin(url) == there for url in urls if url)


def _of_metadata(document: Mapping[str, Any], url: str, expected: str) -> TokenIssuer:
    """Return the issuer of a metadata document. Raises ``TokenRefused`` if it is another's."""
    issuer = document.get("issuer")
    if not isinstance(issuer, str) or not issuer:
        raise TokenRefused(f"{redacted(url)} names no issuer; expected metadata of one")
    if (issuer != expected) if expected else not _is_at(url, issuer):
        wanted = expected or "that of this address"
        raise TokenRefused(
            f"{redacted(url)} is the metadata of {redacted(issuer)[:200]!r}, not of {wanted!r}: "
            "the issuer of a metadata document is the one that it is found at"
        )

    def text(name: str) -> str:
        value = document.get(name)
        return value if isinstance(value, str) else ""

    def texts(name: str) -> tuple[str, ...]:
        value = document.get(name)
        found = value if isinstance(value, list) else []
        return tuple(each for each in found if isinstance(each, str))

    return TokenIssuer(
        url=issuer,
        authorization_url=text("authorization_endpoint"),
        token_url=text("token_endpoint"),
        device_url=text("device_authorization_endpoint"),
        registration_url=text("registration_endpoint"),
        revocation_url=text("revocation_endpoint"),
        auth_methods=texts("token_endpoint_auth_methods_supported"),
        scopes=texts("scopes_supported"),
        sends_iss=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _is_at(url: str, issuer: str) -> bool:
    """Return whether an address is where the metadata of an issuer is to be found.

    An address of no well-known form may have the metadata of any issuer at its origin.
    """
    try:
        at, of = urlsplit(url), urlsplit(issuer)
    except ValueError:
        return False
    if _origin(url) is None or _origin(url) != _origin(issuer):
        return False
    path = of.path.rstrip("/")
    if at.path.endswith(OPENID) and at.path != OPENID + path:
        return at.path == path + OPENID
    for known in (RFC_8414, OPENID):
        if at.path.startswith(known):
            return at.path.rstrip("/") == known + path
    return True


def _origin(url: str) -> Origin | None:
    try:
        return Origin.of(url) if url else None
    except ValueError:
        return None
