"""What goes along to which address: the one place that holds credentials and hands them out.

A caller gives credentials for an agent at an address. What the server there says, in a card or in
a redirect, does not widen that: another origin gets none of them, unless the caller allowed it.
"""

from __future__ import annotations

import base64
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import NamedTuple, TypeVar
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit

from parley.client.errors import OriginNotTrusted
from parley.client.headers import check_secret
from parley.client.origin import PUBLIC_HEADERS, Origin
from parley.model.cards import AgentCard
from parley.model.schemes import APIKeySecurityScheme

logger = logging.getLogger(__name__)

USUAL_API_KEY = APIKeySecurityScheme(location="header", name="X-API-Key")

R = TypeVar("R")


class Attached(NamedTuple):
    """What goes along with every request to one interface."""

    headers: dict[str, str]
    query: dict[str, str]

    def to(self, url: str) -> str:
        """Return the address of the interface with the query parameters.

        A user and a password in the address give way to the ``Authorization`` that goes along.
        """
        parts = urlsplit(url)
        if "authorization" in map(str.lower, self.headers) and "://" in url:
            parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        elif not self.query:
            return url
        joined = "&".join(filter(None, (parts.query, urlencode(self.query))))
        return urlunsplit(parts._replace(query=joined))


class Credentials:
    """What a caller gave to go along, and the origins that it was given for.

    ``headers`` may hold anything, so all but the protocol's own (``public``) count as credentials.
    ``trust_origins`` are origins that may have them beside that of the agent's address, which
    ``bound_to`` adds. Raises ``ValueError`` for what is no origin and for a token or a key that no
    request can carry, ``TypeError`` for one that is not text.
    """

    def __init__(
        self,
        *,
        headers: Mapping[str, str] | None = None,
        bearer: str | None = None,
        api_key: str | None = None,
        trust_origins: Sequence[str] = (),
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
        self._origins = tuple(map(Origin.written, trust_origins))
        self._named: Origin | None = None
        self._is_everywhere = False

    @classmethod
    def given(
        cls,
        reference: R,
        *,
        headers: Mapping[str, str] | None = None,
        bearer: str | None = None,
        api_key: str | None = None,
        trust_origins: Sequence[str] = (),
    ) -> tuple[R | str, Credentials]:
        """Return a reference without the user and the password in it, and all that was given.

        They are sent as ``Authorization: Basic``. Raises ``ValueError`` when there is another.
        """
        bare, basic = _without_user(reference)
        if basic:
            if bearer or "authorization" in map(str.lower, headers or ()):
                raise ValueError(
                    "the agent's address holds a user and a password; give them, or a bearer "
                    "token or the header Authorization, but not both"
                )
            headers = {**(headers or {}), "Authorization": basic}
        made = cls(headers=headers, bearer=bearer, api_key=api_key, trust_origins=trust_origins)
        return bare, made

    def __bool__(self) -> bool:
        """Whether there is anything that not everybody may have."""
        return bool(self._headers or self._bearer or self._api_key)

    def bound_to(self, named: Origin | None) -> Credentials:
        """Return the same credentials, given for an agent at this origin."""
        made = copy(self)
        made._named = named
        return made

    def bound_to_all(self) -> Credentials:
        """Return the same credentials, given for wherever the caller's own card leads."""
        made = copy(self)
        made._is_everywhere = True
        return made

    def may_go_to(self, origin: Origin | None) -> bool:
        """Whether the credentials, if there are any, were given for this origin."""
        if not self or self._is_everywhere:
            return True
        given_for = self._origins if self._named is None else (self._named, *self._origins)
        return origin is not None and any(one.covers(origin) for one in given_for)

    def to_card(self, url: str, *, asked: bool) -> dict[str, str]:
        """Return the headers that go along when a card is fetched, beside the ``public`` ones.

        Only a server that ``asked`` for them gets a token or a key.
        """
        try:
            if not self or not self.may_go_to(Origin.of(url)):
                return {}
        except ValueError:
            return {}
        return _over(self._headers, self._secrets(None).headers if asked else {})

    def would_answer(self, url: str) -> bool:
        """Whether there is a token or a key for a card's server that wants some."""
        return self.to_card(url, asked=True) != self.to_card(url, asked=False)

    def to_agent(self, origin: Origin | None, card: AgentCard) -> Attached:
        """Return what goes along to an interface of ``card`` at this origin.

        An API key goes where the card's scheme wants it, in the header ``X-API-Key`` if none says
        so. Credentials that can be read on their way are warned of in the log.

        Raises ``OriginNotTrusted`` when they were not given for the origin.
        """
        if not self.may_go_to(origin):
            raise self.refusal(card.name, [] if origin is None else [origin])
        if self and origin is not None and origin.is_readable:
            logger.warning("%.100s: credentials go to %s without encryption", card.name, origin)
        secret = self._secrets(card)
        return Attached(_over({**self.public, **self._headers}, secret.headers), secret.query)

    def refusal(self, name: str, origins: Iterable[Origin]) -> OriginNotTrusted:
        """Return the error for an agent that can be called only at other origins."""
        where = tuple(dict.fromkeys(str(origin) for origin in origins))
        given_for = self._origins if self._named is None else (self._named, *self._origins)
        return OriginNotTrusted(
            f"{name[:100]!r} is to be called at {' or '.join(where) or 'an address of no host'}, "
            f"but {self._described()} given for {' and '.join(map(str, given_for))}: "
            "nothing was sent there",
            origins=where,
        )

    def _described(self) -> str:
        """Say what was given, without what is secret."""
        said = ["the bearer token"] * bool(self._bearer) + ["the API key"] * bool(self._api_key)
        if self._headers:
            names = ", ".join(self._headers)
            said.append(f"the header{'s' * (len(self._headers) > 1)} {names}")
        is_one = len(said) == 1 and len(self._headers) < 2
        return f"{' and '.join(said)} {'was' if is_one else 'were'}"

    def _secrets(self, card: AgentCard | None) -> Attached:
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
        return Attached(headers, query)


def _over(given: dict[str, str], secret: dict[str, str]) -> dict[str, str]:
    """Return the headers with the secret ones in place of any of their names."""
    names = {name.lower() for name in secret}
    return {**{n: v for n, v in given.items() if n.lower() not in names}, **secret}


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
        return USUAL_API_KEY
    required = [name for need in card.security_requirements for name in need.schemes]
    for name in (*required, *card.security_schemes):
        scheme = card.security_schemes.get(name)
        if scheme is not None and scheme.api_key_security_scheme is not None:
            return scheme.api_key_security_scheme
    return USUAL_API_KEY
