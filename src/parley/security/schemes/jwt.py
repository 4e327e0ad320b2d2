"""JWTs of an issuer whose keys the operator names, or where they are published (RFC 7519)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from parley.model.cards import HTTPAuthSecurityScheme, SecurityScheme
from parley.security.issuers import IssuerClient
from parley.security.key_sets import FixedKeys, keys_of
from parley.security.outbound import checked_url, is_url
from parley.security.schemes.access_token import ClaimRules, audiences_of
from parley.security.schemes.token_scheme import (
    JwtVerifier,
    TokenScheme,
    checked_algorithms,
    checked_leeway,
)


class Jwt(TokenScheme):
    """A JWT of ``issuer`` for ``audience``, sent as a bearer token.

    Its key is one at ``jwks_url``, which are fetched and followed as they rotate, or one of
    ``keys``: JWKs, a key set, PEM, or the bytes of a secret. ``algorithms`` may be fewer than
    those that fit the keys; a secret is never taken for a public key, nor the other way.
    ``leeway`` is how far clocks may be apart, in seconds. ID tokens are refused, unless
    ``accept_id_tokens``.
    """

    def __init__(
        self,
        *,
        issuer: str,
        audience: str | Collection[str],
        jwks_url: str = "",
        keys: Any = None,
        algorithms: Collection[str] | None = None,
        leeway: float = 60,
        accept_id_tokens: bool = False,
        name: str = "jwt",
        description: str = "",
    ) -> None:
        super().__init__(name=name, description=description)
        if not issuer:
            raise ValueError("Jwt needs issuer=: the iss of its tokens")
        if bool(jwks_url) == (keys is not None):
            raise ValueError("Jwt needs jwks_url=, where the issuer's keys are, or keys=")
        found: FixedKeys | IssuerClient
        if keys is not None:
            named = keys_of(keys)
            accepted = checked_algorithms(algorithms, named)
            found = FixedKeys(named)
        else:
            checked_url(jwks_url, "jwks_url=")
            accepted = checked_algorithms(algorithms, None)
            found = IssuerClient(self._fetcher, self.now, jwks_url=jwks_url)
        self.authorization_servers = (issuer,) if is_url(issuer) else ()
        self._verifier = JwtVerifier(
            issuers=[issuer],
            keys=found,
            algorithms=accepted,
            rules=ClaimRules(
                audiences=audiences_of(audience, "Jwt"),
                leeway=checked_leeway(leeway),
                accept_id_tokens=accept_id_tokens,
            ),
            now=self.now,
        )

    def declared(self) -> SecurityScheme:
        """Return the scheme as a card has it."""
        return SecurityScheme(
            http_auth_security_scheme=HTTPAuthSecurityScheme(
                scheme="Bearer", bearer_format="JWT", description=self._description
            )
        )
