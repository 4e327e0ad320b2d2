"""Signing in to an agent once, for all later connections: what ``parley auth login`` does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from parley.client.auth.credential import BasicCredential, Use
from parley.client.auth.errors import TokenRefused
from parley.client.auth.grant import ClientCredentials, Grant
from parley.client.auth.issuer_http import ClientIdentity, IssuerHttp
from parley.client.auth.issuers import Issuers
from parley.client.auth.login import AuthorizationCode, DeviceCode, DevicePrompt, Login, log_prompt
from parley.client.auth.logins import KeptLogin
from parley.client.auth.selection import alternatives
from parley.client.bindings.http import HttpTransport
from parley.client.errors import NotEncrypted
from parley.client.headers import check_secret
from parley.client.origin import Origin
from parley.model.cards import AgentCard, SecurityScheme
from parley.security.networks import is_loopback

CODE, DEVICE, CLIENT = "authorization-code", "device-code", "client-credentials"
API_KEY, BASIC, BEARER = "api-key", "basic", "bearer"
FLOWS = (CODE, DEVICE, CLIENT, API_KEY, BASIC, BEARER)


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before: ``flow`` is one of ``FLOWS``; the rest is as for grants."""

    flow: str
    scheme: SecurityScheme | None = None
    scopes: tuple[str, ...] = ()
    client_id: str = ""
    client_secret: str = ""
    issuer: str = ""
    token_url: str = ""
    audience: str = ""
    resource: str = ""

    def __repr__(self) -> str:
        return f"SignIn({self.flow!r})"


