"""A turn's authorization: the agent's policy, and out-of-band credentials (§7.6).

``turn.authorize`` calls the policy, and logs its decision. ``turn.require_auth`` with structured
data returns a ``TaskCredential``, which stays in memory and is never shown. It is valid for one
operation (``key``) of one task, in the turn that asks, for the caller of that turn.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec
from msgspec.structs import replace

from parley.agent.files import base_url
from parley.agent.services import TurnServices
from parley.client.auth.credentials import DEFAULT_API_KEY, Credential, Use, takes_token
from parley.client.bindings.request_auth import RequestParameters
from parley.engine.authorizations import (
    CLOSED,
    PREFIX,
    Arrived,
    AuthRecord,
    CallbackClaim,
    Kind,
    event_of,
    taken_by,
)
from parley.engine.caller import record_of
from parley.engine.content import to_parts
from parley.engine.turn.attempt import Attempt, Decision, NotAuthorized
from parley.extensions.questions import AuthRequest, request_part
from parley.model.cards import (
    AuthorizationCodeOAuthFlow,
    HTTPAuthSecurityScheme,
    OAuth2SecurityScheme,
    OAuthFlows,
    SecurityScheme,
)
from parley.model.errors import an
from parley.model.ids import new_id
from parley.model.parts import Message, Role
from parley.model.struct import Timestamp, decode, encode
from parley.model.tasks import TaskState
from parley.security.authorization import Access, Policy, decision
from parley.security.schemes.scheme import Scheme
from parley.security.sealing import REDIRECT
from parley.store.events import StepResult
from parley.store.protocols.tables import EventCompleted

if TYPE_CHECKING:
    from parley.client.auth import AuthorizationCode
    from parley.client.auth.issuers import TokenIssuer, TokenRefused


MAX_NAME_CHARACTERS = 2048
"""The maximum length of an action, a resource or a key, which are logged."""


async def authorize(
    services: TurnServices, attempt: Attempt, action: str, resource: str, key: str | None
) -> None:
    """Return if the caller of a turn may perform an action. Raises ``NotAuthorized``."""
    rights = services.authorization
    policy = None if rights is None else rights.policy
    if policy is None:
        raise RuntimeError(
            "turn.authorize calls the agent's policy, and this agent has none; give it one: "
            "Agent(..., rights=Rights(policy=...)), a function of an Access"
        )
    _check("action", action)
    _check("resource", resource, may_be_empty=True)
    if key is not None:
        _check("key", key)
    name = _name(action, resource, key)
    logged = attempt.logged_decision(name)
    if logged is None:
        with attempt.waits.busy():
            logged = await _decide(policy, attempt, action, resource, name)
    if not logged.allowed:
        raise NotAuthorized(action, resource)


async def _decide(
    policy: Policy, attempt: Attempt, action: str, resource: str, name: str
) -> Decision:
    """Return the policy's decision, which is logged with the turn's task."""
    request, runner = attempt.request, attempt.runner
    access = Access(
        caller=request.caller,
        agent=runner.scope.agent,
        tenant=request.tenant,
        skill=request.skill.id,
        task_id=runner.task_id,
        context_id=runner.context_id,
        action=action,
        resource=resource,
    )
    allowed = await decision(policy, access)
    made = attempt.logged_decision(name)
    if made is not None:  # another branch of the function was faster
        return made
    made = Decision(
        action=action, resource=resource, allowed=allowed, caller=record_of(request.caller)
    )
    if request.skill.replies == "message":  # there is no task, and no later attempt
        log.info("%s: %r", "allowed" if allowed else "not allowed", action)
    else:
        await attempt.log_decision(name, made)
    return made


def _name(action: str, resource: str, key: str | None) -> str:
    """Return the name of a decision in its turn."""
    digest = hashlib.sha256()
    for part in (action, resource, "" if key is None else key, "key" * (key is not None)):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:32]


def _check(what: str, value: object, *, may_be_empty: bool = False) -> None:
    """Reject a value that is not text for the log."""
    if not isinstance(value, str):
        raise TypeError(f"the {what} is text, such as 'read', not {value!r:.100}")
    if not value and not may_be_empty:
        raise ValueError(f"the {what} is empty; name the action, such as 'read'")
    if len(value) > MAX_NAME_CHARACTERS:
        raise ValueError(
            f"the {what} has {len(value)} characters, and may have {MAX_NAME_CHARACTERS}"
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the {what} is no valid text: it has half a surrogate pair") from None


T = TypeVar("T")

log = logging.getLogger("parley.agent")

MAX_EXPIRY = timedelta(days=30)

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
"""The pauses in seconds before further calls of an unreachable issuer."""

UNREACHABLE = "unreachable"
"""The ``error`` of a ``TokenRefused`` whose request was never sent."""

BEARER = SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))


@dataclass(frozen=True, slots=True)
class Need:
    """The credential that an author needs (``turn.require_auth``)."""

    content: object
    scheme: SecurityScheme
    scopes: tuple[str, ...]
    oauth: AuthorizationCode | None
    expires: timedelta
    from_anyone: bool

    @property
    def kind(self) -> Kind:
        """The form of a posted credential."""
        http = self.scheme.http_auth_security_scheme
        if http is not None and http.scheme.lower() == "basic":
            return "basic"
        return "api_key" if self.scheme.api_key_security_scheme is not None else "token"


def need_of(
    content: object,
    scheme: Scheme | SecurityScheme | None,
    scopes: Sequence[str] | str,
    oauth: AuthorizationCode | None,
    expires: timedelta,
    *,
    from_anyone: bool,
) -> Need:
    """Return the author's request as a need. Raises ``TypeError``, ``ValueError``."""
    if oauth is not None:
        from parley.client.auth import AuthorizationCode

        if not isinstance(oauth, AuthorizationCode):
            raise TypeError(
                "oauth is an AuthorizationCode of parley.client.auth, as in "
                "oauth=AuthorizationCode('my-app', secret, issuer='https://id.example.com'), "
                f"not {an(type(oauth).__qualname__)}"
            )
        if scheme is not None:
            raise ValueError("give oauth=, whose flow is the scheme, or scheme=, but not both")
        if not oauth.client_id:
            raise ValueError("oauth needs the id of a client that the issuer knows (client_id)")
        if not oauth.issuer:
            raise ValueError("oauth needs the issuer whose page the user opens (issuer=...)")
    declared = scheme.declared() if isinstance(scheme, Scheme) else scheme or BEARER
    if not isinstance(declared, SecurityScheme):
        raise TypeError(
            "scheme is one of parley.security, or a SecurityScheme of parley.model.cards, not a "
            f"{type(scheme).__qualname__}"
        )
    http = declared.http_auth_security_scheme
    if declared.mtls_security_scheme is not None or (
        http is not None and http.scheme.lower() not in ("bearer", "basic")
    ):
        raise ValueError(
            "only a token, an API key, or a user and a password can be posted to a callback"
        )
    if not isinstance(expires, timedelta) or not timedelta(0) < expires <= MAX_EXPIRY:
        raise ValueError(f"expires is a positive timedelta of up to {MAX_EXPIRY.days} days")
    named = tuple(scopes.split() if isinstance(scopes, str) else scopes)
    if oauth is not None:
        named = tuple(dict.fromkeys((*oauth.scopes, *named)))
    return Need(content, declared, named, oauth, expires, from_anyone)


