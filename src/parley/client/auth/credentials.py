"""The caller's credentials, and the one decision about the origins that get them.

A caller gives credentials for an agent at an address. A card or a redirect from there does not
extend them to another origin; only the caller can (``trust_origins``).
"""

from __future__ import annotations

import base64
import inspect
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import msgspec

from parley.client.auth.issuers import Issuers
from parley.client.bindings.request_auth import NOTHING, RequestParameters, check_secret, override
from parley.client.errors import NotEncrypted, OriginNotTrusted
from parley.client.origin import PUBLIC_HEADERS, Origin
from parley.model.cards import AgentCard, APIKeySecurityScheme, SecurityRequirement, SecurityScheme
from parley.model.operations import SendMessageRequest, named_skill
from parley.model.struct import A2AStruct

# -- credential -------------------------------------------------------------------------------

DEFAULT_API_KEY = APIKeySecurityScheme(location="header", name="X-API-Key")


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a credential for one scheme of one agent.

    ``origin`` is the origin to which the credential is bound, ``scheme`` the card's scheme
    (``None`` if it has none), ``scopes`` are the needed scopes. ``hinted`` is an issuer named by a
    challenge, and ``resource`` the agent's resource identifier (RFC 8707), if known.
    """

    origin: str
    issuers: Issuers
    scheme: SecurityScheme | None = None
    scopes: tuple[str, ...] = ()
    hinted: str = ""
    resource: str = ""


class Credential(ABC):
    """A proof of the caller's identity, bound to the agent of the connection that it is given for.

    ``is_personal``: it belongs to one of many users. Agents that call other agents with it keep no
    idle connection with it.
    """

    advice = ""
    is_personal = False

    @abstractmethod
    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether a scheme asks for this kind of credential."""

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether it can be sent to a server whose card declares no scheme.

        ``challenges`` are the schemes in the server's challenges, empty before the first request.
        """
        return False

    @abstractmethod
    async def attach(self, use: Use) -> RequestParameters:
        """Return the parameters of a request with it. Raises ``AuthenticationRequired``."""

    async def renew(self, use: Use, sent: RequestParameters, *, widened: bool) -> bool:
        """Return whether ``attach`` now returns other parameters than the ``sent`` ones.

        ``widened``: more scopes are needed than before.
        """
        return False


class ApiKeyCredential(Credential):
    """An API key in the place that the card declares: a header, a query parameter or a cookie."""

    def __init__(self, key: str) -> None:
        check_secret("the API key", key)
        if not key:
            raise ValueError("the API key is empty")
        self._key = key

    def __repr__(self) -> str:
        return "ApiKey(...)"

    def fits(self, scheme: SecurityScheme) -> bool:
        """Return whether a scheme is an API key with a known place."""
        place = scheme.api_key_security_scheme
        return place is not None and place.is_known

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether it can be sent as ``X-API-Key``: not if a token is asked for."""
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
    """A user name and a password (RFC 7617)."""

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
        """Return whether a server asks for it, or for nothing yet."""
        return not challenges or "basic" in challenges

    async def attach(self, use: Use) -> RequestParameters:
        """Return the header."""
        return RequestParameters({"Authorization": f"Basic {self._pair}"}, {})


TokenFunction = Callable[[], str | Awaitable[str]]
"""Returns a token. It is called for each request, so it should cache a token that is slow to
get."""


class BearerCredential(Credential):
    """A bearer token (RFC 6750): a text, or a function that returns the current one.

    A function is called again when a server rejects its token.
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
        """Return whether a scheme accepts a bearer token."""
        return takes_token(scheme)

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether a server asks for it, or for nothing yet."""
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

    It is presented to the agent's origin, to trusted origins, and to an issuer that the user names.
    ``key`` may be left out if the certificate file contains it.
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
        """Return no parameters: the TLS connection presents the certificate."""
        return NOTHING


