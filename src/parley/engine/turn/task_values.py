"""Values that a context keeps for one task alone: they go when the task ends, however it ends.

The log names them, so whoever ends the task removes them: also after a crash, and on another
replica.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from parley.engine.serialization import read
from parley.store.events import Scope
from parley.store.protocols.tables import Contexts

PREFIX = "value:"
"""Begins the keys of these records, among those of steps; the key of the value follows."""

LISTS = b"true"
"""The value of such a record if the value has ``keys``: those of further values that go too."""


async def forget_values(
    store: Contexts, scope: Scope, context_id: str, results: Mapping[str, msgspec.Raw]
) -> None:
    """Remove the values that a context keeps for a task, by what the task's log has.

    Raises ``StoreError``.
    """
    for name, record in results.items():
        if not name.startswith(PREFIX):
            continue
        key = name.removeprefix(PREFIX)
        if bytes(record) == LISTS:
            found = await store.get_value(scope, context_id, key)
            for each in () if found is None else read(found)["keys"]:
                await store.set_value(scope, context_id, each, None)
        await store.set_value(scope, context_id, key, None)