class CredentialRequests:
    """The requests for credentials of one attempt at a turn."""

    def __init__(self, attempt: Attempt, services: TurnServices) -> None:
        self._attempt = attempt
        self._authorizations = services.authorizations
        self._services = services

    async def require(self, need: Need, key: str | None) -> TaskCredential:
        """Return the credential for an operation, once it has arrived.

        Raises ``TimeoutError`` after its time limit, and ``AuthorizationRefused``.
        """
        attempt = self._attempt
        key = key or attempt.next_question_key()
        attempt.use(f"{PREFIX}{key}", "authorization")
        with attempt.waits.busy():
            claim = await self._find(need, key)
            if isinstance(claim, TaskCredential):
                return claim
        await attempt.waits.park_until(claim.event, claim.expires_at)

    async def _find(self, need: Need, key: str) -> TaskCredential | CallbackClaim:
        """Return the credential, or the claim to wait for."""
        store, number = self._attempt.runner.store, 0
        while True:
            number += 1
            name = f"{PREFIX}{key}/{number}"
            logged = self._attempt.journal.results.get(name)
            record = None if logged is None else decode(logged, AuthRecord)
            if record is None:
                record = self._begin(need, key, number, name)
            elif record.turn != self._attempt.turn:
                continue  # sent for an earlier message, not for this one
            claim = self._claim(need, record)
            value = self._taken(name) or await store.event(claim.agent, claim.event)
            if value is None and store.now() < claim.expires_at:
                await self._ask(need, key, claim)
                return claim
            if value is None:
                value = await self._close(claim)
            if value == CLOSED:
                raise TimeoutError("the credential was not given within its time")
            self._take(name, value)
            arrived = await self._authorizations.arrived(claim, value)
            if arrived is None:
                continue
            credential = await self._credential(need, claim, value, arrived)
            if credential is not None:
                self._attempt.working()
                writer = self._attempt.writer()
                if writer.fold.state is TaskState.AUTH_REQUIRED:
                    writer.status(TaskState.WORKING)
                return credential

    def _begin(self, need: Need, key: str, number: int, name: str) -> AuthRecord:
        runner = self._attempt.runner
        if not base_url(self._services, self._attempt):
            raise ValueError(
                "a credential arrives at the public address of the server, which is not known "
                "here: messages over gRPC and in process do not show it; give it with url=, as in "
                "parley.asgi(agent, url='https://agents.example.com') or parley serve --url"
            )
        record = AuthRecord(
            turn=self._attempt.turn,
            event=event_of(runner.task_id, key, number),
            expires_at=runner.store.now() + need.expires // timedelta(milliseconds=1),
        )
        self._log(name, encode(record))
        return record

    def _taken(self, name: str) -> bytes | None:
        """Return the value of a request's event, if an earlier attempt has seen it."""
        logged = self._attempt.journal.results.get(taken_by(name))
        return None if logged is None else bytes(logged)

    def _take(self, name: str, value: bytes) -> None:
        """Log the value of the event, since the store removes old events even during long turns."""
        if self._taken(name) is None:
            self._log(taken_by(name), value)

    def _log(self, name: str, value: bytes) -> None:
        raw = msgspec.Raw(value)
        self._attempt.working().write(StepResult(key=name, value=raw))
        self._attempt.journal.results[name] = raw

    def _claim(self, need: Need, record: AuthRecord) -> CallbackClaim:
        runner, caller = self._attempt.runner, self._attempt.request.caller.owner
        return CallbackClaim(
            agent=runner.scope.agent,
            tenant=runner.scope.tenant,
            owner=runner.scope.owner,
            context_id=runner.context_id,
            task_id=runner.task_id,
            event=record.event,
            sealed_for=caller,
            caller="" if need.from_anyone else caller,
            kind=need.kind,
            expires_at=record.expires_at,
        )

    async def _close(self, claim: CallbackClaim) -> bytes:
        """Accept no more answers. Return the value of the event if an answer arrived first."""
        store = self._attempt.runner.store
        try:
            await store.complete_event(claim.agent, claim.event, CLOSED)
        except EventCompleted:
            value = await store.event(claim.agent, claim.event)
            assert value is not None
            return value
        return CLOSED

    # -- the request ---------------------------------------------------------------------------

    async def _ask(self, need: Need, key: str, claim: CallbackClaim) -> None:
        """Show the request and reply, unless an earlier attempt has done so."""
        attempt = self._attempt
        request = await self._request(need, key, claim)
        writer = attempt.writer()
        content = need.content
        parts = (*to_parts(content), request_part(request))
        message = (
            replace(content, message_id=new_id(), parts=parts)
            if isinstance(content, Message)
            else Message(message_id=new_id(), role=Role.AGENT, parts=parts)
        )
        writer.status(TaskState.AUTH_REQUIRED, attempt.message(message))
        await writer.flush()
        attempt.runner.reply()

    async def _request(self, need: Need, key: str, claim: CallbackClaim) -> AuthRequest:
        base = base_url(self._services, self._attempt)
        said = AuthRequest(
            id=key,
            scheme=need.scheme,
            scopes=need.scopes,
            expires_at=Timestamp.from_milliseconds(claim.expires_at),
        )
        if need.oauth is None:
            return replace(said, callback=await self._authorizations.address(base, claim))
        issuer = await self._issuer_to_name(need.oauth)
        verifier = await self._authorizations.verifier(claim)
        digest = hashlib.sha256(verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": need.oauth.client_id,
            "redirect_uri": base + REDIRECT,
            "state": await self._authorizations.state(claim),
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii"),
            "code_challenge_method": "S256",
            "scope": " ".join(need.scopes),
            "audience": need.oauth.audience,
            "resource": need.oauth.resource,
        }
        parts = urlsplit(issuer.authorization_url)
        query = urlencode({name: value for name, value in asked.items() if value})
        page = urlunsplit(parts._replace(query="&".join(filter(None, (parts.query, query)))))
        flow = AuthorizationCodeOAuthFlow(
            authorization_url=issuer.authorization_url,
            token_url=issuer.token_url,
            scopes=dict.fromkeys(need.scopes, ""),
            pkce_required=True,
        )
        scheme = OAuth2SecurityScheme(flows=OAuthFlows(authorization_code=flow))
        return replace(
            said, scheme=SecurityScheme(oauth2_security_scheme=scheme), authorization_url=page
        )

    # -- the answer ----------------------------------------------------------------------------

    async def _credential(
        self, need: Need, claim: CallbackClaim, value: bytes, arrived: Arrived
    ) -> TaskCredential | None:
        """Return the credential that arrived, ``None`` if it has expired.

        Raises ``AuthorizationRefused``.
        """
        if arrived.redirected and need.oauth is not None:
            exchanged = await self._exchange(need.oauth, claim, value, arrived)
            if exchanged is None:
                return None
            arrived = exchanged
        answer = arrived.answer
        if "error" in answer:
            raise AuthorizationRefused(answer["error"], answer.get("error_description", ""))
        life = answer.get("expires_in")
        expires_at = None if life is None else arrived.at / 1000 + life
        if expires_at is not None and self._attempt.runner.store.now() / 1000 >= expires_at:
            await self._authorizations.keep(claim, value, None)
            return None
        scopes = answer.get("scope")
        return TaskCredential(
            need.scheme,
            token=answer.get("access_token") or answer.get("api_key") or "",
            username=answer.get("username", ""),
            password=answer.get("password", ""),
            scopes=need.scopes if scopes is None else tuple(scopes.split()),
            expires_at=expires_at,
        )

    async def _exchange(
        self, oauth: AuthorizationCode, claim: CallbackClaim, value: bytes, arrived: Arrived
    ) -> Arrived | None:
        """Exchange a code for a token; ``None`` if an attempt that crashed has used the code."""
        from parley.client.auth.grant import read_token
        from parley.client.auth.issuers import TokenRefused

        answer = arrived.answer
        if "code" not in answer:
            return replace(arrived, answer={"error": "access_denied", **answer})
        try:
            issuer = await _reached(partial(self._issuer, oauth))
            said = answer.get("iss", "")
            if (said or issuer.sends_iss) and said != issuer.url:
                raise TokenRefused("the answer is not from the expected issuer")
            form = {
                "grant_type": "authorization_code",
                "code": answer["code"],
                "redirect_uri": base_url(self._services, self._attempt) + REDIRECT,
                "code_verifier": await self._authorizations.verifier(claim),
                "resource": oauth.resource,
            }
            await self._authorizations.keep(claim, value, replace(arrived, exchanging=True))
            issuers = await self._services.issuers.of(oauth)
            ask = issuers.http.ask_for_token
            given = await _reached(
                partial(ask, issuer.token_url, form, oauth.identity, methods=issuer.auth_methods)
            )
            now = self._attempt.runner.store.now()
            token = read_token(given, issuer.key, now=now / 1000)
        except TokenRefused as refusal:
            if arrived.exchanging:
                await self._authorizations.keep(claim, value, None)
                return None
            log.info("the code of a redirect was rejected: %s", refusal)
            await self._authorizations.keep(claim, value, None)
            raise _refused(refusal, "invalid_grant") from None
        made: dict[str, Any] = {"access_token": token.access_token}
        if token.expires_at is not None:
            made["expires_in"] = token.expires_at - token.obtained_at
        if token.scopes:
            made["scope"] = " ".join(token.scopes)
        kept = Arrived(made, now)
        await self._authorizations.keep(claim, value, kept)
        return kept

    async def _issuer_to_name(self, oauth: AuthorizationCode) -> TokenIssuer:
        """Return the issuer for a request. Raises ``AuthorizationRefused``."""
        from parley.client.auth.issuers import TokenRefused

        try:
            return await _reached(partial(self._issuer, oauth))
        except TokenRefused as refusal:
            raise _refused(refusal, "server_error") from None

    async def _issuer(self, oauth: AuthorizationCode) -> TokenIssuer:
        issuers = await self._services.issuers.of(oauth)
        issuer = await issuers.find(None, issuer=oauth.issuer, token_url=oauth.token_url)
        if not issuer.authorization_url:
            from parley.client.auth.issuers import TokenRefused

            raise TokenRefused(f"{issuer.key} has no page to log in at")
        return issuer


