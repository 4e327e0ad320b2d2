"""What a user gives ``connect(auth=...)``: the base of all kinds, and those without an issuer."""

from __future__ import annotations

import base64
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from parley.client.auth.issuers import Issuers
from parley.client.bindings.request_auth import NOTHING, RequestParameters
from parley.client.headers import check_secret
from parley.model.cards import APIKeySecurityScheme, SecurityScheme

DEFAULT_API_KEY = APIKeySecurityScheme(location="header", name="X-API-Key")


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """One credential for one scheme of one agent.

    ``origin`` is what the credential is bound to, ``scheme`` the card's (``None`` if it has none),
    ``scopes`` what is needed. ``hinted`` is an issuer that a challenge led to, and ``resource`` the
    agent's identifier as a resource (RFC 8707), if it has told one.
    """

    origin: str
    issuers: Issuers
    scheme: SecurityScheme | None = None
    scopes: tuple[str, ...] = ()
    hinted: str = ""
    resource: str = ""


class Credential(ABC):
    """What proves who calls. It is bound to the agent whose connection it is given for.

    ``is_personal``: it is of one user of many. Agents that call others with it keep no idle
    connection that has it.
    """

    advice = ""
    is_personal = False

    @abstractmethod
    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether the credential is of a kind that a scheme asks for."""

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether it can be sent to a server whose card says nothing.

        ``challenges`` are the schemes that the server asked for, empty before it asked.
        """
        return False

    @abstractmethod
    async def attach(self, use: Use) -> RequestParameters:
        """Return what a request carries. Raises ``AuthenticationRequired``."""

    async def renew(self, use: Use, sent: RequestParameters, *, widened: bool) -> bool:
        """Return whether ``attach`` returns something else than what was ``sent``.

        ``widened``: more scopes are needed than before.
        """
        return False


class ApiKeyCredential(Credential):
    """An API key, sent where the card says: a header, a query parameter or a cookie."""

    def __init__(self, key: str) -> None:
        check_secret("the API key", key)
        if not key:
            raise ValueError("the API key is empty")
        self._key = key

    def __repr__(self) -> str:
        return "ApiKey(...)"

    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether a scheme asks for an API key, and says where it goes."""
        place = scheme.api_key_security_scheme
        return place is not None and place.is_known

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether it can be sent as ``X-API-Key``: not where a token is asked for."""
        return not challenges & {"bearer", "basic", "digest", "negotiate"}

    async def attach(self, use: Use) -> RequestParameters:
        """Return the header, the query parameter or the cookie."""
        place = (use.scheme and use.scheme.api_key_security_scheme) or DEFAULT_API_KEY
        match place.location:
            case "query":
                return RequestParameters({}, {place.name: self._key})
            case "cookie":
                return RequestParameters({"Cookie": f"{place.name}={self._key}"}, {})
            case _:
                return RequestParameters({place.name: self._key}, {})


class BasicCredential(Credential):
    """A user and a password (RFC 7617)."""

    def __init__(self, user: str, password: str) -> None:
        if not isinstance(user, str) or not isinstance(password, str):
            raise TypeError("Basic takes a user and a password of text")
        if ":" in user:
            raise ValueError("a user of HTTP Basic has no colon in its name")
        self._pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self._user = user

    def __repr__(self) -> str:
        return f"Basic({self._user!r}, ...)"

    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether a scheme is HTTP Basic."""
        http = scheme.http_auth_security_scheme
        return http is not None and http.scheme.lower() == "basic"

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether a server asks for it, or has not asked for anything else."""
        return not challenges or "basic" in challenges

    async def attach(self, use: Use) -> RequestParameters:
        """Return the header."""
        return RequestParameters({"Authorization": f"Basic {self._pair}"}, {})


TokenFunction = Callable[[], str | Awaitable[str]]
"""Returns a token. It is called for each request, so it keeps what takes time to get."""


class BearerCredential(Credential):
    """A bearer token (RFC 6750): a text, or a function that returns the current one.

    A function is asked once more when a server refuses its token.
    """

    def __init__(self, token: str | TokenFunction) -> None:
        if not callable(token):
            check_secret("the bearer token", token)
            if not token:
                raise ValueError("the bearer token is empty")
        self._token = token

    def __repr__(self) -> str:
        return "Bearer(...)"

    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether a scheme takes a bearer token."""
        return takes_token(scheme)

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether a server asks for it, or has not asked for anything else."""
        return not challenges or "bearer" in challenges

    async def attach(self, use: Use) -> RequestParameters:
        """Return the header."""
        if not callable(self._token):
            return RequestParameters({"Authorization": f"Bearer {self._token}"}, {})
        found = self._token()
        token = await found if inspect.isawaitable(found) else found
        check_secret("the bearer token", token)
        return RequestParameters({"Authorization": f"Bearer {token}"}, {})

    async def renew(self, use: Use, sent: RequestParameters, *, widened: bool) -> bool:
        """Return whether the function has another token now."""
        return callable(self._token) and await self.attach(use) != sent


class ClientCertificate(Credential):
    """A certificate of the client and its key, as PEM files (mutual TLS).

    It is presented to the agent's origin, to those that the caller trusts, and to an issuer that
    the user names. ``key`` may be left out if the file has both.
    """

    def __init__(self, cert: str | Path, key: str | Path | None = None) -> None:
        self.cert = cert
        self.key = cert if key is None else key

    def __repr__(self) -> str:
        return f"ClientCertificate({str(self.cert)!r})"

    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether a scheme is mutual TLS."""
        return scheme.mtls_security_scheme is not None

    async def attach(self, use: Use) -> RequestParameters:
        """Return nothing: the connection presents it."""
        return NOTHING


def takes_token(scheme: SecurityScheme) -> bool:
    """Return whether a scheme takes a bearer token."""
    http = scheme.http_auth_security_scheme
    return (
        (http is not None and http.scheme.lower() == "bearer")
        or scheme.oauth2_security_scheme is not None
        or scheme.open_id_connect_security_scheme is not None
    )
