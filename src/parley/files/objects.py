"""The protocol of an object store: named bytes, written whole. See ``disk`` and ``s3``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import NamedTuple, Protocol

PAGE = 1000
"""The most entries of one listing."""

READ_BYTES = 256 * 1024
"""The most bytes that ``read`` yields at once."""


class ObjectEntry(NamedTuple):
    """An object in a listing."""

    key: str
    size: int


class ObjectStore(Protocol):
    """Stores bytes under keys: segments of ``[a-z0-9.-]`` with slashes between them.

    - Atomic: an object is there whole, or not at all.
    - Durable: an object that was acknowledged survives a crash.
    - Consistent: reads and listings see every write that was acknowledged before.
    - All methods raise ``FilesUnavailable`` when the store cannot work.
    """

    @property
    def is_shared(self) -> bool:
        """Whether replicas on other machines use the same objects."""
        ...

    async def open(self) -> None:
        """Make the store ready, and check that it can be used."""
        ...

    async def close(self) -> None:
        """Release what the store holds. Idempotent."""
        ...

    async def put(self, key: str, data: bytes | bytearray) -> None:
        """Write an object, in place of one of the same key."""
        ...

    async def create(self, key: str, data: bytes | bytearray) -> bool:
        """Write an object unless there is one with this key; return whether it was written.

        Of several at once, one writes.
        """
        ...

    async def get(self, key: str) -> bytes | None:
        """Return a small object, ``None`` if there is none."""
        ...

    def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes from ``start`` up to ``end`` of an object, in pieces of ``READ_BYTES``.

        Raises ``NoSuchFile`` when the object is not there, or is shorter.
        """
        ...

    async def list(self, folder: str, limit: int = PAGE, after: str = "") -> Sequence[ObjectEntry]:
        """Return the first objects below a folder, at any depth, in the order of their keys.

        ``after`` is a key: the listing begins with the next one. The cost is that of the ``limit``,
        not of all that is below the folder.
        """
        ...

    async def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is not there is ignored."""
        ...
