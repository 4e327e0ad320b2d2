"""Who a message is from: ``source`` is a claim, which must match who sends or signs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from parley.envelope.errors import SignatureRequired, SourceMismatch
from parley.envelope.messages import Envelope
from parley.model.errors import FieldViolation
from parley.model.service import ANONYMOUS, Caller

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