def takes_token(scheme: SecurityScheme) -> bool:
    """Return whether a scheme accepts a bearer token."""
    http = scheme.http_auth_security_scheme
    return (
        (http is not None and http.scheme.lower() == "bearer")
        or scheme.oauth2_security_scheme is not None
        or scheme.open_id_connect_security_scheme is not None
    )


# -- credentials ------------------------------------------------------------------------------

logger = logging.getLogger(__name__)

R = TypeVar("R")


class Credentials:
    """A caller's credentials, and the origins that may get them.

    All ``headers`` count as credentials, except the protocol's own (``public``). The origin of the
    agent's address (see ``for_origin``) and ``trust_origins`` may get them. Unless ``insecure``,
    they are not sent to another machine without encryption; for headers whose names do not suggest
    a secret there is only a warning. ``others`` describes further credentials that are attached.

    Raises ``ValueError`` for an invalid origin and for a token or a key that no request can carry,
    and ``TypeError`` if they are not text.
    """

    def __init__(
        self,
        *,
        headers: Mapping[str, str] | None = None,
        bearer: str | None = None,
        api_key: str | None = None,
        trust_origins: Sequence[str] = (),
        insecure: bool = False,
        others: str = "",
    ) -> None:
        if isinstance(trust_origins, str):
            raise ValueError(f"trust_origins is a list of origins, such as [{trust_origins!r}]")
        check_secret("the bearer token", bearer)
        check_secret("the API key", api_key)
        given = dict(headers or {})
        self.public = {n: v for n, v in given.items() if n.lower() in PUBLIC_HEADERS}
        self._headers = {n: v for n, v in given.items() if n.lower() not in PUBLIC_HEADERS}
        self._bearer = bearer
        self._api_key = api_key
        self._origins = tuple(map(Origin.parse, trust_origins))
        self._insecure = insecure
        self._others = others
        self._agent_origin: Origin | None = None
        self._any_origin = False

    @classmethod
    def from_reference(
        cls,
        reference: R,
        *,
        headers: Mapping[str, str] | None = None,
        bearer: str | None = None,
        api_key: str | None = None,
        trust_origins: Sequence[str] = (),
        insecure: bool = False,
        others: str = "",
    ) -> tuple[R | str, Credentials]:
        """Return a reference without its user and password, and the credentials including them.

        They become ``Authorization: Basic``. Raises ``ValueError`` if that header is given too.
        """
        bare, basic = _without_user(reference)
        if basic:
            if bearer or others or "authorization" in map(str.lower, headers or ()):
                raise ValueError(
                    "the agent's address holds a user and a password; give them, or a bearer "
                    "token, auth= or the header Authorization, but not both"
                )
            headers = {**(headers or {}), "Authorization": basic}
        made = cls(
            headers=headers,
            bearer=bearer,
            api_key=api_key,
            trust_origins=trust_origins,
            insecure=insecure,
            others=others,
        )
        return bare, made

    def __bool__(self) -> bool:
        """Return whether there are any secrets."""
        return bool(self._headers or self._bearer or self._api_key or self._others)

    @property
    def names_caller(self) -> bool:
        """True if some credential certainly identifies the caller."""
        return bool(self._bearer or self._api_key or any(map(speaks_of_secret, self._headers)))

    def with_found(self, description: str, origin: Origin) -> Credentials:
        """Return the same credentials, with further ones that were found for an origin.

        A card that the caller passes decides about the origins of the caller's credentials, but not
        of the found ones: the caller did not give them for this card.
        """
        made = self.for_origin(origin)
        made._others, made._any_origin = description, False
        return made

    def for_origin(self, named: Origin | None) -> Credentials:
        """Return the same credentials for an agent at this origin."""
        made = copy(self)
        made._agent_origin = named
        return made

    def for_any_origin(self) -> Credentials:
        """Return the same credentials for all origins on a card that the caller vouches for."""
        made = copy(self)
        made._any_origin = True
        return made

    @property
    def _allowed(self) -> tuple[Origin, ...]:
        return self._origins if self._agent_origin is None else (self._agent_origin, *self._origins)

    def allows(self, origin: Origin | None) -> bool:
        """Return whether this origin may get the credentials, if there are any."""
        if not self or self._any_origin:
            return True
        return origin is not None and any(one.covers(origin) for one in self._allowed)

    def card_headers(self, url: str, *, challenged: bool) -> dict[str, str]:
        """Return the headers for fetching a card, in addition to the ``public`` ones.

        A token or a key is only sent to a server that asked for credentials (``challenged``).
        """
        try:
            origin = Origin.of(url)
        except ValueError:
            return {}
        if not self or not self.allows(origin):
            return {}
        secret = self._secrets(None).headers if challenged else {}
        self.check_encryption(origin, self._headers, is_secret=bool(secret))
        return override(self._headers, secret)

    def for_challenge(self, schemes: Collection[str]) -> Credentials:
        """Return the credentials that fit the schemes in a challenge of the card's server."""
        made = copy(self)
        made._bearer = self._bearer if "bearer" in schemes else None
        made._api_key = self._api_key if "apikey" in schemes else None
        return made

    def answers_challenge(self, url: str) -> bool:
        """Return whether there is a token or a key for a card's server that asks for one."""
        return self.card_headers(url, challenged=True) != self.card_headers(url, challenged=False)

    def agent_parameters(self, origin: Origin | None, card: AgentCard) -> RequestParameters:
        """Return the parameters for an interface of ``card`` at this origin.

        An API key is sent in the place that the card's scheme declares; the default is the header
        ``X-API-Key``.

        Raises ``OriginNotTrusted`` if the origin may not get them, ``NotEncrypted`` if the network
        could read them.
        """
        if not self.allows(origin):
            raise self.refusal(card.name, [] if origin is None else [origin])
        secret = self._secrets(card)
        self.check_encryption(origin, self._headers, is_secret=secret != ({}, {}))
        if self._headers and origin is not None and origin.is_plaintext:
            logger.warning("%.100s: headers go to %s without encryption", card.name, origin)
        return RequestParameters(
            override({**self.public, **self._headers}, secret.headers), secret.query
        )

    def check_encryption(
        self, origin: Origin | None, headers: Iterable[str] = (), *, is_secret: bool = False
    ) -> None:
        """Raise ``NotEncrypted`` if the network could read credentials on the way to an origin.

        ``headers`` are names of headers; ``is_secret``: the request has further secrets.
        """
        if self._insecure or origin is None or not origin.is_plaintext:
            return
        if is_secret or any(map(speaks_of_secret, headers)):
            raise NotEncrypted(
                f"no credentials are sent to {origin}, which is not encrypted: call an https "
                "address; in a network that you trust, connect(..., insecure=True) sends them"
            )

    def trusts(self, origin: Origin) -> bool:
        """Return whether the caller allowed this origin to get the credentials."""
        return any(one.covers(origin) for one in self._origins)

    def refusal(self, name: str, origins: Iterable[Origin]) -> OriginNotTrusted:
        """Return the error for an agent whose interfaces are all at origins without permission."""
        where = tuple(dict.fromkeys(str(origin) for origin in origins))
        return OriginNotTrusted(
            f"{name[:100]!r} is to be called at {' or '.join(where) or 'an address of no host'}, "
            f"but {self._described()} given for {' and '.join(map(str, self._allowed))}: "
            "nothing was sent there",
            origins=where,
        )

    def _described(self) -> str:
        """Describe the credentials without their secrets."""
        kinds = ["the bearer token"] * bool(self._bearer) + ["the API key"] * bool(self._api_key)
        kinds += [self._others] * bool(self._others)
        if self._headers:
            names = ", ".join(self._headers)
            kinds.append(f"the header{'s' * (len(self._headers) > 1)} {names}")
        is_one = len(kinds) == 1 and len(self._headers) < 2
        return f"{' and '.join(kinds)} {'was' if is_one else 'were'}"

    def _secrets(self, card: AgentCard | None) -> RequestParameters:
        headers: dict[str, str] = {}
        query: dict[str, str] = {}
        if self._bearer:
            headers["Authorization"] = f"Bearer {self._bearer}"
        if self._api_key:
            scheme = _api_key_scheme(card)
            match scheme.location:
                case "query":
                    query[scheme.name] = self._api_key
                case "cookie":
                    headers["Cookie"] = f"{scheme.name}={self._api_key}"
                case _:
                    headers[scheme.name] = self._api_key
        return RequestParameters(headers, query)


