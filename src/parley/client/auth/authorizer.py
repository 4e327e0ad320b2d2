"""The one place that attaches credentials to requests and obtains new ones.

A connection has one ``Authorizer``. Bindings, the card resolver and file transfers call it before
each request, and once more when a server rejects the credentials. It decides by origin.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from parley.client.auth.credentials import (
    ApiKeyCredential,
    BearerCredential,
    Chosen,
    ClientCertificate,
    Credential,
    Credentials,
    Use,
    choose_credentials,
    describe,
    is_unreadable,
    remedies,
    skill_of,
)
from parley.client.auth.grant import ClientCredentials, Grant
from parley.client.auth.issuers import IssuerHttp, Issuers, TokenRefused, names_issuer
from parley.client.auth.logins import Logins, credential_of
from parley.client.auth.storage import StorageUnusable
from parley.client.bindings.http import HttpTransport
from parley.client.bindings.request_auth import NOTHING, Refusal, RequestAuth, RequestParameters
from parley.client.errors import AuthenticationRequired
from parley.client.origin import Origin
from parley.model.cards import AgentCard
from parley.model.errors import an
from parley.model.struct import A2AStruct
from parley.security.networks import is_loopback

# -- challenges -------------------------------------------------------------------------------
#
# Challenges of servers: the values of ``WWW-Authenticate`` (RFC 9110 §11.6.1).


MAX_LENGTH = 8192
"""The maximum length of the challenges that are read."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_ITEM = re.compile(rf'({_TOKEN})(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|({_TOKEN})))?')
_ESCAPED = re.compile(r"\\(.)")


class Challenge(NamedTuple):
    """A challenge: its scheme and the names of its parameters in lower case."""

    scheme: str
    parameters: dict[str, str]

    @property
    def scopes(self) -> tuple[str, ...]:
        """The scopes that the challenge asks for (RFC 6750 §3)."""
        return tuple(dict.fromkeys(self.parameters.get("scope", "").split()))


def parse_challenges(value: str) -> list[Challenge]:
    """Return the challenges in a header. Malformed parts are skipped."""
    found: list[Challenge] = []
    for item in _ITEM.finditer(value[:MAX_LENGTH]):
        name, quoted, plain = item.groups()
        if quoted is None and plain is None:
            found.append(Challenge(name.lower(), {}))
        elif found:
            content = plain if quoted is None else _ESCAPED.sub(r"\1", quoted)
            found[-1].parameters.setdefault(name.lower(), content)
    return found


# -- environment ------------------------------------------------------------------------------
#
# Credentials in environment variables, for services without a keyring and a user.
#
# They are for one origin, which must be named: a program that calls many agents must not send the
# token of one agent to another.
#
# PARLEY_AUTH_ORIGIN       the origin of the credentials, such as https://bank.example.com
# PARLEY_TOKEN             a bearer token
# PARLEY_API_KEY           an API key
# PARLEY_CLIENT_ID         a client of the agent's issuer, with PARLEY_CLIENT_SECRET,
#                          and PARLEY_ISSUER, PARLEY_SCOPES if they are needed


ORIGIN = "PARLEY_AUTH_ORIGIN"
CREDENTIALS = ("PARLEY_TOKEN", "PARLEY_API_KEY", "PARLEY_CLIENT_ID")

_clients: dict[tuple[str, ...], ClientCredentials] = {}


