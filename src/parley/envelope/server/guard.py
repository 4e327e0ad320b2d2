"""``EnvelopeGuard``: the access control of messages to one agent in the envelope protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, Union

import msgspec

from parley.envelope.declared import KEYS_VARIABLE, EnvelopeSettings
from parley.envelope.messages import (
    Envelope,
    MessageOutdated,
    MessageReplayed,
    MessageSecurity,
    MessageType,
    RoutingStrategy,
    SignatureInvalid,
    SignatureRequired,
    SourceMismatch,
    TargetNotFound,
)
from parley.envelope.signatures import (
    ED25519,
    EnvelopeKey,
    owner_of,
    read_key,
    signed_with,
    verify_signature,
)
from parley.model.bounded import Bounded
from parley.model.errors import (
    FieldViolation,
    OverloadedError,
    TooManyRequestsError,
    UnauthenticatedError,
    an,
)
from parley.model.ids import LONGEST_ID
from parley.model.service import ANONYMOUS, Caller
from parley.model.struct import Timestamp
from parley.security.authorization import Authorization, refusal
from parley.security.egress import Egress
from parley.security.failures import Failures
from parley.security.issuers import IssuerClient, KeysUnavailable
from parley.security.limits.counters import StoredNames
from parley.security.limits.usage import SecurityStore
from parley.security.networks import network_of
from parley.security.outbound import Fetcher, checked_url
from parley.security.signing.canonical import AmbiguousJson, read_object
from parley.security.signing.keys import (
    RELOAD_SECONDS,
    SigningKey,
    SigningKeys,
    decode,
    read_private,
    stamp_of,
)
from parley.server.dispatch import check_caller
from parley.store.protocols.errors import StoreError

_key_log = logging.getLogger("parley.security")

MAX_KEYS = 10_000
MAX_BYTES = 8 * 1024 * 1024

_EDDSA = "EdDSA"

GivenKeys = Union["EnvelopeKeys", str, Path, Iterable[EnvelopeKey | Mapping[str, Any]]]
"""A key file, or a list of keys and JWKs with an owner."""


class EnvelopeKeysInvalid(ValueError):
    """The keys of senders cannot be used. The error quotes nothing of them."""


class _Entries(msgspec.Struct):
    """The loaded keys by owner and id, and the addresses at which owners publish their keys."""

    keys: dict[str, dict[str, EnvelopeKey]] = {}
    published: dict[str, str] = {}

    def add(self, key: EnvelopeKey) -> None:
        """Add a key. Raises ``EnvelopeKeysInvalid`` for a duplicate id of the same owner."""
        own = self.keys.setdefault(key.owner, {})
        if key.id in own:
            raise EnvelopeKeysInvalid(
                f"two keys of {key.owner!r} have the kid {key.id!r}: verifiers take either"
            )
        own[key.id] = key


class EnvelopeKeys:
    """Keys by their owners. A file is read again when it changes.

    A changed file that cannot be used is logged, and the keys of before stay.
    """

    def __init__(self, given: Iterable[EnvelopeKey | Mapping[str, Any]] = ()) -> None:
        self._entries = _entries(given, "keys of EnvelopeBinding")
        self._path: Path | None = None
        self._stamp: object = None
        self._next_look = 0.0
        self._lock = threading.Lock()
        self._fetcher = Fetcher()
        self._now: Callable[[], float] = time.time
        self._sources: dict[str, IssuerClient] = {}

    def __repr__(self) -> str:
        return f"EnvelopeKeys(owners={sorted(self.owners)})"

    @classmethod
    def load(
        cls, given: Any = None, *, environment: Mapping[str, str] | None = None
    ) -> Self | None:
        """Return the keys of a file or a list, else of the file in the environment.

        ``None`` without keys. Raises ``EnvelopeKeysInvalid``.
        """
        if given is None:
            values = os.environ if environment is None else environment
            given = values.get(KEYS_VARIABLE) or None
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, str | Path):
            return cls.from_file(given)
        if isinstance(given, Mapping) or not isinstance(given, Iterable):
            raise EnvelopeKeysInvalid(
                "keys of EnvelopeBinding is the path of a key file, or a list of EnvelopeKey or "
                f"of JWKs with an owner, not {an(type(given).__name__)}"
            )
        return cls(given)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Return the keys of a private file. Raises ``EnvelopeKeysInvalid``."""
        keys = cls()
        keys._path = Path(path)
        keys._stamp = stamp_of(keys._path)
        keys._entries = read_envelope_keys(keys._path)
        keys._next_look = time.monotonic() + RELOAD_SECONDS
        return keys

    def start(self, *, egress: Egress, now: Callable[[], float]) -> None:
        """Set the dependencies for fetching published keys: ``now`` returns seconds since 1970."""
        self._fetcher.egress = egress
        self._now = now

    async def close(self) -> None:
        """Close connections to publishers of keys."""
        sources, self._sources = self._sources, {}
        for source in sources.values():
            await source.close()
        await self._fetcher.close()

    @property
    def owners(self) -> frozenset[str]:
        """Whose keys are here."""
        entries = self._current()
        return frozenset((*entries.keys, *entries.published))

    def owns(self, id: str) -> bool:
        """Return whether somebody with this id has keys."""
        entries = self._current()
        return id in entries.keys or id in entries.published

    async def find(self, owner: str, key_id: str) -> EnvelopeKey | None:
        """Return a key of an owner. Without an id the owner must have only one key.

        Raises ``OverloadedError`` if published keys cannot be fetched now.
        """
        entries = self._current()
        own, url = entries.keys.get(owner, {}), entries.published.get(owner)
        if key_id in own:
            return own[key_id]
        if url is None:
            return next(iter(own.values())) if not key_id and len(own) == 1 else None
        return await self._fetch(owner, url, key_id) if key_id or not own else None

    async def _fetch(self, owner: str, url: str, key_id: str) -> EnvelopeKey | None:
        source = self._sources.get(url)
        if source is None:
            source = IssuerClient(self._fetcher, lambda: self._now(), jwks_url=url)
            self._sources[url] = source
        try:
            found = await source.find(key_id or None, _EDDSA)
        except KeysUnavailable as error:
            _key_log.warning("the keys of %r cannot be fetched from %s: %s", owner, url, error)
            raise OverloadedError(
                "the key of this message cannot be fetched now; send it again",
                retry_after=error.retry_after,
            ) from None
        public = b"" if found is None else decode(found.key.as_dict(private=False)["x"])
        if found is None or len(public) != 32:  # an Ed448 key
            return None
        id = key_id or found.kid or "published"
        return EnvelopeKey(id=id, owner=owner, algorithm="Ed25519", material=public, is_public=True)

    async def reload(self) -> str:
        """Read the file if it has changed. Return what is new, for the log."""
        before, self._next_look = self._entries, 0.0
        after = await asyncio.to_thread(self._current)
        return "" if after is before else f"keys of {', '.join(sorted(after.keys))}"

    def _current(self) -> _Entries:
        """Return the entries; a file that has changed is read again, once in ``RELOAD_SECONDS``."""
        path = self._path
        if path is None or time.monotonic() < self._next_look:
            return self._entries
        if not self._lock.acquire(blocking=False):
            return self._entries
        try:
            self._next_look = time.monotonic() + RELOAD_SECONDS
            if (stamp := stamp_of(path)) != self._stamp:
                self._stamp = stamp
                self._entries = read_envelope_keys(path)
                _key_log.info(
                    "the keys of senders were read again: %s", ", ".join(self._entries.keys)
                )
        except EnvelopeKeysInvalid as error:
            _key_log.error(
                "the changed keys of senders cannot be used; still using the old keys: %s", error
            )
        finally:
            self._lock.release()
        return self._entries


