"""Names that are each taken once, by all replicas together and over restarts.

A name is an amount of one in the store, where limits of all replicas are counted too: exact,
durable before ``take`` returns, and removed when it no longer counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from parley.model.errors import OverloadedError
from parley.server.limits.counters import PRUNE_MS, short_key
from parley.store.protocols.errors import StoreError
from parley.store.protocols.tables import QuotaAsk, QuotaGrant

SLACK_MS = 60_000
"""How much longer a name is kept than needed: the clocks of replicas may differ."""


class OnceStore(Protocol):
    """What names need of a store."""

    def now(self) -> int:
        """Return the time in ms."""
        ...

    async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Take from amounts."""
        ...

    async def prune_usage(self, before_day: int, now: int) -> None:
        """Remove what no longer counts."""
        ...


class StoredNames:
    """Takes names in a store. Nothing is kept in memory."""

    def __init__(self, store: OnceStore) -> None:
        self._store = store
        self._pruned_at = store.now()

    async def take(self, *names: str, until: int) -> bool:
        """Take a name, and return whether it was free. It is taken until a time (ms).

        Raises ``StoreError``.
        """
        ask = QuotaAsk(
            key=short_key(*names), slot=0, oldest=0, amount=1, wanted=1, ends_at=until + SLACK_MS
        )
        granted = await self._store.take_quotas([ask])
        now = self._store.now()
        if now - self._pruned_at > PRUNE_MS:
            self._pruned_at = now
            with suppress(StoreError):  # the name is taken; others remove what is over
                await self._store.prune_usage(0, now)
        return bool(granted[0].given)


class AgentNames:
    """Names of one agent and one extension, for ``CallContext.once``."""

    def __init__(self, names: StoredNames, agent: str) -> None:
        self._names = names
        self._agent = agent

    async def take(self, extension: str, name: str, until: int) -> bool:
        """Take a name: see ``Once``. Raises ``OverloadedError`` while the store cannot tell."""
        try:
            return await self._names.take("once", self._agent, extension, name, until=until)
        except StoreError as error:
            raise OverloadedError(
                "the server cannot check now that this message is new; send it again", retry_after=1
            ) from error
