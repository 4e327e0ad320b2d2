"""The audit of what callers and operators do to a registry's entries."""

from __future__ import annotations

from typing import Any

from parley.model.service import Caller
from parley.registry.index.registry_index import RegistryIndex
from parley.store.protocols.audit import AuditEntry

SYSTEM = Caller(id="registry", issuer="system")
"""Who acts when the registry does so by itself."""


class RegistryAudit:
    """Records acts as lines of the index's chain, before or as they are done."""

    def __init__(self, index: RegistryIndex) -> None:
        self._index = index

    async def record(
        self,
        caller: Caller,
        kind: str,
        subject: str,
        *,
        outcome: str = "done",
        address: str = "",
        **details: Any,
    ) -> None:
        """Append one act; durable when it returns. Raises ``StoreUnavailable``."""
        entry = AuditEntry(
            kind=kind,
            issuer=caller.issuer,
            actor=caller.id,
            client=caller.client,
            address=address,
            subject=subject,
            outcome=outcome,
            details=details,
        )
        await self._index.append_acts([entry])
