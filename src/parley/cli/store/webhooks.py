"""``parley store webhooks``: lists and resumes suspended webhooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output
from parley.cli.store.acts import act, record_act
from parley.cli.store.checks import require_agent, require_current
from parley.store.admin.admin import StoreAdmin
from parley.store.protocols.webhooks import SuspendedWebhook, WebhookFilter


def list_suspended(output: Output, admin: StoreAdmin, which: WebhookFilter) -> None:
    """Report the suspended webhooks and those that wait for their receivers, with the reasons."""
    _require(admin, which)
    found = admin.suspended(which)
    if output.is_json:
        lists = {"webhooks": _documents(found), "waiting": _documents(admin.waiting(which))}
        output.document({"store": admin.name, **lists})
        return
    output.text.field("Store", admin.name)
    output.text.field("Suspended", _count(len(found)) if found else "none")
    _write(output, "Webhook", found)
    if waiting := admin.waiting(which):
        output.text.field("Waiting", _count(len(waiting)))
        _write(output, "Webhook", waiting)


def _write(output: Output, name: str, webhooks: Sequence[SuspendedWebhook]) -> None:
    for each in webhooks:
        tenant = f", tenant {each.tenant}" if each.tenant else ""
        events = f"{each.behind} event{'' if each.behind == 1 else 's'} behind"
        webhook = f"{each.task_id}/{each.id} of {each.agent}{tenant} at {each.server}"
        output.text.field(name, f"{webhook}, {events}: {each.note}")


def resume(output: Output, admin: StoreAdmin, which: WebhookFilter, *, all: bool) -> None:
    """Resume webhooks, and report how many."""
    if all == (which != WebhookFilter()):
        raise UsageFailure(
            "--all is for all of them, without --task, --agent, --tenant and an id"
            if all
            else "say which: an id, --task, --agent, --tenant, or --all for all of them",
            hint="parley store webhooks list shows them",
        )
    _require(admin, which)
    resumed = admin.resume(which)
    details = {"webhooks": len(resumed), "first": [f"{e.task_id}/{e.id}" for e in resumed[:20]]}
    record_act(
        admin,
        act(
            "webhooks.resumed",
            subject=which.task_id,
            agent=which.agent,
            tenant=which.tenant,
            details=details,
        ),
    )
    if output.is_json:
        output.document({"store": admin.name, "resumed": _documents(resumed)})
        return
    output.text.field("Store", admin.name)
    for agent, n in sorted(Counter([each.agent for each in resumed]).items()):
        output.text.field("Resumed", f"{_count(n)} of {agent}")
    if not resumed:
        output.text.field("Resumed", "nothing")


def _require(admin: StoreAdmin, which: WebhookFilter) -> None:
    require_current(admin)
    if which.agent:
        require_agent(admin, which.agent)


def _documents(webhooks: Sequence[SuspendedWebhook]) -> list[dict[str, Any]]:
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