_SECRET_WORDS = ("auth", "cookie", "key", "token", "secret", "password", "credential", "session")


def speaks_of_secret(name: str) -> bool:
    """Return whether the name of a header suggests a credential."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def _without_user(reference: R) -> tuple[R | str, str]:
    if not isinstance(reference, str) or not re.match(r"\s*https?://", reference, re.IGNORECASE):
        return reference, ""
    try:
        parts = urlsplit(reference.strip())
    except ValueError:
        return reference, ""
    if parts.username is None:
        return reference, ""
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    return bare, f"Basic {base64.b64encode(pair.encode()).decode()}"


def _api_key_scheme(card: AgentCard | None) -> APIKeySecurityScheme:
    if card is None:
        return DEFAULT_API_KEY
    required = [name for need in card.security_requirements for name in need.schemes]
    for name in (*required, *card.security_schemes):
        scheme = card.security_schemes.get(name)
        place = None if scheme is None else scheme.api_key_security_scheme
        if place is not None and place.is_known:
            return place
    return DEFAULT_API_KEY


# -- selection --------------------------------------------------------------------------------

MAX_ALTERNATIVES = 64
"""The maximum number of combinations of an agent's and a skill's requirements."""

Alternative = Mapping[str, tuple[str, ...]]
"""An alternative of a requirement: the needed scopes by scheme name."""


class Chosen(NamedTuple):
    """A credential for one scheme of a card, with the needed scopes."""

    credential: Credential
    name: str
    scheme: SecurityScheme | None
    scopes: tuple[str, ...]


def skill_of(request: A2AStruct | None) -> str:
    """Return the skill that a message names, empty for none."""
    if not isinstance(request, SendMessageRequest):
        return ""
    named = named_skill(request.message, request.metadata)
    return named if isinstance(named, str) else ""


def alternatives(card: AgentCard, skill: str) -> list[Alternative]:
    """Return the alternatives that a card requires for a skill; empty if nothing is required."""
    own = [_scopes_of(each) for each in card.security_requirements]
    of_skill = next(
        (
            [_scopes_of(each) for each in offered.security_requirements]
            for offered in card.skills
            if skill and offered.id == skill
        ),
        [],
    )
    if not own or not of_skill:
        return own or of_skill
    joined = (_joined(mine, theirs) for mine in own for theirs in of_skill)
    return list(islice(joined, MAX_ALTERNATIVES))


def choose_credentials(
    card: AgentCard, skill: str, given: Sequence[Credential]
) -> list[Chosen] | None:
    """Return the credentials to send; ``None`` if the card requires different ones.

    An alternative without schemes is chosen if there are no credentials, else as the last one.
    """
    wanted = alternatives(card, skill)
    if not wanted:
        return _unasked(card, given)
    for alternative in sorted(wanted, key=lambda each: not each) if given else wanted:
        found = _for_alternative(card, alternative, given)
        if found is not None:
            return found
    return None


def _for_alternative(
    card: AgentCard, alternative: Alternative, given: Sequence[Credential]
) -> list[Chosen] | None:
    found: list[Chosen] = []
    for name, scopes in alternative.items():
        scheme = card.security_schemes.get(name)
        fitting = scheme and next((each for each in given if each.fits(scheme)), None)
        if not fitting:
            return None
        found.append(Chosen(fitting, name, scheme, scopes))
    return found


def _unasked(card: AgentCard, given: Sequence[Credential]) -> list[Chosen]:
    """Return the credentials for an agent that declares no requirement."""
    found = []
    for credential in given:
        for name, scheme in card.security_schemes.items():
            if credential.fits(scheme):
                found.append(Chosen(credential, name, scheme, ()))
                break
        else:
            if not card.security_schemes and credential.fits_without_scheme(frozenset()):
                found.append(Chosen(credential, "", None, ()))
    return found


def describe(card: AgentCard, skill: str = "") -> str:
    """Return a card's requirements, in words."""
    each = [
        " and ".join(
            _kind(name, card.security_schemes.get(name))
            + (f" with the scopes {' '.join(scopes)}" if scopes else "")
            for name, scopes in alternative.items()
        )
        for alternative in alternatives(card, skill)
        if alternative
    ]
    return " or ".join(dict.fromkeys(each))[:500]


