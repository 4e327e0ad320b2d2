"""Out-of-band input for tasks: callbacks, and posted credentials (§7.6).

A callback address is a signed token that completes one event of an agent, once. The address for a
credential contains a sealed claim: the task, the operation and the caller. Any replica can read
both; neither needs a database row. A credential is sealed for its task, operation and caller, and
kept as a value of the task's context, never in the log. An event whose value is the name of that
context value wakes the turn.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import msgspec

from parley.model.struct import decode, encode
from parley.security.sealing import (
    AUTHORIZE,
    CALLBACKS,
    MAX_TOKEN_LENGTH,
    CredentialRefused,
    NoLongerNeeded,
    SealBroken,
    Sealer,
    TokenExpired,
    TokenInvalid,
    TokenSigner,
)
from parley.store.events import Scope
from parley.store.protocols.tables import EventCompleted, check_key
from parley.store.task_store import TaskStore

MAX_CREDENTIAL = 64 * 1024
"""The maximum length of a credential in characters."""

PREFIX = "auth:"
"""The prefix of the log keys of credential requests."""

CLOSED = b'"closed"'
"""The event value of a closed request, which accepts no more answers."""

Kind = Literal["token", "basic", "api_key"]

_SECRET = "sealing"
_CALLBACK, _REDIRECT, _SLOT, _VERIFIER = "callback", "redirect", "credential", "verifier"


class AuthRecord(msgspec.Struct, frozen=True):
    """The log record of a request: the turn that asks, and its event, without the answer."""

    turn: int
    event: str
    expires_at: int


class CallbackClaim(msgspec.Struct, frozen=True, array_like=True):
    """The purpose of a callback address: one operation of one task, for its caller.

    ``owner`` is the owner of the task. ``caller`` is the ``Caller.owner`` of the turn's caller,
    empty if anyone with the address may use it. ``expires_at`` is in ms.
    """

    agent: str
    tenant: str
    owner: str
    context_id: str
    task_id: str
    event: str
    sealed_for: str
    caller: str
    kind: Kind
    expires_at: int

    @property
    def scope(self) -> Scope:
        """The scope of the task."""
        return Scope(self.agent, self.tenant, self.owner)

    @property
    def binding(self) -> str:
        """The purpose for which a credential is sealed."""
        return "\n".join((self.agent, self.task_id, self.event, self.sealed_for))


class Arrived(msgspec.Struct, frozen=True, omit_defaults=True):
    """The received data: the members of a token response or of a redirect.

    ``exchanging`` is true once the code in it may have been used. ``at`` is in ms.
    """

    answer: dict[str, Any]
    at: int
    redirected: bool = False
    exchanging: bool = False

    def __repr__(self) -> str:
        return "Arrived(...)"


class Authorizations:
    """The requests for credentials of one agent. ``key`` is the operator's or the store's."""

    def __init__(self, store: TaskStore, agent: str, key: bytes | None = None) -> None:
        self._store = store
        self._agent = agent
        self._sealer = None if key is None else Sealer(key)

    # -- addresses -----------------------------------------------------------------------------

    async def address(self, base_url: str, claim: CallbackClaim) -> str:
        """Return the address to which the credential is posted."""
        return f"{base_url}{AUTHORIZE}/{await self._token(_CALLBACK, claim)}"

    async def state(self, claim: CallbackClaim) -> str:
        """Return the ``state`` of an authorization URL."""
        return await self._token(_REDIRECT, claim)

    async def verifier(self, claim: CallbackClaim) -> str:
        """Return the PKCE verifier of a request, which is derived and not stored."""
        sealer = await self._seal()
        return (
            base64.urlsafe_b64encode(sealer.derive(_VERIFIER, claim.binding))
            .rstrip(b"=")
            .decode("ascii")
        )

    async def claim_of(self, token: str, tenant: str, *, redirected: bool = False) -> CallbackClaim:
        """Return the claim of an address or a ``state``, at the address of a tenant.

        Raises ``TokenInvalid``, ``TokenExpired``.
        """
        try:
            content = (await self._seal()).open(
                _REDIRECT if redirected else _CALLBACK, token, self._agent
            )
            claim = decode(content, CallbackClaim)
        except (SealBroken, msgspec.DecodeError):
            raise TokenInvalid from None
        if tenant and claim.tenant != tenant:
            raise TokenInvalid
        if self._store.now() >= claim.expires_at:
            raise TokenExpired
        return claim

    async def _token(self, purpose: str, claim: CallbackClaim) -> str:
        token = (await self._seal()).seal(purpose, encode(claim), self._agent)
        if len(token) > MAX_TOKEN_LENGTH:
            raise ValueError("the ids of this task are too long for a callback address")
        return token

    # -- receiving -----------------------------------------------------------------------------

    async def receive(
        self, claim: CallbackClaim, given: object, *, redirected: bool = False
    ) -> None:
        """Store the data of a post or a redirect, and wake the turn.

        Raises ``CredentialRefused``, ``EventCompleted`` for an answered request,
        ``NoLongerNeeded``, ``StoreError``.
        """
        store, scope = self._store, claim.scope
        answer = redirect_in(given) if redirected else credential_in(given, claim.kind)
        if await store.event(self._agent, claim.event) is not None:
            raise EventCompleted(self._agent, claim.event)
        record = await store.load(claim.task_id, scope=scope, history=0, artifacts=False)
        if record is None or record.state.is_terminal:
            raise NoLongerNeeded
        name = secrets.token_urlsafe(16)
        arrived = Arrived(answer, store.now(), redirected)
        slot = slot_of(name)
        await self._write(claim, slot, arrived)
        try:
            await store.complete_event(self._agent, claim.event, encode(name))
        except EventCompleted:  # a concurrent request was faster
            await store.set_value(scope, claim.context_id, slot, None)
            raise

    async def arrived(self, claim: CallbackClaim, value: bytes) -> Arrived | None:
        """Return the received data named by the value of its event; ``None`` if it is deleted."""
        slot = slot_of(msgspec.json.decode(value, type=str))
        found = await self._store.get_value(claim.scope, claim.context_id, slot)
        if found is None:
            return None
        try:
            sealed = msgspec.json.decode(found, type=str)
            content = (await self._seal()).open(_SLOT, sealed, claim.binding)
            return decode(content, Arrived)
        except (SealBroken, msgspec.DecodeError):  # sealed with another key, or for another caller
            await self._store.set_value(claim.scope, claim.context_id, slot, None)
            return None

    async def keep(self, claim: CallbackClaim, value: bytes, arrived: Arrived | None) -> None:
        """Replace the received data; ``None`` deletes it."""
        slot = slot_of(msgspec.json.decode(value, type=str))
        if arrived is None:
            await self._store.set_value(claim.scope, claim.context_id, slot, None)
        else:
            await self._write(claim, slot, arrived)

    async def _write(self, claim: CallbackClaim, slot: str, arrived: Arrived) -> None:
        sealed = (await self._seal()).seal(_SLOT, encode(arrived), claim.binding)
        await self._store.set_value(claim.scope, claim.context_id, slot, encode(sealed))

    async def _seal(self) -> Sealer:
        if self._sealer is None:
            self._sealer = Sealer(await self._store.secret(_SECRET))
        return self._sealer


def slot_of(name: str) -> str:
    """Return the context key of the received data."""
    return f"urn:parley:credential:{name}"


def taken_by(key: str) -> str:
    """Return the log key of the value of the event that woke the turn."""
    return f"taken-{key}"


def event_of(task_id: str, key: str, number: int) -> str:
    """Return the event key of a request of a task."""
    digest = hashlib.sha256(f"{task_id}\n{key}\n{number}".encode()).hexdigest()
    return f"urn:parley:authorization:{digest}"


async def forget(
    store: TaskStore, scope: Scope, context_id: str, results: Mapping[str, msgspec.Raw]
) -> None:
    """Delete the credentials of a task, and close its unanswered requests.

    Raises ``StoreError``.
    """
    for key, result in results.items():
        if not key.startswith(PREFIX):
            continue
        event = decode(result, AuthRecord).event
        taken = results.get(taken_by(key))
        value = await store.event(scope.agent, event) if taken is None else bytes(taken)
        if value is None:
            try:
                await store.complete_event(scope.agent, event, CLOSED)
                continue
            except EventCompleted:
                value = await store.event(scope.agent, event)
        if value is not None and value != CLOSED:
            name = msgspec.json.decode(value, type=str)
            await store.set_value(scope, context_id, slot_of(name), None)


_MEMBERS: Mapping[str, tuple[str, ...]] = {
    "token": ("access_token",),
    "basic": ("username", "password"),
    "api_key": ("api_key",),
}
_OPTIONAL = ("token_type", "scope")
_FORMS = {
    "token": "a token response (RFC 6749): access_token, and token_type, expires_in and scope",
    "basic": "username and password",
    "api_key": "api_key",
}


def credential_in(given: object, kind: Kind) -> dict[str, Any]:
    """Return the relevant members of a posted credential, or of a denial.

    Raises ``CredentialRefused``.
    """
    if isinstance(given, dict) and isinstance(given.get("error"), str) and given["error"]:
        return _texts(given, ("error", "error_description"), kind, required=("error",))
    if not isinstance(given, dict):
        raise CredentialRefused(f"a credential is an object: {_FORMS[kind]}")
    found = _texts(given, (*_MEMBERS[kind], *_OPTIONAL), kind, required=_MEMBERS[kind])
    if kind == "token" and found.get("token_type", "Bearer").lower() != "bearer":
        raise CredentialRefused("token_type must be Bearer: no other kind of token can be used")
    if kind == "basic" and ":" in found["username"]:
        raise CredentialRefused("a username of HTTP Basic has no colon")
    life = given.get("expires_in")
    if isinstance(life, str) and life.isascii() and life.isdigit():  # from a web form
        life = int(life[:12])
    if life is not None:
        if isinstance(life, bool) or not isinstance(life, int | float) or not 0 < life < 10**10:
            raise CredentialRefused("expires_in is a number of seconds above 0")
        found["expires_in"] = life
    return found


def redirect_in(given: object) -> dict[str, Any]:
    """Return the members of an authorization response (RFC 6749 §4.1.2, RFC 9207).

    Raises ``CredentialRefused``.
    """
    assert isinstance(given, dict)
    names = ("code", "iss", "error", "error_description")
    found = _texts(given, names, "token", required=())
    if not (found.get("code") or found.get("error")):
        raise CredentialRefused("an authorization server must redirect with a code or an error")
    return found


def _texts(
    given: Mapping[str, Any], names: tuple[str, ...], kind: Kind, *, required: tuple[str, ...]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in names:
        value = given.get(name)
        if value is None or (value == "" and name not in required):
            if name in required:
                raise CredentialRefused(f"a credential is {_FORMS[kind]}; {name} is missing")
            continue
        if not isinstance(value, str) or len(value) > MAX_CREDENTIAL or not value.isprintable():
            raise CredentialRefused(
                f"{name} is text of up to {MAX_CREDENTIAL:,} printable characters"
            )
        found[name] = value
    if any(not found[name] for name in required if name != "password"):
        raise CredentialRefused(f"a credential is {_FORMS[kind]}, and none of them is empty")
    token = found.get("access_token") or found.get("api_key") or ""
    if " " in token or not token.isascii():
        raise CredentialRefused(
            "a token or a key must be ASCII without spaces, to fit into a header"
        )
    return found


MAX_EXPIRY = timedelta(days=366)

_PURPOSE = "callback"
_EVENTS_SECRET = "signing"


class Callbacks:
    """Makes the callback addresses of one agent, and completes their events."""

    def __init__(self, store: TaskStore, agent: str) -> None:
        self._store = store
        self._agent = agent
        self._signer: TokenSigner | None = None

    async def address(self, base_url: str, key: str, *, tenant: str, expires: timedelta) -> str:
        """Return the address that completes the event ``key``, below the agent's own address.

        Raises ``ValueError`` if the agent has no public address, for an invalid key, and for an
        invalid time.
        """
        check_key(key)
        if not isinstance(expires, timedelta) or not timedelta(0) < expires <= MAX_EXPIRY:
            raise ValueError(
                f"expires is a positive timedelta of up to {MAX_EXPIRY.days} days, not {expires!r}"
            )
        if not base_url:
            raise ValueError(
                "a callback address begins with the public address of the server, which messages "
                "over gRPC and in process do not carry: give it with url=, as in "
                "parley.asgi(agent, url='https://agents.example.com'), or parley serve --url"
            )
        expires_at = (self._store.now() + expires // timedelta(milliseconds=1)) // 1000 + 1
        claims = {"agent": self._agent, "event": key, "tenant": tenant}
        token = (await self._sign()).sign(_PURPOSE, claims, expires_at)
        return f"{base_url}{CALLBACKS}/{token}"

    async def event_of(self, token: str, tenant: str) -> str:
        """Return the key of the event that a token completes, at the address of a tenant.

        An agent's own address accepts the tokens of all its tenants. Raises ``TokenInvalid`` and
        ``TokenExpired``.
        """
        claims = (await self._sign()).read(_PURPOSE, token, self._store.now() / 1000)
        if claims["agent"] != self._agent or (tenant and claims["tenant"] != tenant):
            raise TokenInvalid
        key: str = claims["event"]
        return key

    async def complete(self, key: str, value: bytes) -> None:
        """Complete an event with a value (see ``event_value``). The same value again changes
        nothing.

        Raises ``EventCompleted`` for another value, and ``StoreError``.
        """
        await self._store.complete_event(self._agent, key, value)

    async def _sign(self) -> TokenSigner:
        if self._signer is None:
            self._signer = TokenSigner(await self._store.secret(_EVENTS_SECRET))
        return self._signer
