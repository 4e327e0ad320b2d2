"""The operator's view of tasks: those of all callers, and one with its timeline."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output, print_line
from parley.cli.output.text import cell, format_age, one_line
from parley.cli.store.acts import require_current
from parley.cli.store.timeline import Moment, Timeline
from parley.store.admin.admin import (
    MOST_NAMED,
    FoundTask,
    StoreAdmin,
    TaskFilter,
    TaskWebhook,
    caller_name,
)
from parley.store.protocols.tables import NEVER
from parley.store.protocols.webhooks import PushState

PAGE_SIZE = 50
LEAST_PREFIX = 8
"""The least number of characters of a task's id that name it."""

_REFERENCE = re.compile(r"(.{16})-[0-9a-f]{4}")
_ROW = (16, 7, 14, 14, 20, 3)
_WIDTH = 80
_INDENT = 47
_SPANS = ("took", "after", "waited")


def list_tasks(output: Output, admin: StoreAdmin, which: TaskFilter, size: int) -> str:
    """Show a page of tasks of all callers. Return the token of the next page, empty for none."""
    require_current(admin)
    found, now = admin.tasks(which, size + 1), admin.now()
    page, last = found[:size], found[size - 1 : size]
    token = f"{last[0].changed}:{last[0].task_id}" if len(found) > size else ""
    if output.is_json:
        tasks = [_document(task) for task in page]
        output.document({"store": admin.name, "tasks": tasks, "nextPageToken": token})
        return token
    print_line(_row("TASK", "CHANGED", "STATE", "SKILL", "CALLER", "TRY"))
    for task in page:
        age = format_age(now - task.changed)
        skill, caller = task.skill or task.agent, caller_name(task.owner)
        print_line(_row(task.task_id[:16], age, _state(task), skill, caller, str(task.attempt)))
    return token


def read_token(token: str) -> tuple[int, str]:
    """Return the position in a page's token. Raises ``UsageFailure``."""
    if not token:
        return NEVER, ""
    at, _, task_id = token.partition(":")
    if not at.isdecimal() or len(at) > 18 or not task_id:
        raise UsageFailure(f"--page-token: {token!r} is not a token of a page of --all")
    return int(at), task_id


def show_task(output: Output, admin: StoreAdmin, name: str, *, contents: bool) -> None:
    """Show a task with its timeline. ``name`` is its id, the beginning of its id, or a reference.

    Raises ``CommandFailure`` if there is no such task, ``UsageFailure`` for an ambiguous name.
    """
    require_current(admin)
    match = _REFERENCE.fullmatch(name)
    prefix = match[1] if match else name
    if len(prefix) < LEAST_PREFIX:
        raise UsageFailure(f"{name!r} is too short: give {LEAST_PREFIX} characters or more")
    found = [(task, _read(admin, task, contents)) for task in admin.tasks_named(prefix)]
    exact = [each for each in found if name in (each[0].task_id, each[1].reference)]
    if not found:
        raise CommandFailure(
            "PARLEY_ERR_TASK",
            f"the store {admin.name} has no task with the id or the reference {name!r}",
            hint="a reference without a dash is of a request without a task: the server's log has "
            "it; parley task list --all shows the tasks",
        )
    if len(found) > 1 and len(exact) != 1:
        ids = ", ".join([task.task_id for task, _ in found])
        more = " and more" if len(found) == MOST_NAMED else ""
        raise UsageFailure(f"{name!r} is of several tasks: {ids}{more}")
    task, line = (exact or found)[0]
    webhooks = admin.webhooks_of(task)
    moments = sorted([*line.moments, *_deliveries(webhooks)], key=lambda moment: moment.at)
    if output.is_json:
        began = moments[0].at if moments else task.changed
        document = _document(task) | {
            "reference": line.reference,
            "timeline": [
                {"at": _time(each.at), "offsetMs": each.at - began, "event": each.event}
                | {k: _time(v) if k == "until" else v for k, v in each.details.items()}
                for each in moments
            ],
            "webhooks": [msgspec.to_builtins(_webhook(each, task)) for each in webhooks],
        }
        output.document(document)
        return
    _print(output, admin, task, moments, line.reference)
    for webhook in webhooks:
        state = _webhook(webhook, task)
        note = f": {state['note']}" if state["note"] else ""
        output.text.field(
            f"Webhook {webhook.id}",
            f"{webhook.server}, {state['state']}, {state['delivered']} of {task.seq} events, "
            f"{webhook.attempts} attempts{note}",
        )
    if match and line.reference != name:
        output.note("the reference is of an incident in this task: the server's log has it")


