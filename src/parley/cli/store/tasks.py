"""The operator's view: the tasks of all callers, and a task with its timeline."""

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
from parley.store.admin.admin import MOST_NAMED, FoundTask, StoreAdmin, TaskFilter, TaskWebhook
from parley.store.protocols.tables import NEVER
from parley.store.protocols.webhooks import PushState

PAGE_SIZE = 50
LEAST_PREFIX = 8
"""The least number of characters of a task's id that name it."""

_REFERENCE = re.compile(r"(.{16})-[0-9a-f]{4}")
_ROW = (16, 7, 14, 14, 20, 3)
_INDENT = 47
_WRAP = textwrap.TextWrapper(80 - _INDENT, break_long_words=False, break_on_hyphens=False)
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
        age, skill = format_age(now - task.changed), task.skill or task.agent
        about = (task.task_id[:16], age, _state(task), skill, task.caller, str(task.attempt))
        print_line(_row(*about))
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
    named = admin.tasks_named(prefix)
    found = [each for each in named if each.task_id == name] or named
    if not found:
        raise CommandFailure(
            "PARLEY_ERR_NOT_FOUND",
            f"the store {admin.name} has no task with the id or the reference {name!r}",
            hint="a reference without a dash is of a request without a task: the server's log has "
            "it; parley task list --all shows the tasks",
        )
    lines = [(each, _read(admin, each, contents)) for each in found if match or len(found) == 1]
    if match:
        lines = [each for each in lines if each[1].reference == name] or lines
    if len(lines) != 1:
        ids = ", ".join([task.task_id for task in found])
        raise UsageFailure(
            f"{name!r} is of several tasks: {ids}{', ...' if len(found) == MOST_NAMED else ''}"
        )
    [(task, line)] = lines
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
            "webhooks": [
                {**msgspec.to_builtins(each), "state": _standing(each, task.seq)}
                for each in webhooks
            ],
        }
        output.document(document)
        return
    _print(output, admin, task, moments, line.reference)
    for webhook in webhooks:
        done = f"{_standing(webhook, task.seq)}, {webhook.delivered} of {task.seq} events"
        note = f": {webhook.note}" if webhook.note else ""
        output.text.field(f"Webhook {webhook.id}", f"{webhook.server}, {done}{note}")
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
        ("Caller", task.caller),
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
        details = ", ".join([_detail(*each) for each in moment.details.items() if each[1]])
        texts = _WRAP.wrap(details) or [""]
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
            details: dict[str, Any] = {
                "webhook": webhook.id,
                "number": each.delivery_id.rpartition("/")[2],
                "status": each.status,
                "error": each.error,
                "took": each.duration,
            }
            event = "webhook.failed" if each.error else "webhook.delivered"
            moments.append(Moment(at=each.at, event=event, details=details))
    return moments


def _standing(webhook: TaskWebhook, last: int) -> str:
    """Return the state of a webhook of a task with so many events, in words."""
    if webhook.state is PushState.ACTIVE and webhook.note:
        return "failing"
    if webhook.state is PushState.ACTIVE and webhook.delivered < last:
        return "waiting"
    return "suspended" if webhook.state is PushState.SUSPENDED else "delivered"


def _row(*texts: str) -> str:
    return " ".join(map(cell, texts, _ROW)).rstrip()


def _state(task: FoundTask) -> str:
    if task.wakes_at is not None and not task.state.is_terminal:
        return "asleep"
    return task.state.name.lower().replace("_", "-")


def _document(task: FoundTask) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(task) | {"caller": task.caller}
    del found["key"], found["owner"]
    wakes_at = None if task.wakes_at in (None, NEVER) else _time(task.wakes_at or 0)
    return found | {"changed": _time(task.changed), "wakesAt": wakes_at}


def _time(ms: int) -> str:
    at = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")
