"""Push notification configurations (specification §4.3)."""

from __future__ import annotations

from parley.model.struct import A2AStruct, NonEmpty


class AuthenticationInfo(A2AStruct, frozen=True, kw_only=True):
    """How the agent authenticates at the webhook: an HTTP scheme and its credentials."""

    scheme: str
    credentials: str = ""


class TaskPushNotificationConfig(A2AStruct, frozen=True, kw_only=True):
    """Where, and how authenticated, a task's events are to be posted."""

    tenant: str = ""
    id: str = ""
    task_id: str = ""
    url: NonEmpty
    token: str = ""
    authentication: AuthenticationInfo | None = None
