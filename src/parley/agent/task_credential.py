"""The credential that ``turn.require_auth`` returns: it stays in memory, and hides itself."""

from __future__ import annotations

import base64

from parley.client.auth.credential import DEFAULT_API_KEY, Credential, Use, takes_token
from parley.client.bindings.request_auth import RequestParameters
from parley.model.schemes import SecurityScheme


class AuthorizationRefused(Exception):
    """The user said no, or the issuer gave no token. ``error`` is a code of OAuth 2.0.

    It is ``temporarily_unavailable`` for an issuer that could not be reached for some time.
    """

    def __init__(self, error: str, description: str = "") -> None:
        super().__init__(f"{error}: {description}" if description else error)
        self.error = error
        self.description = description


class TaskCredential(Credential):
    """A credential for one operation of one task: a token, an API key, or a user and a password.

    ``headers`` are those of a request with it, and ``query`` its query parameters: an API key is
    where its scheme says. It can be given to a connection: ``turn.connect(agent, auth=it)``.
    ``scopes`` are those granted, and ``expires_at`` its end in seconds since the epoch, where they
    are known. It has no form that could be logged or stored.
    """

    is_personal = True

    def __init__(
        self,
        scheme: SecurityScheme,
        *,
        token: str = "",
        username: str = "",
        password: str = "",
        scopes: tuple[str, ...] = (),
        expires_at: float | None = None,
    ) -> None:
        self.scheme = scheme
        self.scopes = scopes
        self.expires_at = expires_at
        self.username = username
        self._token = token
        self._password = password

    def __repr__(self) -> str:
        return f"TaskCredential(scopes={self.scopes!r}, expires_at={self.expires_at!r})"

    def __reduce__(self) -> str:
        raise TypeError("a credential stays in memory: it cannot be pickled or copied")

    @property
    def token(self) -> str:
        """The token, or the API key; empty for a user and a password."""
        return self._token

    @property
    def password(self) -> str:
        """The password of ``username``."""
        return self._password

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request with this credential."""
        return self._parameters().headers

    @property
    def query(self) -> dict[str, str]:
        """The query parameters of a request with this credential: of an API key alone."""
        return self._parameters().query

    def _parameters(self, place: SecurityScheme | None = None) -> RequestParameters:
        if self.username or self._password:
            pair = base64.b64encode(f"{self.username}:{self._password}".encode()).decode()
            return RequestParameters({"Authorization": f"Basic {pair}"}, {})
        if self.scheme.api_key_security_scheme is None:
            return RequestParameters({"Authorization": f"Bearer {self._token}"}, {})
        key = (place or self.scheme).api_key_security_scheme or DEFAULT_API_KEY
        match key.location:
            case "query":
                return RequestParameters({}, {key.name: self._token})
            case "cookie":
                return RequestParameters({"Cookie": f"{key.name}={self._token}"}, {})
            case _:
                return RequestParameters({key.name: self._token}, {})

    # -- as a credential of a connection ---------------------------------------------------------

    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether a scheme asks for a credential of this kind."""
        if self.scheme.api_key_security_scheme is not None:
            return scheme.api_key_security_scheme is not None
        http = scheme.http_auth_security_scheme
        if self.username or self._password:
            return http is not None and http.scheme.lower() == "basic"
        return takes_token(scheme)

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether it can be sent to a server whose card says nothing."""
        return True

    async def attach(self, use: Use) -> RequestParameters:
        """Return what a request carries."""
        return self._parameters(use.scheme)