async def _reached(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of an issuer. An unreachable issuer is called again for some time.

    Only a request that was never sent is repeated. Raises ``TokenRefused``.
    """
    from parley.client.auth.issuers import TokenRefused

    for pause in PAUSES:
        try:
            return await ask()
        except TokenRefused as refusal:
            if refusal.error != UNREACHABLE:
                raise
            log.warning("an issuer cannot be reached; next try in %g s: %s", pause, refusal)
        await asyncio.sleep(pause)
    return await ask()


def _refused(refusal: TokenRefused, error: str) -> AuthorizationRefused:
    """Return the error for an issuer that gives no token; ``error`` is the default code."""
    error = refusal.error or error
    code = "temporarily_unavailable" if error == UNREACHABLE else error
    return AuthorizationRefused(code, str(refusal))


class AuthorizationRefused(Exception):
    """The user denied the request, or the issuer gave no token. ``error`` is a code of OAuth 2.0.

    End the task, or ask again.

    It is ``temporarily_unavailable`` if the issuer could not be reached for some time.
    """

    def __init__(self, error: str, description: str = "") -> None:
        super().__init__(f"{error}: {description}" if description else error)
        self.error = error
        self.description = description


class TaskCredential(Credential):
    """A credential for one operation of one task: a token, an API key, or a user and a password.

    ``headers`` are the headers of a request with it, ``query`` its query parameters: the scheme
    decides about the place of an API key. It can be used for a connection: ``turn.connect(agent,
    auth=it)``. ``scopes`` are the granted scopes, and ``expires_at`` is its expiry in seconds since
    the epoch, if known. It cannot be logged or stored.
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
        """The query parameters of a request with this credential, for an API key only."""
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
        """Return whether a scheme asks for this kind of credential."""
        if self.scheme.api_key_security_scheme is not None:
            return scheme.api_key_security_scheme is not None
        http = scheme.http_auth_security_scheme
        if self.username or self._password:
            return http is not None and http.scheme.lower() == "basic"
        return takes_token(scheme)

    def fits_without_scheme(self, challenges: frozenset[str]) -> bool:
        """Return whether it can be sent to a server whose card declares no scheme."""
        return True

    async def attach(self, use: Use) -> RequestParameters:
        """Return the headers and query parameters of a request."""
        return self._parameters(use.scheme)