def credentials_in(environment: Mapping[str, str], origin: Origin) -> list[Credential]:
    """Return the credentials for an origin. Raises ``ValueError`` for a malformed one."""
    given = [name for name in CREDENTIALS if environment.get(name)]
    if not given:
        return []
    named = environment.get(ORIGIN, "")
    if not named:
        logger.warning(
            "%s is set, but not its origin: set %s to the agent's origin, such as %s",
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
        # One object for all connections, since it caches the tokens.
        if members not in _clients:
            _clients.clear()
            id, secret, issuer, scopes = members
            _clients[members] = ClientCredentials(id, secret, issuer=issuer, scopes=scopes)
        found.append(_clients[members])
    return found


# -- authorizer -------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

MAX_SCOPES = 64
"""The maximum number of scopes that challenges may add."""

Given = Sequence[Credential]


class Authorizer:
    """The credentials of one connection.

    ``given`` are the user's credentials. With ``None`` the login for the agent's origin is used,
    then the credentials of the environment, both only when they are needed. ``credentials`` are the
    headers, token and key of the connection, and decide about origins. ``address`` is the agent's
    address as the user gave it.
    """

    def __init__(
        self,
        credentials: Credentials,
        given: Given | None,
        *,
        http: HttpTransport,
        address: str,
        logins: Logins | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.credentials = credentials
        self._given: tuple[Credential, ...] = tuple(given or ())
        # A local agent has no login, and reading logins may ask the user for a password.
        self._may_look_up = given is None and not credentials.names_caller and not http.is_local
        self._looking_up = asyncio.Lock()
        self._logins = logins
        self._environment = os.environ if environment is None else environment
        self._address = address
        self._origin: Origin | None = None
        self._card: Callable[[], AgentCard] | None = None
        self._hinted = ""
        self._resource = ""
        self._extra: dict[str, tuple[str, ...]] = {}
        self._asked: dict[str, tuple[str, ...]] = {}
        self._http = http
        self._issuers: Issuers | None = None
        self._chosen: tuple[object, dict[str, list[Chosen] | None]] = (None, {})

    async def aclose(self) -> None:
        """Close the connections to issuers. Idempotent."""
        if self._issuers is not None:
            await self._issuers.http.aclose()

    @property
    def is_explicit(self) -> bool:
        """True if there are credentials besides headers, token and key."""
        return bool(self._given)

    # -- the origins of credentials ------------------------------------------------------------

    def for_origin(self, origin: Origin | None) -> None:
        """Bind the credentials to the agent's origin."""
        self._origin = origin
        self.credentials = self.credentials.for_origin(origin)

    @property
    def is_bound(self) -> bool:
        """True if the card of the agent is known."""
        return self._card is not None

    def for_card(
        self, credentials: Credentials, card: Callable[[], AgentCard], origin: Origin | None
    ) -> None:
        """Bind the credentials to an agent."""
        self.credentials, self._card = credentials, card
        self._origin = self._origin or origin
        self._forget_choice()

    async def prepare(self) -> None:
        """Find the credentials that the card requires.

        Raises ``AuthenticationRequired`` if the user's credentials do not fit.
        """
        card = self._card() if self._card is not None else None
        if card is None or not card.security_requirements:
            return
        if not self._given and not await self._look_up():
            if not self.credentials and is_unreadable(card):
                logger.warning(
                    "%.100r is called without credentials, but requires %s: give them, "
                    "as in connect(..., headers={name: value})",
                    card.name,
                    describe(card),
                )
        elif self._choose("") is None:
            raise AuthenticationRequired(
                f"{card.name[:100]!r} wants {describe(card)}, and {_named(self._given)} "
                f"{'does' if len(self._given) == 1 else 'do'} not fit: {self._remedy(card, '')}",
                status=401,
            )

    def read_card_with(self, card: Callable[[], AgentCard]) -> None:
        """Read the requirements from this function from now on, as a later card may replace this
        one."""
        self._card = card

    def may_see_certificate(self, origin: Origin) -> bool:
        """Return whether the client's certificate is presented to a server."""
        named = any(isinstance(each, Grant) and each.names(origin) for each in self._given)
        return named or self.credentials.allows(origin)

    async def _look_up(self) -> bool:
        """Find credentials for the agent's origin, once. Return whether there are any.

        Concurrent callers wait for the first call.
        """
        async with self._looking_up:
            if self._may_look_up and self._origin is not None:
                await self._find_for(self._origin)
                self._may_look_up = False
        return bool(self._given)

    async def _find_for(self, origin: Origin) -> None:
        logins = self._logins or Logins()
        try:
            login = await asyncio.to_thread(logins.find, origin)
        except StorageUnusable as error:
            logger.warning("logins are not used: %s", error)
            login = None
        if login is not None:
            found: list[Credential] = [credential_of(login, logins)]
            logger.info("using the login for %s", origin)
        else:
            found = credentials_in(self._environment, origin)
        if found:
            self._given = tuple(found)
            words = "the login" if login is not None else "the credentials of the environment"
            self.credentials = self.credentials.with_found(words, origin)
            self._forget_choice()

    # -- before a request ----------------------------------------------------------------------

    def at(self, origin: Origin | None) -> RequestAuth:
        """Return the credentials of requests to an origin."""

        async def parameters(request: A2AStruct | None) -> RequestParameters:
            return await self.parameters(origin, skill_of(request)) if self._given else NOTHING

        async def answer(
            refusal: Refusal, request: A2AStruct | None, sent: RequestParameters
        ) -> bool:
            return await self.answer(origin, refusal, skill_of(request), sent)

        return RequestAuth(parameters, answer, lambda refusal: self.advice(refusal, ""))

    async def parameters(self, origin: Origin | None, skill: str) -> RequestParameters:
        """Return the credentials for a request to an origin. Raises ``ClientError``."""
        if not self._given:
            return NOTHING
        chosen = self._choose(skill)
        if not chosen:
            return NOTHING
        self._check(origin)
        return await self._attach(chosen)

    def _check(self, origin: Origin | None) -> None:
        """Raise an error if an origin may not get the credentials."""
        if not self.credentials.allows(origin):
            name = self._card().name if self._card is not None else ""
            raise self.credentials.refusal(name, [] if origin is None else [origin])
        self.credentials.check_encryption(origin, is_secret=True)

    async def _attach(self, chosen: Sequence[Chosen]) -> RequestParameters:
        headers: dict[str, str] = {}
        query: dict[str, str] = {}
        for each in chosen:
            found = await each.credential.attach(self._use(each))
            if cookie := headers.get("Cookie") and found.headers.get("Cookie"):
                found.headers["Cookie"] = f"{headers['Cookie']}; {cookie}"
            headers.update(found.headers)
            query.update(found.query)
        return RequestParameters(headers, query)

    def _choose(self, skill: str) -> list[Chosen] | None:
        if self._card is None:
            return []
        card = self._card()
        if self._chosen[0] is not card:
            self._chosen = (card, {})
        known = self._chosen[1]
        if skill not in known:
            if len(known) > 1000:
                known.clear()
            known[skill] = choose_credentials(card, skill, self._given)
        return known[skill]

    def _forget_choice(self) -> None:
        self._chosen = (None, {})

    def _use(self, chosen: Chosen) -> Use:
        if self._issuers is None:
            is_local = self._origin is not None and is_loopback(self._origin.host)
            self._issuers = Issuers(
                IssuerHttp(self._http, trusts=self._trusts_issuer, is_local=is_local)
            )
        asked = self._asked.get(chosen.name, ())
        if not set(chosen.scopes) <= set(asked):
            self._asked[chosen.name] = tuple(dict.fromkeys((*asked, *chosen.scopes)))[:MAX_SCOPES]
        return Use(
            origin=str(self._origin or self._address),
            issuers=self._issuers,
            scheme=chosen.scheme,
            scopes=tuple(dict.fromkeys((*chosen.scopes, *self._extra.get(chosen.name, ())))),
            hinted=self._hinted,
            resource=self._resource,
        )

    def _trusts_issuer(self, origin: Origin) -> bool:
        """Return whether an issuer may be at any address: it is the agent's own, or the user's
        choice."""
        own: list[Origin] = [] if self._origin is None else [self._origin]
        for credential in self._given:
            if isinstance(credential, Grant) and credential.names(origin):
                return True
        return any(each.covers(origin) for each in own) or self.credentials.trusts(origin)

    # -- after a rejection ---------------------------------------------------------------------

    async def answer(
        self, origin: Origin | None, refusal: Refusal, skill: str, sent: RequestParameters
    ) -> bool:
        """Return whether new credentials are available for one more attempt."""
        challenges = parse_challenges(refusal.challenge)
        if not self._given and refusal.status == 401 and not await self._look_up():
            return False
        if not self.credentials.allows(origin):
            return False
        if refusal.status == 401:
            await self._follow_hint(challenges)
        chosen = self._choose(skill)
        if not chosen:
            chosen = self._answering(challenges) if refusal.status == 401 else []
        if not chosen:
            return False
        self._check(origin)
        lacking = [each for each in challenges if _lacks_scopes(each.parameters)]
        if refusal.status == 403 and not lacking:
            return False
        if lacking:
            return await self._widen(chosen, [s for each in lacking for s in each.scopes], sent)
        renewed = [
            await each.credential.renew(self._use(each), sent, widened=False) for each in chosen
        ]
        # A credential that was not sent before, such as one just found, counts as new.
        return any(renewed) or (sent == NOTHING and (await self._attach(chosen)) != sent)

    async def _widen(
        self, chosen: Sequence[Chosen], scopes: Sequence[str], sent: RequestParameters
    ) -> bool:
        """Request a token with more scopes, without scopes that did not help before."""
        for each in chosen:
            if not isinstance(each.credential, Grant):
                continue
            known = self._extra.get(each.name, ())
            if set(scopes) <= {*known, *each.scopes}:
                return False
            # Keep the scopes of earlier messages: later requests mostly concern their tasks.
            asked = self._asked.get(each.name, ())
            wider = tuple(dict.fromkeys((*known, *scopes, *asked)))[:MAX_SCOPES]
            self._extra[each.name] = wider
            is_wider = False
            try:
                is_wider = await each.credential.renew(self._use(each), sent, widened=True)
            finally:
                if not is_wider:
                    self._extra[each.name] = known
            if is_wider:
                return True
        return False

    async def _follow_hint(self, challenges: Sequence[Any]) -> None:
        """Remember the issuer in a challenge (RFC 9728), if a challenge may name it."""
        if self._origin is None or not any(isinstance(each, Grant) for each in self._given):
            return
        for challenge in challenges:
            url = challenge.parameters.get("resource_metadata", "")
            if challenge.scheme != "bearer" or not url or self._hinted:
                continue
            issuers = self._use(Chosen(self._given[0], "", None, ())).issuers
            try:
                named = await issuers.hinted_by(url, self._origin)
            except TokenRefused as error:
                logger.info("the agent's metadata is not used: %s", error)
                continue
            self._hinted = next((each for each in named if self._may_ask(each)), "")

    def _may_ask(self, issuer: str) -> bool:
        """Return whether an issuer is named by the card or the user, or is the agent's own."""
        try:
            origin = Origin.of(issuer)
        except ValueError:
            return False
        if self._trusts_issuer(origin):
            return True
        schemes = self._card().security_schemes.values() if self._card is not None else ()
        return any(names_issuer(scheme, issuer) for scheme in schemes)

    def _answering(self, challenges: Sequence[Any]) -> list[Chosen]:
        """Return the credentials for a server that asks for some that its card does not declare."""
        asked = frozenset(each.scheme for each in challenges) or frozenset({"bearer"})
        found = [
            Chosen(each, "", None, ())
            for each in self._given
            if each.fits_without_scheme(asked)
            or (isinstance(each, Grant) and self._hinted and "bearer" in asked)
        ]
        return found[:1]

    # -- the card ------------------------------------------------------------------------------

    async def card_parameters(self, refusal: Refusal, url: str) -> dict[str, str]:
        """Return the headers for fetching a card from a server that asks for credentials."""
        try:
            origin = Origin.of(url)
        except ValueError:
            return {}
        if not self._given and not await self._look_up():
            return {}
        if not self.credentials.allows(origin):
            return {}
        challenges = parse_challenges(refusal.challenge)
        await self._follow_hint(challenges)
        chosen = self._answering(challenges)
        if not chosen:
            return {}
        self._check(origin)
        found = await self._attach(chosen)
        # The place of a query parameter is unknown before the card is known.
        return found.headers

    def allows(self, url: str) -> bool:
        """Return whether the server at an address may get the credentials."""
        try:
            return self.credentials.allows(Origin.of(url))
        except ValueError:
            return False

    # -- advice --------------------------------------------------------------------------------

    def advice(self, refusal: Refusal, skill: str) -> str:
        """Return advice on how to get the credentials that a server asks for."""
        if self._card is None:
            return ""
        card = self._card()
        for each in self._given:
            if each.advice:
                scopes = [s for c in parse_challenges(refusal.challenge) for s in c.scopes]
                shown = [scope for scope in scopes[:10] if scope.isprintable()]
                # The agent chose the scopes, and the user may copy the command into a shell.
                more = "".join(f" --scope {shlex.quote(scope)}" for scope in shown)
                return f"log in again: {each.advice}{more}"
        wanted = describe(card, skill)
        if not wanted or self._given or self.credentials.names_caller:
            return ""
        return f"it wants {wanted}: {self._remedy(card, skill)}"

    def _remedy(self, card: AgentCard, skill: str) -> str:
        arguments = " or ".join(remedies(card, skill)) or "..."
        where = self._address or str(self._origin or "URL")
        return f"connect(..., auth={arguments}), or: parley auth login {where}"


def certificate_in(given: Given | None) -> ClientCertificate | None:
    """Return the client certificate among credentials. Raises ``ValueError`` if there are
    several."""
    found = [each for each in given or () if isinstance(each, ClientCertificate)]
    if len(found) > 1:
        raise ValueError("a connection presents one client certificate; give one")
    return found[0] if found else None


def credentials_of(auth: Any) -> tuple[Credential, ...] | None:
    """Return the credentials of ``connect(auth=...)``, ``None`` to look them up.

    Raises ``TypeError`` for anything else.
    """
    if auth is None:
        return None
    if auth is False:
        return ()
    given = tuple(auth) if isinstance(auth, list | tuple) else (auth,)
    for each in given:
        if not isinstance(each, Credential):
            raise TypeError(
                "auth takes credentials of parley.client.auth, such as Bearer(token) or "
                f"ClientCredentials(...), or a list of them, not {an(type(each).__name__)}"
            )
    return given


def _lacks_scopes(parameters: Mapping[str, str]) -> bool:
    return parameters.get("error") == "insufficient_scope" and bool(parameters.get("scope"))


def _named(given: Given) -> str:
    return " and ".join(type(each).__name__.removesuffix("Credential") for each in given)
