"""OAuth 2.0: access tokens that are JWTs, or that the authorization server introspects."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from parley.model.cards import (
    AuthorizationCodeOAuthFlow,
    ClientCredentialsOAuthFlow,
    DeviceCodeOAuthFlow,
    OAuth2SecurityScheme,
    OAuthFlows,
    SecurityScheme,
)
from parley.security.issuers import IssuerClient, oauth_url, openid_url
from parley.security.key_sets import FixedKeys, keys_of
from parley.security.outbound import checked_url, is_url
from parley.security.schemes.access_token import ClaimRules, audiences_of
from parley.security.schemes.introspection import Introspection, IntrospectionVerifier
from parley.security.schemes.token_scheme import (
    JwtVerifier,
    TokenScheme,
    TokenVerifier,
    checked_algorithms,
    checked_leeway,
)

Flow = AuthorizationCodeOAuthFlow | ClientCredentialsOAuthFlow | DeviceCodeOAuthFlow

_FIELDS = {
    AuthorizationCodeOAuthFlow: "authorization_code",
    ClientCredentialsOAuthFlow: "client_credentials",
    DeviceCodeOAuthFlow: "device_code",
}
_ADDRESSES = ("authorization_url", "device_authorization_url", "token_url", "refresh_url")


class OAuth2(TokenScheme):
    """An access token that clients obtain by ``flow``, as the card says.

    Tokens are JWTs of ``issuer`` for ``audience``. The issuer's keys are those of its metadata,
    which is at ``metadata_url`` or at its well-known addresses (RFC 8414, OpenID Connect), or at
    ``jwks_url``, or they are ``keys``. With ``introspection`` tokens may be of any form, and the
    issuer is asked about each (RFC 7662); ``audience=""`` then accepts what the issuer accepts.
    ``algorithms``, ``leeway`` and ``accept_id_tokens`` are those of ``Jwt``.

    A card's entry has one flow: for several, declare several schemes, and combine them with ``|``.
    """

    def __init__(
        self,
        flow: Flow,
        *,
        audience: str | Collection[str],
        issuer: str = "",
        metadata_url: str = "",
        jwks_url: str = "",
        keys: Any = None,
        introspection: Introspection | None = None,
        algorithms: Collection[str] | None = None,
        leeway: float = 60,
        accept_id_tokens: bool = False,
        name: str = "oauth2",
        description: str = "",
    ) -> None:
        super().__init__(name=name, description=description)
        if type(flow) not in _FIELDS:
            raise TypeError(
                "OAuth2 takes an AuthorizationCodeOAuthFlow, ClientCredentialsOAuthFlow or "
                f"DeviceCodeOAuthFlow, not {type(flow).__name__}"
            )
        for field in _ADDRESSES:
            if getattr(flow, field, ""):
                checked_url(getattr(flow, field), f"{field}= of the flow")
        if metadata_url:
            checked_url(metadata_url, "metadata_url=")
        self.authorization_servers = (issuer,) if is_url(issuer) else ()
        self.scopes = tuple(flow.scopes)
        self._flow = flow
        self._metadata_url = metadata_url
        self._issuer = issuer
        rules = ClaimRules(
            audiences=frozenset()
            if introspection is not None and audience == ""
            else audiences_of(audience, "OAuth2"),
            leeway=checked_leeway(leeway),
            accept_id_tokens=accept_id_tokens,
        )
        if introspection is not None:
            if jwks_url or keys is not None or algorithms is not None:
                raise ValueError(
                    "introspection= verifies tokens without keys: leave out jwks_url=, keys= and "
                    "algorithms="
                )
            self._verifier = IntrospectionVerifier(
                introspection,
                self._client(introspection_url=introspection.url),
                issuer=issuer,
                rules=rules,
                now=self.now,
                name=name,
            )
        else:
            self._verifier = self._by_signature(jwks_url, keys, algorithms, rules)

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""
        return SecurityScheme(
            oauth2_security_scheme=OAuth2SecurityScheme(
                flows=OAuthFlows(**{_FIELDS[type(self._flow)]: self._flow}),  # type: ignore[arg-type]
                oauth2_metadata_url=self._metadata_url,
                description=self._description,
            )
        )

    def _by_signature(
        self, jwks_url: str, keys: Any, algorithms: Collection[str] | None, rules: ClaimRules
    ) -> TokenVerifier:
        if not self._issuer:
            raise ValueError(
                "OAuth2 verifies tokens by issuer=, the iss of its JWTs, or by introspection="
            )
        found: FixedKeys | IssuerClient
        named = None
        if keys is not None:
            if jwks_url:
                raise ValueError("OAuth2 takes jwks_url= or keys=, not both")
            named = keys_of(keys)
            found = FixedKeys(named)
        else:
            if jwks_url:
                checked_url(jwks_url, "jwks_url=")
            found = self._client(jwks_url=jwks_url)
        return JwtVerifier(
            issuers=[self._issuer],
            keys=found,
            algorithms=checked_algorithms(algorithms, named),
            rules=rules,
            now=self.now,
        )

    def _client(self, *, jwks_url: str = "", introspection_url: str = "") -> IssuerClient:
        """Return the client of the issuer, whose metadata has the addresses that lack here."""
        if jwks_url or introspection_url:
            return IssuerClient(
                self._fetcher, self.now, jwks_url=jwks_url, introspection_url=introspection_url
            )
        if not self._issuer:
            raise ValueError("OAuth2 needs issuer=, whose metadata names what is to be asked")
        checked_url(self._issuer, "issuer=")
        own = (oauth_url(self._issuer), openid_url(self._issuer))
        urls = (self._metadata_url,) if self._metadata_url else own
        return IssuerClient(self._fetcher, self.now, names=(self._issuer,), metadata_urls=urls)
