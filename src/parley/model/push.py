"""Push notification configurations (specification §4.3)."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

import msgspec

from parley.model.struct import A2AStruct, NonEmpty

PushEvents = Literal["all", "significant"]
"""What a webhook receives of a task: every event, or its states and complete artifacts."""


class PushOptions(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """What a webhook receives. Without ``events`` it is what its agent chooses."""

    events: PushEvents | Literal[""] = ""


class AuthenticationInfo(A2AStruct, frozen=True, kw_only=True):
    """The agent's authentication at a webhook: an HTTP scheme and its credentials.

    Shows no credentials where it is printed.
    """

    scheme: str
    credentials: str = ""

    def __repr__(self) -> str:
        secret = ", credentials='...'" if self.credentials else ""
        return f"AuthenticationInfo(scheme={self.scheme!r}{secret})"


class TaskPushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """A webhook for the events of a task.

    Shows no secrets where it is printed.
    """

    tenant: str = ""
    id: str = ""
    task_id: str = ""
    url: NonEmpty
    token: str = ""
    authentication: AuthenticationInfo | None = None

    def __repr__(self) -> str:
        secret = ", token='...'" if self.token else ""
        return (
            f"TaskPushNotificationConfig(id={self.id!r}, task_id={self.task_id!r}, "
            f"url='{server_of(self.url)}/...'{secret}, authentication={self.authentication!r})"
        )


def server_of(url: str) -> str:
    """Return the scheme and host of a webhook's URL: the rest of it is often a secret."""
    try:
        address = urlsplit(url)
    except ValueError:
        return "?"
    return f"{address.scheme}://{address.netloc.rpartition('@')[2]}"
