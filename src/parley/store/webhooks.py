"""Rules and rows of webhooks that all stores share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.model.operations import PushOptions, TaskPushNotificationConfig, server_of
from parley.model.struct import decode
from parley.store.head import Head
from parley.store.protocols.errors import PushReplaced, TooManyPushes
from parley.store.protocols.webhooks import (
    MAX_PUSHES,
    WEBHOOKS_PER_PAGE,
    ActivePushes,
    DeliveryAttempt,
    PushRecord,
    PushState,
    SuspendedWebhook,
    WebhookFilter,
)

FIRST_ID = "default"
"""The id of a task's first configuration without an id."""


def merge_pushes(
    pushes: Sequence[PushRecord],
    existing: Mapping[str, PushRecord],
    head: Head,
    *,
    after: int,
    replica: str,
) -> dict[str, PushRecord]:
    """Return a task's configurations with ``pushes`` added, claimed by ``replica``.

    The last of ``pushes`` comes last.

    A configuration replaces another with the same id, or without an id another with the same URL.
    It keeps the cursor, the count of attempts, and the options unless it has new ones. A new
    configuration begins ``after`` an event. A configuration that changes nothing leaves the
    existing one unchanged. Raises ``TooManyPushes``, ``PushReplaced``.
    """
    result = dict(existing)
    for push in pushes:
        new = _completed(push, result, head, after)
        before = result.pop(new.id, None)
        if push.replaces and (before is None or before.revision != push.replaces):
            raise PushReplaced(f"the configuration {new.id[:100]!r} was replaced or removed")
        if before is None and len(result) >= MAX_PUSHES:
            raise TooManyPushes(head.task_id, MAX_PUSHES)
        new = replace(new, lease_owner=replica)
        if before is not None:
            same = replace(new, revision=before.revision, lease_owner=before.lease_owner)
            if before == same:
                new = replace(same, lease_owner=before.lease_owner or replica)
        result[new.id] = new
    return result


def _completed(
    push: PushRecord, existing: Mapping[str, PushRecord], head: Head, after: int
) -> PushRecord:
    """Return ``push`` with its id, cursor and state."""
    config = push.config
    if not config.id:
        config = replace(config, id=_id_for(config.url, push.revision, existing.values()))
    before = existing.get(config.id)
    cursor = after if before is None else before.cursor
    is_done = head.ended_at is not None and cursor >= head.seq
    state = PushState.DONE if is_done else PushState.ACTIVE
    push = replace(push, config=config, cursor=cursor, state=state, note="", replaces="")
    if before is None:
        return push
    options = before.options if push.options == PushOptions() else push.options
    # A receiver confirms a URL and a token.
    is_confirmed = before.confirmed and (
        (config.url, config.token) == (before.config.url, before.config.token)
    )
    return replace(push, options=options, attempts=before.attempts, confirmed=is_confirmed)


def _id_for(url: str, revision: str, existing: Iterable[PushRecord]) -> str:
    """Return the id for a configuration without one.

    Many clients send the same configuration with every message; it must keep its id.
    """
    ids = []
    for other in existing:
        if other.config.url == url:
            return other.id
        ids.append(other.id)
    return revision if FIRST_ID in ids else FIRST_ID


def last_attempts(bodies: Iterable[bytes]) -> list[DeliveryAttempt]:
    """Return the attempts of a history from their stored form, the newest first."""
    found = [msgspec.json.decode(body, type=DeliveryAttempt) for body in bodies]
    return sorted(found, key=lambda attempt: attempt.number, reverse=True)


def active_of(
    has_unclaimed: bool, found: Sequence[tuple[int, str, str]], limit: int
) -> ActivePushes:
    """Return a page of a replica's active webhooks.

    ``found`` has each webhook's task key, in order, its task's id, and its revision. A full page
    may lack webhooks of its last task, which is therefore the first of the next page.
    """
    claimed = tuple([(task_id, revision) for _, task_id, revision in found])
    return ActivePushes(has_unclaimed, claimed, found[-1][0] - 1 if len(found) >= limit else 0)


def suspended_of(
    find: Callable[[Sequence[Any]], Iterable[Sequence[Any]]], which: WebhookFilter
) -> Iterator[list[SuspendedWebhook]]:
    """Yield the suspended webhooks in pages.

    ``find`` runs the query ``suspended`` with the given values.
    """
    wanted = (which.agent, which.tenant, which.task_id, which.id)
    filters = [value for each in wanted for value in (each, each)]
    last = (-1, "")
    while True:
        page = [
            SuspendedWebhook(
                key=key,
                agent=agent,
                tenant=tenant,
                owner=owner,
                task_id=task_id,
                id=id,
                server=server_of(decode(config, TaskPushNotificationConfig).url),
                behind=max(0, seq - cursor),
                note=note,
            )
            for key, id, agent, tenant, owner, task_id, config, cursor, seq, note in find(
                (last[0], *last, *filters, WEBHOOKS_PER_PAGE)
            )
        ]
        if page:
            yield page
        if len(page) < WEBHOOKS_PER_PAGE:
            return
        last = (page[-1].key, page[-1].id)