def read_envelope_keys(path: Path) -> _Entries:
    """Return the keys of a file. Raises ``EnvelopeKeysInvalid``."""
    what = f"the key file {path}"
    try:
        content = read_object(read_private(path, limit=MAX_BYTES), limit=MAX_BYTES, what=what)
    except FileNotFoundError:
        raise EnvelopeKeysInvalid(
            f"there is no key file {path}: create it with `parley keys share {path} --owner ID`"
        ) from None
    except OSError as error:
        raise EnvelopeKeysInvalid(f"{what} cannot be read: {error.strerror}") from None
    except (AmbiguousJson, ValueError) as error:
        raise EnvelopeKeysInvalid(str(error)) from None
    keys = content.get("keys")
    if not isinstance(keys, list) or not all(isinstance(key, dict) for key in keys):
        raise EnvelopeKeysInvalid(f'{what} is not a JWK Set: it has no list of "keys"')
    return _entries(keys, what)


def _entries(given: Iterable[Any], what: str) -> _Entries:
    entries = _Entries()
    for number, each in enumerate(given, 1):
        if number > MAX_KEYS:
            raise EnvelopeKeysInvalid(f"{what} has more than {MAX_KEYS} keys")
        try:
            if isinstance(each, EnvelopeKey):
                entries.add(each.public if each.algorithm == ED25519 else each)
            elif not isinstance(each, Mapping):
                raise ValueError("is neither an EnvelopeKey nor a JWK with an owner")
            elif "jwks_uri" in each:
                owner = owner_of(each)
                if owner in entries.published:
                    raise ValueError("is the second address of its owner: one publishes all keys")
                entries.published[owner] = checked_url(each["jwks_uri"], "jwks_uri")
            else:
                entries.add(_verifying(read_key(each)))
        except EnvelopeKeysInvalid:
            raise
        except ValueError as error:
            raise EnvelopeKeysInvalid(f"key {number} of {what}: {error}") from None
    return entries


