"""API keys as rows of a store, and who hears of their changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict, replace

from parley.security.api_keys import ApiKeyRecord
from parley.store.protocols.api_keys import ApiKeyChanged, DuplicateApiKey


class ApiKeyListeners:
    """Those who hear of the keys that this process adds or ends."""

    def __init__(self) -> None:
        self._listeners: list[ApiKeyChanged] = []

    def add(self, changed: ApiKeyChanged) -> None:
        """Call ``changed`` from now on."""
        self._listeners.append(changed)

    def changed(self, id: str) -> None:
        """Tell all that a key changed."""
        for listener in self._listeners:
            listener(id)


def row_of(record: ApiKeyRecord) -> dict[str, Any]:
    """Return a key as the columns of a table."""
    return asdict(record) | {"scopes": " ".join(record.scopes)}


def record_of(row: Sequence[Any]) -> ApiKeyRecord:
    """Return the key in a row."""
    id, digest, owner, label, scopes, created_at, expires_at, revoked_at = row
    return ApiKeyRecord(
        id=id,
        digest=digest,
        owner=owner,
        label=label,
        scopes=tuple(scopes.split()),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
    )


def ended(record: ApiKeyRecord, expires_at: int | None, revoked_at: int | None) -> ApiKeyRecord:
    """Return a key with an earlier end: times that it has are never put off."""
    return replace(
        record,
        expires_at=_earlier(record.expires_at, expires_at),
        revoked_at=_earlier(record.revoked_at, revoked_at),
    )


def check_same(found: ApiKeyRecord, record: ApiKeyRecord) -> None:
    """Raise ``DuplicateApiKey`` if a store has another key with the same id."""
    if found.digest != record.digest:
        raise DuplicateApiKey(record.id)


def _earlier(first: int | None, second: int | None) -> int | None:
    return min([at for at in (first, second) if at is not None], default=None)
