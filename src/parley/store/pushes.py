"""How a push notification configuration takes its place among those of its task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from parley.store.head import Head
from parley.store.task_store import MAX_PUSHES, PushRecord, PushState, TooManyPushes, Undelivered

FIRST_ID = "default"
"""The id of a configuration that came without one, when it is the first such of its task."""


def placed(
    pushes: Sequence[PushRecord],
    among: Mapping[str, PushRecord],
    head: Head,
    *,
    after: int,
    replica: str,
) -> dict[str, PushRecord]:
    """Return a task's configurations with further ones, held by ``replica``.

    The last that was given comes last.

    One replaces that of the same id, and without an id that of the same URL, and goes on where
    that stood; a new one begins ``after`` an event. One that changes nothing is kept as it was.
    Raises ``TooManyPushes``.
    """
    result = dict(among)
    for push in pushes:
        made = _made(push, result, head, after)
        before = result.pop(made.id, None)
        if before is None and len(result) >= MAX_PUSHES:
            raise TooManyPushes(head.task_id)
        made = replace(made, lease_owner=replica)
        if before is not None:
            same = replace(made, revision=before.revision, lease_owner=before.lease_owner)
            if before == same:
                made = replace(same, lease_owner=before.lease_owner or replica)
        result[made.id] = made
    return result


def _made(push: PushRecord, among: Mapping[str, PushRecord], head: Head, after: int) -> PushRecord:
    config = push.config
    if not config.id:
        config = replace(config, id=_id_for(config.url, push.revision, among.values()))
    before = among.get(config.id)
    cursor = after if before is None else before.cursor
    is_done = head.ended_at is not None and cursor >= head.seq
    state = PushState.DONE if is_done else PushState.ACTIVE
    return replace(push, config=config, cursor=cursor, state=state, note="")


def _id_for(url: str, revision: str, among: Iterable[PushRecord]) -> str:
    """Return the id of a configuration that came without one.

    Many clients send theirs with every message: that must not make it another one each time.
    """
    ids = []
    for other in among:
        if other.config.url == url:
            return other.id
        ids.append(other.id)
    return revision if FIRST_ID in ids else FIRST_ID


def telling_of(is_free: bool, found: Sequence[tuple[int, str, str]], limit: int) -> Undelivered:
    """Return what was found of the webhooks that a replica tells: the place of each one's task, in
    order, the task's id, and the revision. A page that is full may have cut its last task's.
    """
    held = tuple([(task_id, revision) for _, task_id, revision in found])
    return Undelivered(is_free, held, found[-1][0] - 1 if len(found) >= limit else 0)
