"""Webhooks: push notification configurations, and the cursor of each one's delivery."""

from __future__ import annotations

from enum import Enum

import msgspec

from parley.model.operations import PushOptions, TaskPushNotificationConfig

MAX_PUSHES = 20
"""The maximum number of push notification configurations of a task."""

WEBHOOKS_PER_PAGE = 500
"""The number of suspended webhooks per query, and per transaction that resumes them."""


ATTEMPTS_KEPT = 50
"""The number of last attempts in a webhook's history."""


class PushState(Enum):
    """The delivery state of a webhook. The values are stored."""

    ACTIVE = "active"
    SUSPENDED = "parked"
    DONE = "done"


class DeliveryAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt to deliver to a webhook, for its owner. Has no secrets and no URL.

    ``number`` counts the attempts of a webhook from 1. ``at`` is its start and ``next_at`` the time
    of the next one, both in ms since 1970; ``duration`` is in ms. ``status`` is the HTTP status of
    the answer, 0 without one. ``error`` is empty for a success. ``delivery_id`` is the
    notification's id, empty when none was sent.
    """

    number: int
    at: int
    duration: int = 0
    status: int = 0
    error: str = ""
    next_at: int = 0
    delivery_id: str = ""


class PushRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A push notification configuration as its creator gave it, and its delivery state.

    ``config`` has neither task nor tenant, which the store knows. ``version`` is the protocol
    version in which it was created. ``cursor`` is the number of the last delivered event.
    ``revision`` changes when the configuration is created again. A suspended webhook gets nothing
    until then; ``note`` is the reason for that, or for the wait of an active webhook. ``attempts``
    counts the delivery attempts. ``confirmed``: its receiver answered a challenge for this URL and
    token. Without ``options`` a replacement keeps the existing options. ``lease_owner`` is the
    replica that delivers; the store sets it and ignores a given value. ``replaces`` is the revision
    that it must replace, if set; it is not stored.
    """

    config: TaskPushNotificationConfig
    version: str
    revision: str
    cursor: int = 0
    state: PushState = PushState.ACTIVE
    note: str = ""
    lease_owner: str = ""
    options: PushOptions = PushOptions()
    attempts: int = 0
    confirmed: bool = False
    replaces: str = ""

    @property
    def id(self) -> str:
        """The configuration's id, which is unique within its task."""
        return self.config.id


class ActivePushes(msgspec.Struct, frozen=True):
    """A page of the active webhooks that this replica has claimed.

    ``has_unclaimed``: some have no lease owner. ``claimed`` has the task id and the revision of
    each. ``next`` is the start of the next page, 0 when there is none.
    """

    has_unclaimed: bool
    claimed: tuple[tuple[str, str], ...]
    next: int = 0


class WebhookFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects webhooks by agent, tenant, task and id. An empty field selects all."""

    agent: str = ""
    tenant: str = ""
    task_id: str = ""
    id: str = ""


class SuspendedWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A suspended webhook, or an active webhook that waits for its receiver, with the reason.

    It has no secrets: only the server of its URL. ``behind`` is the number of undelivered events of
    its task. ``key`` is the task's in the store.
    """

    key: int
    agent: str
    tenant: str
    owner: str
    task_id: str
    id: str
    server: str
    behind: int
    note: str
