"""The stored form of a turn's caller, and the chain of calls that led to the turn.

A chain (``urn:parley:call-chain:v1``) is rejected if it is a loop, is too long or is past its
deadline. ``agent.remote`` uses ``chain_id`` to add this agent to the path of its calls.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from parley.extensions.call_chain import CallChain, Chain
from parley.model.errors import UnsupportedOperationError
from parley.model.extensions import CALL_CHAIN
from parley.model.operations import SendMessageRequest
from parley.model.service import ANONYMOUS, Caller, caller_of
from parley.store.events import StoredCaller
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.engine")

CLAIM_BYTES = 8192
"""The limit in bytes of all stored claims of a caller as JSON."""


def kept(caller: Caller, names: Collection[str]) -> Caller:
    """Return a caller with only the named claims, in the form in which they are read later.

    A claim that is not JSON or is too long is dropped with a warning. Grants are reduced to their
    scopes.
    """
    if caller.granted:
        caller = replace(caller, granted={})
    if not caller.claims:
        return caller
    claims: dict[str, object] = {}
    bytes_left = CLAIM_BYTES
    for name in names:
        if name not in caller.claims:
            continue
        try:
            value = msgspec.json.encode(caller.claims[name])
            claim = msgspec.json.decode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            log.warning("the claim %r of a caller is dropped: it has no JSON form", name)
            continue
        size = len(name.encode()) + len(value)
        if size > bytes_left:
            log.warning(
                "the claim %r of a caller is dropped: all claims have %d bytes as JSON at most",
                name,
                CLAIM_BYTES,
            )
            continue
        bytes_left -= size
        claims[name] = claim
    return replace(caller, claims=claims)


def record_of(caller: Caller) -> StoredCaller | None:
    """Return the record of a caller, ``None`` for an anonymous one."""
    if caller == ANONYMOUS:
        return None
    return StoredCaller(
        id=caller.id,
        issuer=caller.issuer,
        authenticated=caller.authenticated,
        claims=caller.claims,
        client=caller.client,
        actors=caller.actors,
        scopes=tuple(sorted(caller.scopes)),
    )


def caller_in(record: StoredCaller | None, owner: str) -> Caller:
    """Return the caller in a record of a task that belongs to ``owner``.

    Without a record the caller is the owner, unless that is a group. If an operator has assigned
    the caller's tasks to an issuer since then, the caller gets that issuer.
    """
    task_owner = caller_of(owner)
    if record is None:
        return task_owner
    issuer = record.issuer
    same = (record.id, record.authenticated) == (task_owner.id, task_owner.authenticated)
    if not issuer and same:
        issuer = task_owner.issuer
    return Caller(
        id=record.id,
        issuer=issuer,
        authenticated=record.authenticated,
        claims=record.claims,
        client=record.client,
        actors=record.actors,
        scopes=frozenset(record.scopes),
    )


async def chain_id(store: TaskStore, agent: str) -> str:
    """Return the opaque id of an agent in paths, which is the same on all replicas."""
    secret = await store.secret("call-chain")
    return hmac.new(secret, agent.encode(), hashlib.sha256).hexdigest()[:32]


class ChainCheck:
    """Rejects messages of chains that are too long, are loops, or are past their deadline."""

    def __init__(self, store: TaskStore, agent: str, max_hops: int) -> None:
        self._store = store
        self._agent = agent
        self._max_hops = max_hops
        self._id = ""

    async def admit(self, request: SendMessageRequest) -> Chain | None:
        """Return the chain of a message whose caller activates the extension.

        Raises ``UnsupportedOperationError``, with the ``problem`` in its metadata: ``hops``,
        ``loop`` or ``deadline``. Raises ``InvalidParamsError`` for an invalid chain.
        """
        chain = CallChain.of(request)
        if chain is None:
            return None
        if chain.hops > self._max_hops:
            raise _refused(
                "hops",
                f"{chain.hops} agents have called each other before this one, which allows at most "
                f"{self._max_hops}; call it earlier in the chain, or raise its max_hops",
            )
        if chain.path:
            if not self._id:
                self._id = await chain_id(self._store, self._agent)
            if self._id in chain.path:
                raise _refused(
                    "loop",
                    "this agent is already in the chain of calls: it would wait for itself; "
                    "let it answer, or call another agent",
                )
        if chain.deadline is not None and chain.deadline.milliseconds <= self._store.now():
            raise _refused(
                "deadline",
                f"the deadline of the chain of calls has passed ({chain.deadline}); "
                "send the message earlier, or with a later deadline",
            )
        return chain


def _refused(problem: str, message: str) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        message, metadata={"extension": CALL_CHAIN, "problem": problem}
    )
