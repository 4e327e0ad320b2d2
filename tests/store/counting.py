"""A store that counts the bytes of its query results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parley.store.sqlite.store import SqliteTaskStore


class CountingStore(SqliteTaskStore):
    """Counts the bytes of query results, in ``read``."""

    read = 0

    async def _rows(
        self, name: str, values: Sequence[Any] | Mapping[str, Any]
    ) -> Sequence[Sequence[Any]]:
        rows = await super()._rows(name, values)
        self.read += sum([len(v) for row in rows for v in row if isinstance(v, bytes | str)])
        return rows
