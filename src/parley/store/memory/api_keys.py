"""API keys in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from parley.security.api_keys import ApiKeyRecord, checked
from parley.store.api_keys import ApiKeyListeners, check_same, ended
from parley.store.memory.logs import MemoryLogs
from parley.store.protocols.api_keys import ENDED_KEPT, MAX_API_KEYS, ApiKeyChanged, TooManyApiKeys


class MemoryApiKeys(ABC):
    """The part of a memory store that keeps API keys."""

    _shared: MemoryLogs
    _api_key_listeners: ApiKeyListeners

    @abstractmethod
    def _opened(self) -> object:
        """Raise ``StoreUnavailable`` unless the store is open."""

    def listen_api_keys(self, changed: ApiKeyChanged) -> None:
        """Call ``changed`` whenever this store adds or ends an API key."""
        self._api_key_listeners.add(changed)

    async def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store an API key."""
        self._opened()
        checked(record)
        keys = self._shared.api_keys
        if record.id in keys:
            check_same(keys[record.id], record)
            return
        before = self._shared.clock() - ENDED_KEPT
        for each in [*keys.values()]:
            if (ended_at := each.ended_at()) is not None and ended_at < before:
                del keys[each.id]
        if len(keys) >= MAX_API_KEYS:
            raise TooManyApiKeys
        keys[record.id] = record
        self._api_key_listeners.changed(record.id)

    async def api_key(self, id: str) -> ApiKeyRecord | None:
        """Return an API key, ended or not."""
        self._opened()
        return self._shared.api_keys.get(id)

    async def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all API keys, or those of an owner, the oldest first."""
        self._opened()
        found = [key for key in self._shared.api_keys.values() if owner in ("", key.owner)]
        return sorted(found, key=lambda key: (key.created_at, key.id))

    async def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """Have an API key end earlier, and return it."""
        self._opened()
        found = self._shared.api_keys.get(id)
        if found is not None:
            found = self._shared.api_keys[id] = ended(found, expires_at, revoked_at)
            self._api_key_listeners.changed(id)
        return found