def remedies(card: AgentCard, skill: str = "") -> list[str]:
    """Return the values of ``auth`` that would be sufficient."""
    schemes = [
        card.security_schemes.get(name)
        for alternative in alternatives(card, skill)
        for name in alternative
    ]
    return list(dict.fromkeys(_argument(scheme) for scheme in schemes if scheme is not None))


def is_unreadable(card: AgentCard, skill: str = "") -> bool:
    """Return whether a card requires credentials whose schemes are all unknown or malformed."""
    needs = alternatives(card, skill)
    return bool(needs) and not any(
        all(_is_known(card.security_schemes.get(name)) for name in need) for need in needs
    )


def _is_known(scheme: SecurityScheme | None) -> bool:
    place = None if scheme is None else scheme.api_key_security_scheme
    return scheme is not None and (place is None or place.is_known)


def _kind(name: str, scheme: SecurityScheme | None) -> str:
    if scheme is None:
        return f"the scheme {name!r}, which the card does not define in a known form"
    if scheme.api_key_security_scheme is not None:
        place = scheme.api_key_security_scheme
        where = (
            f"{place.location} {place.name}" if place.is_known else "the card does not say where"
        )
        return f"an API key ({where})"
    if scheme.http_auth_security_scheme is not None:
        return f"HTTP {scheme.http_auth_security_scheme.scheme}"
    if scheme.open_id_connect_security_scheme is not None:
        return "OpenID Connect"
    if scheme.mtls_security_scheme is not None:
        return "a client certificate"
    return f"OAuth 2.0 ({_flow(scheme)})"


