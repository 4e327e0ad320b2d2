"""The push notification configurations of a remote agent's tasks (specification §3.1.7-§3.1.10)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from parley.client.calls.service import RemoteService
from parley.client.extensions import call_method
from parley.client.message import Push, to_config
from parley.extensions.push_delivery import (
    PUSH_HISTORY,
    SET_PUSH_OPTIONS,
    GetPushHistoryRequest,
    PushHistory,
    SetPushOptionsRequest,
)
from parley.model.operations import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    PushEvents,
    TaskPushNotificationConfig,
)
from parley.model.service import A2AService, CallContext


class RemotePushConfigs:
    """The webhooks of an agent's tasks: ``agent.push``.

    Methods raise the errors of ``RemoteAgent``, and ``PushNotificationNotSupportedError`` without a
    call if the agent's card does not declare push notifications.
    """

    def __init__(self, service: A2AService, context: CallContext, remote: RemoteService) -> None:
        self._service = service
        self._context = context
        self._remote = remote

    async def create(self, task_id: str, config: Push) -> TaskPushNotificationConfig:
        """Register a webhook for a task's events. Return the stored configuration.

        The agent assigns an id to a configuration without one; a used id replaces the earlier
        configuration.
        """
        request = msgspec.structs.replace(to_config(config), task_id=task_id)
        return await self._service.create_task_push_notification_config(request, self._context)

    async def get(self, task_id: str, id: str) -> TaskPushNotificationConfig:
        """Return one configuration."""
        request = GetTaskPushNotificationConfigRequest(task_id=task_id, id=id)
        return await self._service.get_task_push_notification_config(request, self._context)

    async def page(
        self, task_id: str, *, page_size: int = 0, page_token: str = ""
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return one page of a task's configurations."""
        request = ListTaskPushNotificationConfigsRequest(
            task_id=task_id, page_size=page_size, page_token=page_token
        )
        return await self._service.list_task_push_notification_configs(request, self._context)

    async def list(
        self, task_id: str, *, page_size: int = 0
    ) -> AsyncIterator[TaskPushNotificationConfig]:
        """Iterate over all of a task's configurations, page after page."""
        token = ""
        while True:
            page = await self.page(task_id, page_size=page_size, page_token=token)
            for config in page.configs:
                yield config
            # Without this check, an agent that repeats its page token would make the loop endless.
            if not page.next_page_token or page.next_page_token == token:
                return
            token = page.next_page_token

    async def set_events(self, task_id: str, id: str, events: PushEvents) -> None:
        """Set the events that a webhook receives: ``all``, or only the ``significant`` ones.

        Significant events are states, and artifacts when they are complete. Raises
        ``UnsupportedOperationError`` for an agent without the extension push delivery.
        """
        request = SetPushOptionsRequest(task_id=task_id, id=id, events=events)
        await call_method(self._remote, SET_PUSH_OPTIONS, request, self._context)

    async def history(self, task_id: str, id: str = "") -> tuple[PushHistory, ...]:
        """Return the deliveries to one webhook of a task, or to all: the last attempts of each.

        Raises ``UnsupportedOperationError`` for an agent without the extension push delivery.
        """
        request = GetPushHistoryRequest(task_id=task_id, id=id)
        answer = await call_method(self._remote, PUSH_HISTORY, request, self._context)
        return answer.webhooks

    async def delete(self, task_id: str, id: str) -> None:
        """Delete a configuration. A missing one is not an error."""
        request = DeleteTaskPushNotificationConfigRequest(task_id=task_id, id=id)
        await self._service.delete_task_push_notification_config(request, self._context)
