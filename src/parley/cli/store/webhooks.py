"""Webhooks that are suspended: which there are, and having them told again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.store.status import require_agent, require_current
from parley.store.admin.admin import StoreAdmin, Suspended, Which


def list_suspended(output: Output, upkeep: StoreAdmin, which: Which) -> None:
    """Say which webhooks are suspended, and why."""
    _require(upkeep, which)
    found = upkeep.suspended(which)
    if output.is_json:
        output.document({"store": upkeep.name, "webhooks": _documents(found)})
        return
    output.text.field("Store", upkeep.name)
    output.text.field("Suspended", _count(len(found)) if found else "none")
    for each in found:
        tenant = f", tenant {each.tenant}" if each.tenant else ""
        events = f"{each.behind} event{'' if each.behind == 1 else 's'} behind"
        place = f"{each.task_id}/{each.id} of {each.agent}{tenant} at {each.server}"
        output.text.field("Webhook", f"{place}, {events}: {each.note}")


def resume(output: Output, upkeep: StoreAdmin, which: Which, *, all: bool) -> None:
    """Have webhooks told again, and say how many."""
    if all == (which != Which()):
        raise UsageFailure(
            "--all is for all of them, without --task, --agent, --tenant and an id"
            if all
            else "say which: an id, --task, --agent, --tenant, or --all for all of them",
            hint="parley store webhooks list shows them",
        )
    _require(upkeep, which)
    resumed = upkeep.resume(which)
    if output.is_json:
        output.document({"store": upkeep.name, "resumed": _documents(resumed)})
        return
    output.text.field("Store", upkeep.name)
    for agent, n in sorted(Counter([each.agent for each in resumed]).items()):
        output.text.field("Resumed", f"{_count(n)} of {agent}")
    if not resumed:
        output.text.field("Resumed", "nothing")


def _require(upkeep: StoreAdmin, which: Which) -> None:
    require_current(upkeep)
    if which.agent:
        require_agent(upkeep, which.agent)


def _documents(webhooks: Sequence[Suspended]) -> list[dict[str, Any]]:
    return [
        {
            "agent": each.agent,
            "tenant": each.tenant,
            "owner": each.owner,
            "task": each.task_id,
            "id": each.id,
            "server": each.server,
            "eventsBehind": each.behind,
            "note": each.note,
        }
        for each in webhooks
    ]


def _count(n: int) -> str:
    return f"{n} webhook{'' if n == 1 else 's'}"
