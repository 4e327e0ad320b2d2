"""The caller's credentials, and the decision which origin gets them. Nothing else decides it.

A caller gives credentials for an agent at an address. A card or a redirect from there does not
extend them to another origin; only the caller can (``trust_origins``).
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from parley.client.auth.credential import DEFAULT_API_KEY
from parley.client.bindings.request_auth import RequestParameters
from parley.client.errors import NotEncrypted, OriginNotTrusted
from parley.client.headers import check_secret, override
from parley.client.origin import PUBLIC_HEADERS, Origin
from parley.model.cards import AgentCard, APIKeySecurityScheme

logger = logging.getLogger(__name__)

R = TypeVar("R")


class Credentials:
    """A caller's credentials, and the origins that may have them.

    All ``headers`` count as credentials, except the protocol's own (``public``). ``trust_origins``
    may have them, and so may the origin of the agent's address, which ``for_origin`` adds. Unless
    ``insecure`` they go to no other machine without encryption; headers whose names do not speak of
    secrets are only warned of. ``others`` describes credentials that are attached beside these.

    Raises
    ------
    ``ValueError`` for an invalid origin and a token or a key that no request can carry,
    ``TypeError`` for one that is not text.

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
        """Return a reference without its user and password, and the credentials with them.

        They become ``Authorization: Basic``. Raises ``ValueError`` if there is another one.
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
        """Return whether there is anything secret."""
        return bool(self._headers or self._bearer or self._api_key or self._others)

    @property
    def names_caller(self) -> bool:
        """Whether there is something that certainly says who calls."""
        return bool(self._bearer or self._api_key or any(map(speaks_of_secret, self._headers)))

    def with_found(self, description: str, origin: Origin) -> Credentials:
        """Return the same credentials, with others beside them that were found for an origin.

        A card that the caller passes itself decides where the caller's credentials go, but not
        where these do: the caller did not give them for this card.
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
        """Return the same credentials for any origin that the caller's own card names."""
        made = copy(self)
        made._any_origin = True
        return made

    @property
    def _allowed(self) -> tuple[Origin, ...]:
        return self._origins if self._agent_origin is None else (self._agent_origin, *self._origins)

    def allows(self, origin: Origin | None) -> bool:
        """Return whether this origin may have the credentials, if there are any."""
        if not self or self._any_origin:
            return True
        return origin is not None and any(one.covers(origin) for one in self._allowed)

    def card_headers(self, url: str, *, challenged: bool) -> dict[str, str]:
        """Return the headers for fetching a card, beside the ``public`` ones.

        Only a server that asked for credentials (``challenged``) gets a token or a key.
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

    def answers_challenge(self, url: str) -> bool:
        """Return whether there is a token or a key for a card's server that asks for one."""
        return self.card_headers(url, challenged=True) != self.card_headers(url, challenged=False)

    def agent_parameters(self, origin: Origin | None, card: AgentCard) -> RequestParameters:
        """Return the parameters for an interface of ``card`` at this origin.

        An API key goes where the card's scheme says, by default into the header ``X-API-Key``.

        Raises ``OriginNotTrusted`` if the origin may not have them, ``NotEncrypted`` if the network
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
        """Raise ``NotEncrypted`` if the network could read credentials that go to an origin.

        ``headers`` are names of headers; ``is_secret``: there is more, which is secret.
        """
        if self._insecure or origin is None or not origin.is_plaintext:
            return
        if is_secret or any(map(speaks_of_secret, headers)):
            raise NotEncrypted(
                f"no credentials are sent to {origin}, which is not encrypted: call an https "
                "address; in a network that you trust, connect(..., insecure=True) sends them"
            )

    def trusts(self, origin: Origin) -> bool:
        """Return whether the caller named this origin as one that may have the credentials."""
        return any(one.covers(origin) for one in self._origins)

    def refusal(self, name: str, origins: Iterable[Origin]) -> OriginNotTrusted:
        """Return the error for an agent with interfaces only at origins without permission."""
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
    """Return whether a header is a credential, by its name."""
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
