"""What callers have in contexts, in memory: receipts, histories and values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from parley.model.parts import Message
from parley.model.struct import decode, encode
from parley.store.memory.logs import MemoryLogs
from parley.store.protocols.contexts import Receipt
from parley.store.protocols.errors import DuplicateReceipt
from parley.store.protocols.scope import Scope


class MemoryContexts(ABC):
    """The part of a memory store that keeps contexts."""

    _shared: MemoryLogs

    @abstractmethod
    def _opened(self) -> object:
        """Raise ``StoreUnavailable`` unless the store is open."""

    async def receipt(self, scope: Scope, message_id: str) -> Receipt | None:
        """Return the receipt of a message."""
        self._opened()
        return self._shared.receipts.get((scope, message_id))

    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        """Store the receipt and the exchange of a direct reply, both or neither."""
        self._opened()
        messages = [encode(message) for message in exchange]
        self._keep(scope, context_id, (receipt,) if receipt else (), messages, self._shared.clock())

    def _keep(
        self,
        scope: Scope,
        context_id: str,
        receipts: Sequence[Receipt],
        exchange: Sequence[bytes],
        at: int,
    ) -> None:
        names = [receipt.message_id for receipt in receipts]
        for i, name in enumerate(names):
            if (scope, name) in self._shared.receipts or name in names[:i]:
                raise DuplicateReceipt(name)
        for receipt in receipts:
            self._shared.add_receipt(scope, receipt, at)
        if exchange:
            self._shared.touch_context(scope, context_id, at).history.extend(exchange)

    async def history(self, scope: Scope, context_id: str, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages of a context, the oldest first."""
        self._opened()
        context = self._shared.contexts.get((scope, context_id))
        kept = tuple(context.history) if context else ()
        return [decode(message, Message) for message in kept[max(0, len(kept) - limit) :]]

    async def get_value(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value that an agent keeps for a context."""
        self._opened()
        context = self._shared.contexts.get((scope, context_id))
        return context.values.get(key) if context else None

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Store a value for a context; ``None`` removes it."""
        self._opened()
        context = self._shared.touch_context(scope, context_id, self._shared.clock())
        if value is None:
            context.values.pop(key, None)
        else:
            context.values[key] = value

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Store a value for a context if the current one is ``expected``."""
        # Neither call yields to the event loop, so the two are atomic.
        if await self.get_value(scope, context_id, key) != expected:
            return False
        await self.set_value(scope, context_id, key, value)
        return True
