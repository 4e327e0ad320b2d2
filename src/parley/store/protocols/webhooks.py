"""Webhooks: push notification configurations, and the cursor of each one's delivery."""

from __future__ import annotations

from enum import Enum

import msgspec

from parley.model.operations import PushOptions, TaskPushNotificationConfig

MAX_PUSHES = 20
"""How many push notification configurations a task may have."""

WEBHOOKS_PER_PAGE = 500
"""How many suspended webhooks one query finds, or one transaction resumes."""


ATTEMPTS_KEPT = 50
"""How many of its last attempts a webhook's history has."""


class PushState(Enum):
    """Whether a webhook gets events. The values are what stores keep."""

    ACTIVE = "active"
    SUSPENDED = "parked"
    DONE = "done"


class DeliveryAttempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt to deliver to a webhook, for its owner. Holds no secrets and no URL.

    ``number`` counts the attempts of a webhook from 1. ``at`` is when it began and ``next_at`` when
    the next one is due, both in ms since 1970; ``duration`` is in ms. ``status`` is the HTTP status
    of the answer, 0 without one. ``error`` is empty for a success. ``delivery_id`` is the
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
    version in which it was created. ``cursor`` is the number of the last event that was delivered.
    ``revision`` changes when the configuration is created anew.
    A suspended webhook gets nothing until then; ``note`` says why, or why an active webhook waits.
    ``attempts`` counts the attempts to deliver. ``confirmed``: its receiver answered a challenge
    for this URL and token. Without ``options`` a replacement keeps the existing options.
    ``lease_owner`` is the replica that delivers; the store sets it and ignores a value that is
    passed in. ``replaces`` is the revision that it has to replace, if it has to; it is not stored.
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

    ``has_unclaimed`` says whether some have no lease owner. ``claimed`` has the task id and the
    revision of each. ``next`` is where the next page begins, 0 when there is none.
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
    """A suspended webhook, or an active webhook that waits for its receiver, and why.

    It holds no secrets: of its URL the server only.
    ``behind`` is how many events of its task are undelivered. ``key`` is the task's in the store.
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
