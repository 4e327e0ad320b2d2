"""Secrets: random keys that all replicas of a store share."""

from __future__ import annotations

from typing import Protocol

SECRET_BYTES = 32


class Secrets(Protocol):
    """Keys to sign with. They are never logged and never exported: another store has others."""

    async def secret(self, name: str) -> bytes:
        """Return the secret of a name: ``SECRET_BYTES`` random bytes.

        The first call makes it. Every call returns the same, on all replicas, for ever.
        """
        ...
