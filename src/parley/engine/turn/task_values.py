"""Values that a context keeps for one task alone: they go when the task ends, however it ends.

The log names them, so whoever ends the task removes them: also after a crash, and on another
replica.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from parley.store.protocols.contexts import Contexts
from parley.store.protocols.scope import Scope

PREFIX = "value:"
"""Begins the keys of these records, among those of steps; the key of the value follows."""


async def forget_values(
    store: Contexts, scope: Scope, context_id: str, results: Mapping[str, msgspec.Raw]
) -> None:
    """Remove the values that a context keeps for a task, by what the task's log has.

    Raises ``StoreError``.
    """
    for name in results:
        if name.startswith(PREFIX):
            await store.set_value(scope, context_id, name.removeprefix(PREFIX), None)