def _read(admin: StoreAdmin, task: FoundTask, contents: bool) -> Timeline:
    timeline = Timeline(task.owner, content=contents)
    with admin.audit() as reading:
        timeline.read(reading.log(task.key, task.task_id))
    return timeline


def _print(
    output: Output, admin: StoreAdmin, task: FoundTask, moments: Sequence[Moment], reference: str
) -> None:
    output.report(
        None,
        ("Task", task.task_id),
        ("Context", task.context_id),
        ("Agent", task.agent + (f", tenant {task.tenant}" if task.tenant else "")),
        ("Caller", caller_name(task.owner)),
        ("State", _state(task)),
        ("Attempt", f"{task.attempt} of turn {task.turn}"),
        *([("Skill", task.skill)] if task.skill else ()),
        *([("Reference", reference)] if reference else ()),
        *([("Held by", task.lease_owner)] if task.lease_owner else ()),
    )
    if task.wakes_at is not None:
        wakes = "an event" if task.wakes_at == NEVER else _time(task.wakes_at)
        output.text.field("Asleep until", wakes)
    output.text.gap()
    began = moments[0].at if moments else task.changed
    for moment in moments:
        offset = moment.at - began
        passed = f"+{offset / 1000:.3f}s" if offset < 60_000 else f"+{format_age(offset)}"
        line = f"{_time(moment.at)[11:23]} {passed:>10}  {cell(moment.event, 21)} "
        details = ", ".join([_detail(*each) for each in moment.details.items() if each[1] != 0])
        texts = textwrap.wrap(details, _WIDTH - _INDENT, break_long_words=False) or [""]
        print_line((line.ljust(_INDENT) + f"\n{' ' * _INDENT}".join(texts)).rstrip())
    output.text.gap()


def _detail(name: str, value: Any) -> str:
    if name == "until":
        value = f"{_time(value)[:19]}Z"
    elif name in _SPANS:
        value = f"{value} ms" if value < 1000 else format_age(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"{name} {one_line(text)}"


def _deliveries(webhooks: Sequence[TaskWebhook]) -> list[Moment]:
    moments = []
    for webhook in webhooks:
        for each in webhook.recent:
            details: dict[str, Any] = {"webhook": webhook.id, "try": each.number}
            details["took"] = each.duration
            if event := each.delivery_id.rpartition("/")[2]:
                details["number"] = event
            if each.status:
                details["status"] = each.status
            if each.error:
                details["error"] = each.error
            event = "webhook.failed" if each.error else "webhook.delivered"
            moments.append(Moment(at=each.at, event=event, details=details))
    return moments


def _webhook(webhook: TaskWebhook, task: FoundTask) -> dict[str, Any]:
    state = webhook.state.name.lower()
    if webhook.state is PushState.ACTIVE and webhook.note:
        state = "failing"
    elif webhook.state is PushState.ACTIVE:
        state = "waiting" if webhook.delivered < task.seq else "up to date"
    elif webhook.state is PushState.DONE:
        state = "delivered"
    return {
        "id": webhook.id,
        "server": webhook.server,
        "state": state,
        "note": webhook.note,
        "delivered": webhook.delivered,
        "attempts": webhook.attempts,
    }


def _row(*texts: str) -> str:
    return " ".join(map(cell, texts, _ROW)).rstrip()


def _state(task: FoundTask) -> str:
    if task.wakes_at is not None and not task.state.is_terminal:
        return "asleep"
    return task.state.name.lower().replace("_", "-")


def _document(task: FoundTask) -> dict[str, Any]:
    return {
        "task": task.task_id,
        "context": task.context_id,
        "agent": task.agent,
        "tenant": task.tenant,
        "skill": task.skill,
        "caller": caller_name(task.owner),
        "state": task.state.value,
        "changed": _time(task.changed),
        "turn": task.turn,
        "attempt": task.attempt,
        "heldBy": task.lease_owner,
        "wakesAt": None if task.wakes_at in (None, NEVER) else _time(task.wakes_at or 0),
    }


def _time(ms: int) -> str:
    at = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")
