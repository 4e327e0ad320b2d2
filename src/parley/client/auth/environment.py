"""Credentials in environment variables, for services that have no keyring and nobody to log in.

They are for one origin, which has to be named: a program that calls many agents must not send the
token of one to another.

    PARLEY_AUTH_ORIGIN       the origin that they are for, such as https://bank.example.com
    PARLEY_TOKEN             a bearer token
    PARLEY_API_KEY           an API key
    PARLEY_CLIENT_ID         a client of the agent's issuer, with PARLEY_CLIENT_SECRET,
                             and PARLEY_ISSUER, PARLEY_SCOPES where they are needed
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from parley.client.auth.credential import ApiKeyCredential, BearerCredential, Credential
from parley.client.auth.grant import ClientCredentials
from parley.client.origin import Origin

logger = logging.getLogger(__name__)

ORIGIN = "PARLEY_AUTH_ORIGIN"
CREDENTIALS = ("PARLEY_TOKEN", "PARLEY_API_KEY", "PARLEY_CLIENT_ID")

_clients: dict[tuple[str, ...], ClientCredentials] = {}


def credentials_in(environment: Mapping[str, str], origin: Origin) -> list[Credential]:
    """Return the credentials for an origin. Raises ``ValueError`` for one that is malformed."""
    given = [name for name in CREDENTIALS if environment.get(name)]
    if not given:
        return []
    named = environment.get(ORIGIN, "")
    if not named:
        logger.warning(
            "%s is set, but not what it is for: set %s to the agent's origin, such as %s",
            given[0],
            ORIGIN,
            origin,
        )
        return []
    if not Origin.parse(named).covers(origin):
        return []
    found: list[Credential] = []
    if environment.get("PARLEY_TOKEN"):
        found.append(BearerCredential(environment["PARLEY_TOKEN"]))
    if environment.get("PARLEY_API_KEY"):
        found.append(ApiKeyCredential(environment["PARLEY_API_KEY"]))
    if environment.get("PARLEY_CLIENT_ID"):
        members = tuple(
            environment.get(f"PARLEY_{name}", "")
            for name in ("CLIENT_ID", "CLIENT_SECRET", "ISSUER", "SCOPES")
        )
        # One object for all connections: it holds the tokens.
        if members not in _clients:
            _clients.clear()
            id, secret, issuer, scopes = members
            _clients[members] = ClientCredentials(id, secret, issuer=issuer, scopes=scopes)
        found.append(_clients[members])
    return found
