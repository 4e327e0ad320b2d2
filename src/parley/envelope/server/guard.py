"""``EnvelopeGuard``: who may say what to one agent in the envelope protocol."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.envelope.codec import members_of
from parley.envelope.declared import EnvelopeSettings
from parley.envelope.errors import (
    MessageOutdated,
    MessageReplayed,
    SignatureInvalid,
    SignatureRequired,
    SourceMismatch,
    TargetNotFound,
)
from parley.envelope.messages import Envelope, MessageSecurity, MessageType, RoutingStrategy
from parley.envelope.server.card import CardTimes
from parley.envelope.server.keys import EnvelopeKeys
from parley.envelope.signatures import ED25519, signed_form, verify_signature
from parley.model.errors import (
    FieldViolation,
    OverloadedError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from parley.model.ids import LONGEST_ID
from parley.model.service import ANONYMOUS, Caller
from parley.model.struct import Timestamp
from parley.security.authorization import Authorization, refusal
from parley.security.failures import Failures
from parley.security.limits.counters import StoredNames
from parley.security.limits.usage import UsageStore
from parley.security.networks import network_of
from parley.security.signing.keys import SigningKey, SigningKeys, encode
from parley.server.request_fields import check_caller
from parley.store.protocols.errors import StoreError

# -- identity ---------------------------------------------------------------------------------
#
# Who a message is from: ``source`` is a claim, which must match who sends or signs it.


SIGNED = "envelope"
"""The issuer of callers whom only a signature proves."""

MOST_KNOWN = 10_000

_FIELD = "source.agentId"


class MessageSender(msgspec.Struct):
    """The other side of one connection, or of one POST.

    ``agent_id`` is the source of its first message that was admitted; ``has_signed``: such a
    message was signed, so the others are too. ``nonce_is_used``: another agent of this process has
    admitted the message, and passes it on. ``proved`` are the ids that its credentials prove to
    other agents of the server: it may name itself so, though they prove nothing to this one.
    """

    caller: Caller = ANONYMOUS
    address: str = ""
    agent_id: str = ""
    has_signed: bool = False
    nonce_is_used: bool = False
    proved: tuple[str, ...] = ()


class KnownCallers:
    """Ids of authenticated callers, of whom the last 10,000 are known here.

    ``is_registered`` knows more of them: those that have credentials with this server.
    """

    def __init__(self, is_registered: Callable[[str], Awaitable[bool]] | None = None) -> None:
        self._ids: dict[str, None] = {}
        self._is_registered = is_registered

    def note(self, caller: Caller) -> None:
        """Remember the ids of an authenticated caller."""
        for id in ids_of(caller):
            self._ids.pop(id, None)
            self._ids[id] = None
        while len(self._ids) > MOST_KNOWN:
            del self._ids[next(iter(self._ids))]

    async def has(self, id: str) -> bool:
        """Return whether an id is that of a caller who can prove it."""
        if id in self._ids:
            return True
        return self._is_registered is not None and await self._is_registered(id)


def ids_of(caller: Caller) -> tuple[str, ...]:
    """Return what an authenticated caller may name itself: its id, and that of its application."""
    if not caller.authenticated:
        return ()
    return tuple(dict.fromkeys(filter(None, (caller.id, caller.client))))


async def check_source(
    message: Envelope, sender: MessageSender, known: KnownCallers, *, is_signed: bool
) -> None:
    """Refuse a source that is not the sender's.

    Whoever signed has proved to be the source. Raises ``SourceMismatch``.
    """
    named = message.source.agent_id
    own = ids_of(sender.caller)
    if own:
        if named not in own:
            raise mismatch(
                f"the credentials are those of {' or '.join(map(repr, own))}, so source.agentId is "
                "that too",
                agent_id=own[0],
            )
    elif (
        not is_signed and named not in (sender.agent_id, *sender.proved) and await known.has(named)
    ):
        raise mismatch(
            "source.agentId is the id of a caller who can prove it: send its credentials, sign "
            "the message, or take another id"
        )
    if sender.agent_id and named != sender.agent_id:
        raise mismatch(
            f"this connection is that of {sender.agent_id!r}: another source needs another one"
        )


def check_is_signed(
    message: Envelope, sender: MessageSender, *, required: bool, has_keys: bool
) -> None:
    """Refuse a message without a signature where it needs one. Raises ``SignatureRequired``."""
    if message.security is not None:
        return
    if required:
        raise SignatureRequired("this agent takes signed messages only: send security")
    if sender.has_signed:
        raise SignatureRequired(
            "earlier messages of this connection were signed, so all of them are: send security"
        )
    if has_keys and not sender.caller.authenticated:
        raise SignatureRequired(
            "source.agentId is that of somebody who has a key: sign the message, send "
            "credentials, or take another id"
        )


def mismatch(description: str, *, agent_id: str = "") -> SourceMismatch:
    """Return the error of a source that is not the sender's.

    ``agent_id`` is what the sender's own credentials are for: a client may not know it otherwise.
    """
    return SourceMismatch(
        description,
        metadata={"agentId": agent_id} if agent_id else None,
        violations=(FieldViolation(_FIELD, description),),
    )


# -- nonces -----------------------------------------------------------------------------------
#
# Nonces of signed messages: each is good once, on all replicas and over restarts.
#
# A nonce is taken before the message is admitted, and forgotten when no message with it would be in
# time any more.


log = logging.getLogger("parley.envelope")


class Nonces:
    """Takes nonces. Nothing is kept in memory."""

    def __init__(self, store: UsageStore) -> None:
        self._names = StoredNames(store)

    async def take(self, owner: str, nonce: str, until: int) -> None:
        """Take a nonce of a signer, whose message is in time until ``until`` (ms).

        Raises ``MessageReplayed`` if it was taken, and ``OverloadedError`` if the store cannot
        tell: then no message is admitted.
        """
        try:
            is_new = await self._names.take("envelope nonce", owner, nonce, until=until)
        except StoreError as error:
            log.warning("signed messages are refused, because the store keeps no nonces: %s", error)
            raise OverloadedError(
                "the server cannot check now that this message is new; sign and send it again",
                retry_after=1,
            ) from error
        if not is_new:
            raise MessageReplayed(
                "security.nonce was used before: sign each sending anew, with a fresh nonce; the "
                "same messageId makes it the same request"
            )


# -- signed messages --------------------------------------------------------------------------
#
# Signatures of messages: by a key of their source, in time, and for the first time.


SHORTEST_NONCE = 8

UNKNOWN_KEY = "security.keyId names no key that the operator of this server has for source.agentId"


class SignedMessages:
    """Verifies messages. ``window`` is how many ms their time may differ from ``now`` (ms)."""

    def __init__(
        self, keys: EnvelopeKeys | None, nonces: Nonces, *, window: int, now: Callable[[], int]
    ) -> None:
        self._keys = keys
        self._nonces = nonces
        self._window = window
        self._now = now

    @property
    def has_keys(self) -> bool:
        """Whether there is anything to verify with."""
        return self._keys is not None

    def owns(self, id: str) -> bool:
        """Return whether somebody with this id has keys."""
        return self._keys is not None and self._keys.owns(id)

    async def verify(self, message: Envelope, security: MessageSecurity) -> int:
        """Check the time and the signature of a message; return until when (ms) it is in time.

        The key is one of ``source.agentId``, so nobody signs for another. Raises
        ``SignatureInvalid``, ``MessageOutdated``, and ``OverloadedError``.
        """
        if self._keys is None:
            raise SignatureInvalid(
                "this server has no keys of senders, so it can verify no signature: send the "
                "message without security"
            )
        if not SHORTEST_NONCE <= len(security.nonce) <= LONGEST_ID:
            raise SignatureInvalid(
                f"security.nonce has {SHORTEST_NONCE} to {LONGEST_ID} characters, fresh for each "
                "message"
            )
        key = await self._keys.find(message.source.agent_id, security.key_id)
        if key is None:
            raise SignatureInvalid(UNKNOWN_KEY)
        verify_signature(message, key)
        return self._in_time(security)

    def _in_time(self, security: MessageSecurity) -> int:
        try:
            signed_at = Timestamp.parse(security.timestamp).milliseconds
        except ValueError as error:
            raise SignatureInvalid(f"security.timestamp: {error}") from None
        now = self._now()
        if abs(now - signed_at) > self._window:
            raise MessageOutdated(
                f"security.timestamp is {abs(now - signed_at) // 1000} seconds "
                f"{'behind' if signed_at < now else 'ahead of'} the clock of this server, which is "
                f"{Timestamp.from_milliseconds(now)}: it may differ by {self._window // 1000}",
                metadata={"now": str(Timestamp.from_milliseconds(now))},
            )
        return signed_at + self._window

    async def use(self, message: Envelope, security: MessageSecurity, until: int) -> None:
        """Take the nonce of a verified message. Raises ``MessageReplayed``, ``OverloadedError``."""
        await self._nonces.take(message.source.agent_id, security.nonce, until)


def answer_key(keys: SigningKeys | None) -> SigningKey | None:
    """Return the key that signs answers: the first of Ed25519 that signs now, if there is one."""
    if keys is None:
        return None
    return next((key for key in keys.signers if key.alg == "EdDSA"), None)


def sign_answer(answer: Envelope, key: SigningKey) -> Envelope:
    """Return an answer with a signature by a key of the server, which it publishes."""
    security = MessageSecurity(
        signature="-",
        timestamp=str(Timestamp.now()),
        nonce=secrets.token_urlsafe(16),
        key_id=key.kid,
        algorithm=ED25519,
    )
    unsigned = replace(answer, security=security, received=None)
    signature = key.sign(signed_form(members_of(unsigned)))
    return replace(unsigned, security=replace(security, signature=encode(signature)))


# -- guard ------------------------------------------------------------------------------------


_SCHEME = "envelope signature"
_OF_CONNECTIONS = (MessageType.RESPONSE, MessageType.EVENT, MessageType.HEARTBEAT)


class EnvelopeGuard:
    """Admits the messages to one agent, and counts its sockets.

    ``names`` are the ids of the agent, as ``target.agentId`` has them. ``is_reachable`` knows of
    other agents that messages to this address may name. ``failures`` counts signatures that were
    refused, with the credentials that the server refused. ``times`` are those of the agent's card.
    """

    def __init__(
        self,
        settings: EnvelopeSettings,
        *,
        names: Collection[str],
        signed: SignedMessages,
        authorization: Authorization | None = None,
        known: KnownCallers | None = None,
        failures: Failures | None = None,
        signing_keys: SigningKeys | None = None,
        is_reachable: Callable[[str], bool] | None = None,
        times: CardTimes | None = None,
    ) -> None:
        self.times: CardTimes | None = times
        self.settings = settings
        self.names = frozenset(names)
        self.is_reachable = is_reachable
        self.authorization = authorization
        self._signed = signed
        self._known = known or KnownCallers()
        self._failures = failures or Failures()
        self._signing_keys = signing_keys
        self._sockets: dict[str, int] = {}

    # -- connections ---------------------------------------------------------------------------

    def sender(self, caller: Caller, address: str) -> MessageSender:
        """Return the sender of one POST. Raises ``A2AError`` for one who may send nothing."""
        proved = ids_of(caller)
        caller = self._own_caller(caller)
        self._check_may_connect(caller)
        self._known.note(caller)
        return MessageSender(caller=caller, address=address, proved=proved)

    @contextmanager
    def open_socket(self, caller: Caller, address: str) -> Iterator[MessageSender]:
        """Have a socket open while the context lasts; it gives the sender of its messages.

        Callers without proof of who they are count by their address. Raises ``A2AError`` for one
        who may send nothing, and ``TooManyRequestsError`` for one socket too many.
        """
        sender = self.sender(caller, address)
        caller = sender.caller
        key = caller.owner if caller.authenticated else f"@{network_of(address)}"
        count, most = self._sockets.get(key, 0), self.settings.concurrent_connections
        if count >= most:
            raise TooManyRequestsError(
                f"{count} WebSockets are open for this caller, which is as many as the agent "
                "allows: close another one first",
                retry_after=1,
                metadata={"limit": f"{most} connections", "policy": "envelope-connections"},
            )
        self._sockets[key] = count + 1
        try:
            yield sender
        finally:
            self._sockets[key] -= 1
            if not self._sockets[key]:
                del self._sockets[key]

    def _check_may_connect(self, caller: Caller) -> None:
        """Refuse a caller whom nothing that it can send would let in."""
        check_caller(caller)
        rights = self.authorization
        if rights is None:
            return
        required = rights.security
        ways = (required, *rights.operations.values())
        is_let_in = any(each is None or each.is_open or each.is_met(caller) for each in ways)
        if required is not None and not is_let_in:
            raise refusal(required, caller, "this agent")
        if caller.authenticated or not self._signed.has_keys:
            rights.check_identity(caller)

    def _own_caller(self, caller: Caller) -> Caller:
        if self.authorization is not None:
            return self.authorization.own_caller(caller)
        return ANONYMOUS if caller.granted else caller

    # -- messages ------------------------------------------------------------------------------

    async def admit(self, message: Envelope, sender: MessageSender) -> Caller:
        """Check a message before anything is done with it, and return its caller.

        The caller of a message that only its signature proves is the key's owner. Raises
        ``A2AError``.
        """
        settings, named = self.settings, message.source.agent_id
        check_is_signed(
            message,
            sender,
            required=settings.needs_signatures,
            has_keys=self._signed.owns(named) and named != sender.agent_id,
        )
        caller, security, until = sender.caller, message.security, 0
        if security is not None:
            until = await self._verified(message, sender)
        await check_source(message, sender, self._known, is_signed=security is not None)
        self._check_target(message, is_signed=security is not None)
        if security is not None and not caller.authenticated:
            caller = Caller(id=named, authenticated=True, issuer=SIGNED)
        if self.authorization is not None:
            self.authorization.check_identity(caller)
        if security is not None:
            if not sender.nonce_is_used:
                await self._signed.use(message, security, until)
            sender.has_signed = True
        # Not before: whoever sends what another signed has the connection of nobody.
        sender.agent_id = named
        return caller

    async def _verified(self, message: Envelope, sender: MessageSender) -> int:
        assert message.security is not None
        scope: dict[str, Any] = {"client": (sender.address, 0), "headers": ()}
        claims = [(_SCHEME, message.source.agent_id)]
        if self._failures.any_recent:
            self._failures.check(scope, claims)
        try:
            return await self._signed.verify(message, message.security)
        except UnauthenticatedError as error:
            self._failures.note(scope, claims, scheme=_SCHEME, reason=error.reason.lower())
            raise

    def _check_target(self, message: Envelope, *, is_signed: bool) -> None:
        """Refuse a message for another agent. A signed one names its target.

        Else whoever got it could pass it on to another agent that knows the key. Answers and
        HEARTBEATs need none: they count only on their connection. Other types are never passed on.
        Raises ``TargetNotFound``.
        """
        kind, target = message.message.type, message.target
        if kind in _OF_CONNECTIONS:
            return
        if not target.agent_id:
            if is_signed and not target.agent_type:
                raise _not_here(
                    "a signed message says for whom it is: give "
                    f"{' or '.join(map(repr, sorted(self.names)))}"
                )
            return
        is_request = kind == MessageType.REQUEST
        is_spread = is_request and target.routing_strategy != RoutingStrategy.DIRECT
        if is_spread or target.agent_id.rstrip("/") in self.names:
            return
        if not (
            is_request and self.is_reachable is not None and self.is_reachable(target.agent_id)
        ):
            raise _not_here(
                f"the agent at this address is {' or '.join(map(repr, sorted(self.names)))}, and "
                "no other one is reached through it: leave target.agentId out, or send the message "
                "to the agent's own address"
            )

    # -- answers -------------------------------------------------------------------------------

    def sign(self, answer: Envelope, request: Envelope | None) -> Envelope:
        """Return an answer as it is sent: signed if the request was, and the server has a key.

        The key is one of Ed25519 among those that sign cards; it is published with them.
        """
        if request is None or request.security is None:
            return answer
        key = answer_key(self._signing_keys)
        return answer if key is None else sign_answer(answer, key)


def _not_here(description: str) -> TargetNotFound:
    return TargetNotFound(description, violations=(FieldViolation("target.agentId", description),))