def _verifying(key: EnvelopeKey) -> EnvelopeKey:
    """Return a key that its owner alone signs with. Raises ``ValueError`` for a private half."""
    if key.algorithm == ED25519 and not key.is_public:
        raise ValueError(
            f"it has the private half of the key of {key.owner!r}, which only {key.owner!r} should "
            'have: leave "d" out, and replace the key if it was sent to somebody'
        )
    return key


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

    ``is_registered`` knows more of them: callers with credentials at this server.
    """

    def __init__(self, is_registered: Callable[[str], Awaitable[bool]] | None = None) -> None:
        self._ids: Bounded[str, None] = Bounded(MOST_KNOWN)
        self._is_registered = is_registered

    def note(self, caller: Caller) -> None:
        """Remember the ids of an authenticated caller."""
        for id in ids_of(caller):
            self._ids[id] = None

    async def has(self, id: str, *, is_bound: bool = False) -> bool:
        """Return whether a caller can prove an id.

        ``is_bound``: that was asked before, so only callers who have proved it since count.
        """
        if is_bound or id in self._ids:
            return id in self._ids
        return self._is_registered is not None and await self._is_registered(id)


def ids_of(caller: Caller) -> tuple[str, ...]:
    """Return the names of an authenticated caller: its id, and its application's id."""
    if not caller.authenticated:
        return ()
    return tuple(dict.fromkeys(filter(None, (caller.id, caller.client))))


async def check_source(
    message: Envelope, sender: MessageSender, known: KnownCallers, *, is_signed: bool
) -> None:
    """Reject a source that does not match the sender.

    A signature proves the source. Raises ``SourceMismatch``.
    """
    named = message.source.agent_id
    own = ids_of(sender.caller)
    if own:
        if named not in own:
            raise mismatch(
                f"the credentials belong to {' or '.join(map(repr, own))}, so source.agentId is "
                "that too",
                agent_id=own[0],
            )
    elif (
        not is_signed
        and named not in sender.proved
        and await known.has(named, is_bound=named == sender.agent_id)
    ):
        raise mismatch(
            "source.agentId is the id of a caller who can prove it: send its credentials, sign "
            "the message, or take another id"
        )
    if sender.agent_id and named != sender.agent_id:
        raise mismatch(
            f"this connection belongs to {sender.agent_id!r}: another source needs its own "
            "connection"
        )


def check_is_signed(
    message: Envelope, sender: MessageSender, *, required: bool, has_keys: bool
) -> None:
    """Reject a message without a required signature. Raises ``SignatureRequired``."""
    if message.security is not None:
        return
    if required:
        raise SignatureRequired("this agent accepts signed messages only: send security")
    if sender.has_signed:
        raise SignatureRequired(
            "earlier messages of this connection were signed, so all of them are: send security"
        )
    if has_keys and not sender.caller.authenticated:
        raise SignatureRequired(
            "source.agentId belongs to an owner of a key: sign the message, send "
            "credentials, or take another id"
        )


def mismatch(description: str, *, agent_id: str = "") -> SourceMismatch:
    """Return the error of a source that does not match the sender.

    ``agent_id`` is the id of the sender's own credentials, which a client may not know otherwise.
    """
    return SourceMismatch(
        description,
        metadata={"agentId": agent_id} if agent_id else None,
        violations=(FieldViolation(_FIELD, description),),
    )


log = logging.getLogger("parley.envelope")