def _flow(scheme: SecurityScheme) -> str:
    flows: Any = scheme.oauth2_security_scheme and scheme.oauth2_security_scheme.flows
    names = ("authorization_code", "client_credentials", "device_code", "password", "implicit")
    return next((name.replace("_", " ") for name in names if getattr(flows, name, None)), "")


def _argument(scheme: SecurityScheme) -> str:
    if scheme.api_key_security_scheme is not None:
        return "ApiKey(...)"
    if scheme.mtls_security_scheme is not None:
        return "ClientCertificate(...)"
    if scheme.http_auth_security_scheme is not None:
        basic = scheme.http_auth_security_scheme.scheme.lower() == "basic"
        return "Basic(...)" if basic else "Bearer(...)"
    match _flow(scheme):
        case "client credentials":
            return "ClientCredentials(...)"
        case "device code":
            return "DeviceCode(...)"
        case _:
            return "AuthorizationCode(...)"


def _scopes_of(requirement: SecurityRequirement) -> Alternative:
    return {name: tuple(scopes.list) for name, scopes in requirement.schemes.items()}


def _joined(mine: Alternative, theirs: Alternative) -> Alternative:
    names: Iterable[str] = (*mine, *theirs)
    return {
        name: tuple(dict.fromkeys((*mine.get(name, ()), *theirs.get(name, ())))) for name in names
    }
