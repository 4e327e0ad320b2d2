"""The ``--issuer`` option of ``store migrate``: its owners, and its report."""

from __future__ import annotations

from parley.cli.output.failures import UsageFailure
from parley.model.ids import RIGHT_NAME, may_be_name
from parley.store.admin.admin import Owned, OwnerAssignment

NOTHING = Owned(tasks=0, contexts=0, receipts=0)


def owners_of(issuer: str, *, agent: str, tenant: str) -> OwnerAssignment | None:
    """Return the owners to assign to an issuer, if any. Raises ``UsageFailure``."""
    if not issuer:
        for option, value in (("--agent", agent), ("--tenant", tenant)):
            if value:
                raise UsageFailure(
                    f"{option} is about --issuer: a schema is brought up to date for everybody"
                )
        return None
    if not may_be_name(issuer):
        raise UsageFailure(f"--issuer: an issuer has {RIGHT_NAME}")
    return OwnerAssignment(issuer=issuer, agent=agent, tenant=tenant)


def format_owned(owned: Owned) -> str:
    """Return the counts in words: 2 tasks, 1 context, 0 receipts."""
    parts = (("task", owned.tasks), ("context", owned.contexts), ("receipt", owned.receipts))
    return ", ".join([f"{n} {what}{'' if n == 1 else 's'}" for what, n in parts])
