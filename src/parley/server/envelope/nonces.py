"""Nonces of signed messages: each is good once, on all replicas and over restarts.

A nonce is an amount of one that a message takes in the store, where limits of all replicas are
counted too: exact, durable before the message is admitted, and removed when no message with it
would be in time any more.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from parley.model.errors import OverloadedError
from parley.server.limits.counters import PRUNE_MS, short_key
from parley.store.protocols.errors import StoreError
from parley.store.protocols.usage import QuotaAsk, QuotaGrant
from parley.wire.envelope.errors import MessageReplayed

log = logging.getLogger("parley.envelope")

SLACK_MS = 60_000
"""How much longer a nonce is kept than needed: the clocks of replicas may differ."""


class NonceStore(Protocol):
    """What nonces need of a store."""

    def now(self) -> int:
        """Return the time in ms."""
        ...

    async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Take from amounts."""
        ...

    async def prune_usage(self, before_day: int, now: int) -> None:
        """Remove what no longer counts."""
        ...


class Nonces:
    """Takes nonces. Nothing is kept in memory."""

    def __init__(self, store: NonceStore) -> None:
        self._store = store
        self._pruned_at = store.now()

    async def take(self, owner: str, nonce: str, until: int) -> None:
        """Take a nonce of a signer, whose message is in time until ``until`` (ms).

        Raises ``MessageReplayed`` if it was taken, and ``OverloadedError`` if the store cannot
        tell: then no message is admitted.
        """
        ask = QuotaAsk(
            key=short_key("envelope nonce", owner, nonce),
            slot=0,
            oldest=0,
            amount=1,
            wanted=1,
            ends_at=until + SLACK_MS,
        )
        try:
            granted = await self._store.take_quotas([ask])
            await self._prune()
        except StoreError as error:
            log.warning("signed messages are refused, because the store keeps no nonces: %s", error)
            raise OverloadedError(
                "the server cannot check now that this message is new; sign and send it again",
                retry_after=1,
            ) from error
        if not granted[0].given:
            raise MessageReplayed(
                "security.nonce was used before: sign each sending anew, with a fresh nonce; the "
                "same messageId makes it the same request"
            )

    async def _prune(self) -> None:
        now = self._store.now()
        if now - self._pruned_at > PRUNE_MS:
            self._pruned_at = now
            await self._store.prune_usage(0, now)
