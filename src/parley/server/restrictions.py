"""Restricted endpoints of the server: for authenticated callers, or some addresses
(``restrict``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from parley.model.errors import UnauthenticatedError
from parley.model.service import Caller
from parley.security.authentication import Authenticator
from parley.security.authorization import MISSING
from parley.security.evidence import Evidence
from parley.security.networks import Network, client_address, connection_address, is_among, networks

Identify = Callable[[Any], Caller | Awaitable[Caller]]

AUTHENTICATED = "authenticated"

ENDPOINTS = ("card", "page", "docs", "health", "agents", "callbacks", "jwks", "metrics")


class NotVisible(Exception):
    """The endpoint is hidden from the address of this request."""


class Restriction(msgspec.Struct, frozen=True):
    """The audience of an endpoint: authenticated callers, or, with ``networks``, these
    addresses."""

    networks: tuple[Network, ...] = ()

    @property
    def is_authenticated(self) -> bool:
        """True if callers must authenticate."""
        return not self.networks


def read_restrictions(given: Mapping[str, Any]) -> dict[str, Restriction]:
    """Return the restriction of each endpoint. Raises ``ValueError``."""
    if not isinstance(given, Mapping):
        raise ValueError(f"the setting restrict takes endpoints and their audiences, not {given!r}")
    found = {}
    for name, value in given.items():
        if name not in ENDPOINTS:
            raise ValueError(
                f"the setting restrict has the endpoints {', '.join(ENDPOINTS)}, not {name!r}"
            )
        if value == AUTHENTICATED:
            if name == "callbacks":
                raise ValueError(
                    "callbacks have their credential in the address: the setting restrict limits "
                    "them to networks only"
                )
            found[name] = Restriction()
            continue
        if isinstance(value, str):
            value = value.split(",")
        what = f'the setting restrict of {name!r} is "{AUTHENTICATED}" or a list, which'
        among = networks(value, what=what) if isinstance(value, list | tuple) else ()
        if not among:
            raise ValueError(f'{what} has networks such as ["10.0.0.0/8"], not {value!r}')
        found[name] = Restriction(among)
    return found


class Gate:
    """Checks requests to one endpoint.

    ``identify`` identifies their callers. With ``trust_proxy`` the address is the one that the
    nearest proxy added to ``X-Forwarded-For``. Raises ``ValueError`` if callers must authenticate,
    but there is nothing to verify credentials.
    """

    def __init__(
        self, restriction: Restriction, identify: Identify | None, *, trust_proxy: bool
    ) -> None:
        self._networks = restriction.networks
        self._trust_proxy = trust_proxy
        self._identify = None
        if restriction.is_authenticated:
            self._identify = authenticated_only(identify)

    async def check(self, scope: Any) -> None:
        """Raise ``NotVisible`` for a wrong address, ``UnauthenticatedError`` without proof."""
        if not self.is_visible(scope):
            raise NotVisible
        if self._identify is not None:
            caller = self._identify(scope)
            if not isinstance(caller, Caller):
                await caller

    def is_visible(self, scope: Any) -> bool:
        """Return whether the endpoint is visible for the address of a request."""
        if not self._networks:
            return True
        return is_among(client_address(scope, trust_proxy=self._trust_proxy), self._networks)


INSIDE = networks(
    [
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
        *("169.254.0.0/16", "::1/128", "fc00::/7", "fe80::/10"),
    ],
    what="inside",
)  # fmt: skip


class InsideGate(Gate):
    """Admits connections of this machine and of private networks, and no request of a proxy.

    It is the gate of an endpoint for operators that no setting restricts.
    """

    def __init__(self) -> None:
        super().__init__(Restriction(INSIDE), None, trust_proxy=False)

    def is_visible(self, scope: Any) -> bool:
        """Return whether a request comes from inside, and no proxy has passed it on."""
        names = (name for name, _ in scope["headers"])
        if any(name == b"forwarded" or name.startswith(b"x-forwarded-") for name in names):
            return False
        return is_among(connection_address(scope), INSIDE)


def authenticated_only(identify: Identify | None) -> Identify:
    """Return an ``identify`` that raises ``UnauthenticatedError`` for unauthenticated callers.

    Raises ``ValueError`` if there is none, because credentials could not be verified.
    """
    if identify is None:
        raise ValueError(
            f'the setting restrict has "{AUTHENTICATED}", which needs something to '
            "verify: declare what agents require (Agent(..., security=...)), or identify callers "
            "(caller=)"
        )

    def checked(caller: Caller, scope: Any) -> Caller:
        if caller.authenticated:
            return caller
        challenges: tuple[str, ...] = ()
        if isinstance(identify, Authenticator):
            challenges = identify.challenges(Evidence(scope))
        raise UnauthenticatedError(MISSING, challenges=challenges)

    async def awaited(caller: Awaitable[Caller], scope: Any) -> Caller:
        return checked(await caller, scope)

    def only(scope: Any) -> Caller | Awaitable[Caller]:
        caller = identify(scope)
        return checked(caller, scope) if isinstance(caller, Caller) else awaited(caller, scope)

    return only


_CREDENTIALS = (b"Authorization",)
_ANY = (b"Authorization", b"Cookie")


def caller_headers(identify: object) -> tuple[bytes, ...]:
    """Return the names of the headers with the credentials of callers.

    A server's own function may read any header: then these are the usual ones.
    """
    if not isinstance(identify, Authenticator):
        return () if identify is None else _ANY
    found = dict.fromkeys(_CREDENTIALS)
    for scheme in identify.schemes:
        key = scheme.declared().api_key_security_scheme
        if key is None:
            continue
        if key.location == "cookie":
            found[b"Cookie"] = None
        elif key.location == "header":
            found[key.name.encode("latin-1")] = None
    return tuple(found)
