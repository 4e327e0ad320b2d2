"""Contexts: the history and values that outlive a task, and the receipts of messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from parley.model.parts import Message
from parley.store.protocols.scope import Scope

HISTORY_KEPT = 1000
"""How many messages of a context's history are kept; the oldest go first."""


class Receipt(msgspec.Struct, frozen=True):
    """The answer to a message that its sender may repeat (idempotent sends).

    ``digest`` is a hash of the request; the answer is a task and a turn of it, or ``reply``: the
    JSON of a direct message.
    """

    message_id: str
    digest: bytes
    task_id: str = ""
    turn: int = 0
    reply: bytes = b""


class Contexts(Protocol):
    """What a scope has in a context. Another scope's context of the same id is another context.

    Each call is durable when it returns. ``compare_and_set`` is atomic on all replicas.
    """

    async def receipt(self, scope: Scope, message_id: str) -> Receipt | None:
        """Return the receipt of a message."""
        ...

    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        """Store the receipt and the exchange of a direct reply, both or neither.

        Raises ``DuplicateReceipt``.
        """
        ...

    async def history(self, scope: Scope, context_id: str, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages of a context, the oldest first.

        A context keeps its last ``HISTORY_KEPT``.
        """
        ...

    async def get_value(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value that an agent keeps for a context."""
        ...

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Store a value for a context; ``None`` removes it."""
        ...

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Store a value for a context if the current one is ``expected``; return whether it was.

        ``None`` is no value. Of any number of calls at once that expect the same, on all replicas,
        one succeeds (unless they set what they expect). A call that is repeated because its answer
        was lost counts once.
        """
        ...