class Nonces:
    """Records nonces in the store, not in memory."""

    def __init__(self, store: SecurityStore) -> None:
        self._names = StoredNames(store)

    async def take(self, owner: str, nonce: str, until: int) -> None:
        """Record a nonce of a signer, whose message is in time until ``until`` (ms).

        Raises ``MessageReplayed`` if it was used before, and ``OverloadedError`` if the store is
        unavailable: then no message is admitted.
        """
        try:
            is_new = await self._names.take("envelope nonce", owner, nonce, until=until)
        except StoreError as error:
            log.warning(
                "signed messages are rejected, because the store cannot record nonces: %s", error
            )
            raise OverloadedError(
                "the server cannot check now that this message is new; sign and send it again",
                retry_after=1,
            ) from error
        if not is_new:
            raise MessageReplayed(
                "security.nonce was used before: sign each sending anew, with a fresh nonce; the "
                "same messageId makes it the same request"
            )


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
        """Return whether there are keys for verification."""
        return self._keys is not None

    def owns(self, id: str) -> bool:
        """Return whether somebody with this id has keys."""
        return self._keys is not None and self._keys.owns(id)

    async def verify(self, message: Envelope, security: MessageSecurity) -> int:
        """Check the time and the signature of a message; return until when (ms) it is in time.

        The key must belong to ``source.agentId``, so no sender can sign for another. Raises
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
        signed_at, now = security.timestamp.milliseconds, self._now()
        if abs(now - signed_at) > self._window:
            raise MessageOutdated(
                f"security.timestamp is {abs(now - signed_at) // 1000} seconds "
                f"{'behind' if signed_at < now else 'ahead of'} the clock of this server, which is "
                f"{Timestamp.from_milliseconds(now)}: it may differ by {self._window // 1000}",
                metadata={"now": str(Timestamp.from_milliseconds(now))},
            )
        return signed_at + self._window

    async def use(self, message: Envelope, security: MessageSecurity, until: int) -> None:
        """Record the nonce of a verified message. Raises ``MessageReplayed``,
        ``OverloadedError``.
        """
        await self._nonces.take(message.source.agent_id, security.nonce, until)


def sign_answer(answer: Envelope, key: SigningKey) -> Envelope:
    """Return an answer with a signature by a key of the server, which it publishes."""
    return signed_with(answer, key.kid, ED25519, key.sign)


_SCHEME = "envelope signature"
_OF_CONNECTIONS = (MessageType.RESPONSE, MessageType.EVENT, MessageType.HEARTBEAT)


class EnvelopeGuard:
    """Admits the messages to one agent, and counts its sockets.

    ``names`` are the ids of the agent, as in ``target.agentId``. ``is_reachable`` checks other
    agents that messages to this address may name. ``failures`` counts rejected signatures, together
    with the server's rejected credentials.
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
    ) -> None:
        self.settings = settings
        self.names = frozenset(names)
        self.is_reachable = is_reachable
        self.authorization = authorization
        self._signed = signed
        self._known = known or KnownCallers()
        self._failures = failures or Failures()
        self._signing_keys = signing_keys
        self._sockets: dict[str, int] = {}

    def sender(self, caller: Caller, address: str) -> MessageSender:
        """Return the sender of one POST. Raises ``A2AError`` for a caller who may send nothing."""
        proved = ids_of(caller)
        if self.authorization is not None:
            caller = self.authorization.own_caller(caller)
        elif caller.granted:
            caller = ANONYMOUS
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
        """Reject a caller whose messages could never be admitted."""
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

    async def admit(self, message: Envelope, sender: MessageSender) -> Caller:
        """Check a message before anything is done with it, and return its caller.

        The caller of a message that only its signature proves is the key's owner. Raises
        ``A2AError``.
        """
        settings, named = self.settings, message.source.agent_id
        check_is_signed(
            message, sender, required=settings.needs_signatures, has_keys=self._signed.owns(named)
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
        # Not before: a message that another sender signed binds no connection.
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
        """Reject a message for another agent. A signed message must name its target.

        Otherwise its receiver could forward it to another agent that knows the key. Answers and
        HEARTBEATs need no target: they apply to their connection only. Other types are never
        forwarded. Raises ``TargetNotFound``.
        """
        kind, target, names = message.message.type, message.target, self.names
        if kind in _OF_CONNECTIONS:
            return
        known = " or ".join(map(repr, sorted(names)))
        if not target.agent_id:
            if is_signed and not target.agent_type:
                raise _not_here(f"a signed message must name its target: give {known}")
            return
        is_request = kind == MessageType.REQUEST
        is_spread = is_request and target.routing_strategy != RoutingStrategy.DIRECT
        if is_spread or target.agent_id.rstrip("/") in names:
            return
        reaches = self.is_reachable if is_request else None
        if reaches is None or not reaches(target.agent_id):
            raise _not_here(
                f"the agent at this address is {known}, and no other one is reached through it: "
                "leave target.agentId out, or send the message to the agent's own address"
            )

    def sign(self, answer: Envelope, request: Envelope | None) -> Envelope:
        """Return an answer as it is sent: signed if the request was, and the server has a key.

        The key is an Ed25519 key among the keys that sign cards; it is published with them.
        """
        if request is None or request.security is None or self._signing_keys is None:
            return answer
        key = next((key for key in self._signing_keys.signers if key.alg == _EDDSA), None)
        return answer if key is None else sign_answer(answer, key)


def _not_here(description: str) -> TargetNotFound:
    return TargetNotFound(description, violations=(FieldViolation("target.agentId", description),))