def has_browser() -> bool:
    """Return whether a browser can be opened on this machine's screen."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    if sys.platform in ("win32", "darwin") or os.environ.get("BROWSER"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def pick_scheme(
    card: AgentCard, flow: str = ""
) -> tuple[str, SecurityScheme | None, tuple[str, ...]]:
    """Return the flow, the scheme and the scopes to sign in with, by a card.

    ``flow`` is the user's wish. Without a scheme that fits, the flow is empty, or the wish.
    """
    required = [(name, scopes) for each in alternatives(card, "") for name, scopes in each.items()]
    others = [(name, ()) for name in card.security_schemes]
    for name, scopes in (*required, *others):
        scheme = card.security_schemes.get(name)
        if scheme is None:
            continue
        possible = _flows_of(scheme)
        if flow in possible or (not flow and possible):
            return flow or possible[0], scheme, scopes
    return flow, None, ()


def _flows_of(scheme: SecurityScheme) -> list[str]:
    """Return the flows that sign in by a scheme, the best first."""
    person = [CODE, DEVICE] if has_browser() else [DEVICE, CODE]
    http = scheme.http_auth_security_scheme
    if scheme.api_key_security_scheme is not None:
        return [API_KEY]
    if http is not None:
        return {"basic": [BASIC], "bearer": [BEARER, *person, CLIENT]}.get(http.scheme.lower(), [])
    if scheme.open_id_connect_security_scheme is not None:
        return [*person, CLIENT, BEARER]
    oauth = scheme.oauth2_security_scheme
    if oauth is None:
        return []
    if oauth.flows.authorization_code is not None:
        declared = [CODE] if not oauth.oauth2_metadata_url else person
    elif oauth.flows.device_code is not None:
        declared = [DEVICE]
    elif oauth.flows.client_credentials is not None:
        declared = [CLIENT]
    else:
        declared = []
    return list(dict.fromkeys([*declared, *person, CLIENT, BEARER]))


async def sign_in(
    wish: SignIn,
    origin: Origin,
    *,
    address: str,
    http: HttpTransport,
    insecure: bool = False,
    open_url: Callable[[str], Any] | None = None,
    prompt: Callable[[DevicePrompt], Any] | None = None,
) -> KeptLogin:
    """Return the login for an agent, to be kept. Raises ``AuthenticationRequired``."""
    check_encrypted(origin, insecure)
    issuers = Issuers(
        IssuerHttp(http, trusts=lambda one: origin.covers(one), is_local=is_loopback(origin.host))
    )
    options: dict[str, Any] = {
        "scopes": wish.scopes,
        "issuer": wish.issuer,
        "token_url": wish.token_url,
        "audience": wish.audience,
        "resource": wish.resource,
    }
    grant: Grant
    if wish.flow == CLIENT:
        grant = ClientCredentials(wish.client_id, wish.client_secret, **options)
    elif wish.flow == DEVICE:
        options["prompt"] = prompt or log_prompt
        grant = DeviceCode(wish.client_id, wish.client_secret, **options)
    else:
        grant = AuthorizationCode(wish.client_id, wish.client_secret, open_url=open_url, **options)
    named = [Origin.of(url) for url in (wish.issuer, wish.token_url) if url]
    issuers.http.trust(named)
    use = Use(origin=str(origin), issuers=issuers, scheme=wish.scheme)
    try:
        issuer = await grant.find_issuer(use)
        asked = grant.wanted_scopes(use, issuer)
        token = await grant.ask(use, issuer, asked)
    finally:
        await issuers.http.aclose()
    client = grant.client_of(issuer) if isinstance(grant, Login) else grant.identity
    return KeptLogin(
        origin=str(origin),
        kind="client" if wish.flow == CLIENT else "token",
        address=address,
        issuer=issuer.url,
        token_url=issuer.token_url,
        refresh_url=issuer.refresh_url,
        revocation_url=issuer.revocation_url,
        auth_methods=issuer.auth_methods,
        client_id=client.id,
        client_secret=client.secret,
        client_auth=client.method,
        scopes=asked,
        audience=wish.audience,
        resource=wish.resource,
    ).with_token(token)


async def sign_out(login: KeptLogin, http: HttpTransport) -> bool:
    """Have the issuer revoke the tokens of a login (RFC 7009); return whether it did."""
    tokens = [(login.refresh_token, "refresh_token"), (login.access_token, "access_token")]
    if not login.revocation_url or not any(token for token, _ in tokens):
        return False
    asked = Origin.of(login.revocation_url)
    issuers = IssuerHttp(http, trusts=lambda one: one == asked)
    client = ClientIdentity(login.client_id, login.client_secret, login.client_auth)
    done = []
    try:
        for token, kind in tokens:
            if token:
                form = {"token": token, "token_type_hint": kind}
                status, _ = await issuers.post_form(
                    login.revocation_url, form, client, methods=login.auth_methods
                )
                done.append(status == 200)
    except TokenRefused:
        return False
    finally:
        await issuers.aclose()
    return all(done)


def check_encrypted(origin: Origin, insecure: bool) -> None:
    """Raise ``NotEncrypted`` for an agent that no credentials would be sent to."""
    if origin.is_plaintext and not insecure:
        raise NotEncrypted(
            f"no credentials are sent to {origin}, which is not encrypted; log in to its https "
            "address"
        )


def kept_secret(
    origin: Origin, kind: str, secret: str, *, address: str, user: str = ""
) -> KeptLogin:
    """Return the login for an API key, a password or a bearer token."""
    kinds = {API_KEY: "api_key", BASIC: "basic", BEARER: "bearer"}
    return KeptLogin(
        origin=str(origin), kind=kinds[kind], address=address, user=user, secret=secret
    )


def check_usable(login: KeptLogin) -> None:
    """Raise ``AuthenticationRequired`` for a secret that no request can carry."""
    try:
        check_secret("what was entered", login.secret)
        if login.kind == "basic":
            BasicCredential(login.user, login.secret)
    except ValueError as error:
        raise TokenRefused(str(error)) from None


def scopes_of(scopes: Sequence[str]) -> tuple[str, ...]:
    """Return scopes, each once, from texts that may have several."""
    return tuple(dict.fromkeys(word for each in scopes for word in each.split()))
