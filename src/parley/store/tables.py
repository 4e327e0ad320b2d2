"""Rules and rows that the small tables of all stores share: webhooks, API keys, usage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from parley.model.operations import PushOptions, TaskPushNotificationConfig, server_of
from parley.model.struct import decode
from parley.security.api_keys import ApiKeyRecord
from parley.security.limits.usage import QuotaAsk, QuotaGrant
from parley.store.head import Head
from parley.store.protocols.errors import PushReplaced, TooManyPushes
from parley.store.protocols.tables import ApiKeyChanged, DuplicateApiKey
from parley.store.protocols.webhooks import (
    MAX_PUSHES,
    WEBHOOKS_AT_ONCE,
    ActivePushes,
    DeliveryAttempt,
    PushRecord,
    PushState,
    SuspendedWebhook,
    WebhookFilter,
)

# -- webhooks ----------------------------------------------------------------------------------

FIRST_ID = "default"
"""The id of a task's first configuration without one."""


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

    A configuration replaces another with its id, or without an id another with its URL. It
    keeps its cursor, its count of attempts, and its options unless it has new ones. A new
    configuration begins ``after`` an event. A configuration that changes nothing leaves the
    existing one as it is. Raises ``TooManyPushes``, ``PushReplaced``.
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

    ``found`` has each one's task key, in order, its task's id, and its revision. A full page may
    lack webhooks of its last task, which is therefore the first of the next page.
    """
    claimed = tuple([(task_id, revision) for _, task_id, revision in found])
    return ActivePushes(has_unclaimed, claimed, found[-1][0] - 1 if len(found) >= limit else 0)


def suspended_of(
    find: Callable[[Sequence[Any]], Iterable[Sequence[Any]]], which: WebhookFilter
) -> Iterator[list[SuspendedWebhook]]:
    """Yield the suspended webhooks a page at a time.

    ``find`` runs the query ``suspended`` with the values that it is given.
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
                (last[0], *last, *filters, WEBHOOKS_AT_ONCE)
            )
        ]
        if page:
            yield page
        if len(page) < WEBHOOKS_AT_ONCE:
            return
        last = (page[-1].key, page[-1].id)


# -- API keys ----------------------------------------------------------------------------------


class ApiKeyListeners:
    """The listeners to the keys that this process adds or ends."""

    def __init__(self) -> None:
        self._listeners: list[ApiKeyChanged] = []

    def add(self, changed: ApiKeyChanged) -> None:
        """Call ``changed`` from now on."""
        self._listeners.append(changed)

    def changed(self, id: str) -> None:
        """Call all listeners: a key changed."""
        for listener in self._listeners:
            listener(id)


def api_key_columns(record: ApiKeyRecord) -> dict[str, Any]:
    """Return a key as the columns of a table."""
    return asdict(record) | {"scopes": " ".join(record.scopes)}


def api_key_from_row(row: Sequence[Any]) -> ApiKeyRecord:
    """Return the key in a row."""
    id, digest, owner, label, scopes, created_at, expires_at, revoked_at = row
    return ApiKeyRecord(
        id=id,
        digest=digest,
        owner=owner,
        label=label,
        scopes=tuple(scopes.split()),
        created_at=created_at,
        expires_at=expires_at,
        revoked_at=revoked_at,
    )


def api_key_with_end(
    record: ApiKeyRecord, expires_at: int | None, revoked_at: int | None
) -> ApiKeyRecord:
    """Return a key with an earlier end: times that it has are never put off."""
    return replace(
        record,
        expires_at=_earlier(record.expires_at, expires_at),
        revoked_at=_earlier(record.revoked_at, revoked_at),
    )


def _earlier(first: int | None, second: int | None) -> int | None:
    return min([at for at in (first, second) if at is not None], default=None)


def check_same_api_key(found: ApiKeyRecord, record: ApiKeyRecord) -> None:
    """Raise ``DuplicateApiKey`` if a store has another key with the same id."""
    if found.digest != record.digest:
        raise DuplicateApiKey(record.id)


# -- usage, and the amounts of limits ------------------------------------------------------------


def granted(ask: QuotaAsk, slots: dict[int, int]) -> QuotaGrant:
    """Return the grant for an ask of an amount, of which ``slots`` were taken, and take it."""
    for slot in [slot for slot in slots if slot < ask.oldest]:
        del slots[slot]
    taken = sum(slots.values())
    given = min(ask.wanted, max(0, ask.amount - taken))
    if given < 0:
        given = -min(-given, slots.get(ask.slot, 0))
    if given:
        slots[ask.slot] = slots.get(ask.slot, 0) + given
    return QuotaGrant(given, taken + given, min(slots, default=ask.slot))
