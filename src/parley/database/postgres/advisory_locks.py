"""Advisory locks of PostgreSQL: for what one process at a time does to a schema."""

from __future__ import annotations

from hashlib import blake2b

from parley.database.postgres.connection import Address


def advisory_lock_key(address: Address, purpose: str) -> int:
    """Return the key of an advisory lock that all users of the schema share."""
    name = f"parley {purpose} {address.schema}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big", signed=True)
