"""``EnvelopeGuard``: who may say what to one agent in the envelope protocol."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from parley.envelope.declared import EnvelopeSettings
from parley.envelope.errors import TargetNotFound
from parley.envelope.messages import Envelope, MessageType, RoutingStrategy
from parley.envelope.server.card import CardTimes
from parley.envelope.server.identity import (
    SIGNED,
    KnownCallers,
    MessageSender,
    check_is_signed,
    check_source,
    ids_of,
)
from parley.envelope.server.signed_messages import SignedMessages, answer_key, sign_answer
from parley.model.errors import FieldViolation, TooManyRequestsError, UnauthenticatedError
from parley.model.service import ANONYMOUS, Caller
from parley.security.authorization import Authorization, refusal
from parley.security.credentials.client_address import network_of
from parley.security.failures import Failures
from parley.security.signing.keys import SigningKeys
from parley.server.ids import check_caller

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
