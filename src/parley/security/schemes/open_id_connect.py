"""OpenID Connect: access tokens of an issuer that is found by its discovery document."""

from __future__ import annotations

from collections.abc import Collection

from parley.model.cards import OpenIdConnectSecurityScheme, SecurityScheme
from parley.security.issuers import OPENID, IssuerClient, openid_url
from parley.security.outbound import checked_url
from parley.security.schemes.access_token import ClaimRules, audiences_of
from parley.security.schemes.token_scheme import (
    JwtVerifier,
    TokenScheme,
    checked_algorithms,
    checked_leeway,
)


class OpenIdConnect(TokenScheme):
    """A JWT that the OpenID Connect issuer at ``url`` has made for ``audience``.

    ``url`` is the issuer's, or that of its discovery document. The issuer's keys are fetched when
    the first token comes, and followed as they rotate. ``algorithms``, ``leeway`` and
    ``accept_id_tokens`` are those of ``Jwt``.
    """

    def __init__(
        self,
        url: str,
        *,
        audience: str | Collection[str],
        algorithms: Collection[str] | None = None,
        leeway: float = 60,
        accept_id_tokens: bool = False,
        name: str = "openid",
        description: str = "",
    ) -> None:
        super().__init__(name=name, description=description)
        checked_url(url, "the address of an OpenID Connect issuer")
        self._url = openid_url(url)
        # An issuer with a trailing slash has the same document as one without.
        issuer = self._url.removesuffix(OPENID)
        issuers = (url, *{issuer, f"{issuer}/"} - {url})
        self.authorization_servers = (issuer if url.endswith(OPENID) else url,)
        self._verifier = JwtVerifier(
            issuers=issuers,
            keys=IssuerClient(self._fetcher, self.now, names=issuers, metadata_urls=(self._url,)),
            algorithms=checked_algorithms(algorithms, None),
            rules=ClaimRules(
                audiences=audiences_of(audience, "OpenIdConnect"),
                leeway=checked_leeway(leeway),
                accept_id_tokens=accept_id_tokens,
            ),
            now=self.now,
        )

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it: clients find everything else in the document."""
        return SecurityScheme(
            open_id_connect_security_scheme=OpenIdConnectSecurityScheme(
                open_id_connect_url=self._url, description=self._description
            )
        )
