"""Check chains of calls (``urn:parley:call-chain:v1``): refuse loops, long chains and late ones.

``agent.remote`` uses ``chain_id`` to add this agent to the path of the calls that it makes.
"""

from __future__ import annotations

import hashlib
import hmac

from parley.extensions.call_chain import CallChain, Chain
from parley.model.errors import UnsupportedOperationError
from parley.model.extensions import CALL_CHAIN
from parley.model.requests import SendMessageRequest
from parley.store.task_store import TaskStore


async def chain_id(store: TaskStore, agent: str) -> str:
    """Return the id of an agent in paths: the same on all replicas, and opaque."""
    secret = await store.secret("call-chain")
    return hmac.new(secret, agent.encode(), hashlib.sha256).hexdigest()[:32]


class ChainCheck:
    """Refuses messages of chains that are too long, are loops, or are past their deadline."""

    def __init__(self, store: TaskStore, agent: str, max_hops: int) -> None:
        self._store = store
        self._agent = agent
        self._max_hops = max_hops
        self._id = ""

    async def admit(self, request: SendMessageRequest) -> Chain | None:
        """Return the chain of a message whose caller activates the extension.

        Raises ``UnsupportedOperationError``, whose metadata names the ``problem``: ``hops``,
        ``loop`` or ``deadline``. Raises ``InvalidParamsError`` for something else than a chain.
        """
        chain = CallChain.of(request)
        if chain is None:
            return None
        if chain.hops > self._max_hops:
            raise _refused(
                "hops",
                f"{chain.hops} agents have called each other before this one, which takes at most "
                f"{self._max_hops}; call it earlier in the chain, or raise its max_hops",
            )
        if chain.path:
            if not self._id:
                self._id = await chain_id(self._store, self._agent)
            if self._id in chain.path:
                raise _refused(
                    "loop",
                    "this agent is in the chain of calls already: it would wait for itself; "
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
