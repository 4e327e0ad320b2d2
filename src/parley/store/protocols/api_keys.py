"""API keys: what callers prove who they are with. Only hashes of them are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from parley.security.api_keys import ApiKeyRecord
from parley.store.protocols.errors import StoreError

MAX_API_KEYS = 10_000
"""How many keys a store has at most, ended ones among them."""

ENDED_KEPT = 30 * 24 * 60 * 60 * 1000
"""How long (ms) keys that were revoked or have expired are kept, to be listed."""

ApiKeyChanged = Callable[[str], None]
"""Called on the event loop: this process added or ended the key with this id."""


class TooManyApiKeys(StoreError):
    """The store has as many keys as it may."""

    def __init__(self) -> None:
        super().__init__(
            f"the store has {MAX_API_KEYS} API keys, and no more fit: revoke some; revoked and "
            f"expired ones go {ENDED_KEPT // 86_400_000} days later"
        )


class DuplicateApiKey(StoreError):
    """The store has another key with the same id."""

    def __init__(self, id: str) -> None:
        super().__init__(f"the store has another API key with the id {id}: make a new one")


class ApiKeys(Protocol):
    """API keys by id. They are never exported: another store has other ones.

    Each call is durable when it returns, and seen by all replicas from then on.
    """

    def listen_api_keys(self, changed: ApiKeyChanged) -> None:
        """Call ``changed`` whenever this process adds or ends a key, for operators too.

        What other processes do has to be looked up.
        """
        ...

    async def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store a key. A call that is repeated because its answer was lost counts once.

        Keys that ended ``ENDED_KEPT`` ago are removed. Raises ``TooManyApiKeys``,
        ``DuplicateApiKey``, and ``ValueError`` for what cannot be stored.
        """
        ...

    async def api_key(self, id: str) -> ApiKeyRecord | None:
        """Return a key, ended or not."""
        ...

    async def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all keys, or those of an owner, the oldest first."""
        ...

    async def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """Have a key end at a time (ms), unless it ends earlier; return it as it is then.

        Returns ``None`` if there is no such key.
        """
        ...
