"""The operations on push notification configurations (specification §3.1.7-§3.1.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from parley.engine.executor import AgentExecutor
from parley.engine.service.checks import (
    invalid,
    not_found,
    owned,
    page_size,
    read_token,
    too_many_pushes,
    write_token,
)
from parley.extensions.push_delivery import (
    GetPushHistoryRequest,
    GetPushHistoryResponse,
    PushAttempt,
    PushHistory,
    PushOptionsResponse,
    SetPushOptionsRequest,
)
from parley.model.errors import PushNotificationNotSupportedError, TaskNotFoundError
from parley.model.ids import new_id
from parley.model.operations import (
    DeleteTaskPushNotificationConfigRequest,
    Empty,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    PushEvents,
    PushOptions,
    TaskPushNotificationConfig,
)
from parley.model.service import CallContext
from parley.model.struct import Timestamp
from parley.push.proofs import ProofFailed, validated
from parley.store.events import Scope
from parley.store.protocols.errors import (
    PushReplaced,
    StoreError,
    StoreUnavailable,
    TooManyPushes,
    UnknownTask,
)
from parley.store.protocols.webhooks import DeliveryAttempt, PushRecord, PushState
from parley.store.task_store import TaskStore

LARGEST_PAGE = 100

SET_OPTIONS_TRIES = 5
"""The number of attempts to set options on a configuration that others replace meanwhile."""


class _PageToken(msgspec.Struct, array_like=True, frozen=True):
    """The last configuration of a page."""

    after: str


class PushConfigs:
    """Stores the push notification configurations of one agent's tasks.

    A configuration is returned without its credentials. Every method raises
    ``PushNotificationNotSupportedError`` if the agent sends no push notifications,
    ``TaskNotFoundError`` for a task of another caller, and ``OverloadedError`` if the store is
    unavailable.
    """

    def __init__(
        self,
        executor: AgentExecutor,
        store: TaskStore,
        *,
        enabled: bool,
        default_events: PushEvents = "all",
    ) -> None:
        self._executor = executor
        self._store = store
        self._enabled = enabled
        self._default_events = default_events

    async def create(
        self, request: TaskPushNotificationConfig, context: CallContext, scope: Scope
    ) -> TaskPushNotificationConfig:
        """Add a configuration to a task, or replace the configuration with the same id."""
        self._check_supported()
        if not request.task_id:
            raise invalid("taskId", "the id of the task")
        sender = self._executor.push
        push = validated(request, sender.egress, version=context.version, proofs=sender.proofs)
        await self._owned(request.task_id, scope)
        try:
            stored = await self._put(request.task_id, push, scope)
        except UnknownTask:
            raise not_found(request.task_id) from None
        except TooManyPushes:
            raise too_many_pushes("taskId") from None
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        return self._shown(stored, request.task_id, context)

    async def _put(self, task_id: str, push: PushRecord, scope: Scope) -> PushRecord:
        """Store a configuration and watch its task, even if the caller disconnects.

        Once it returns, this replica sends nothing more for a configuration that was replaced.
        """

        def done(putting: asyncio.Future[PushRecord]) -> None:
            # A failed store may have written it nevertheless.
            if putting.exception() is None or isinstance(putting.exception(), StoreUnavailable):
                self._executor.push.watch(task_id, scope)

        putting = asyncio.ensure_future(self._store.put_push(task_id, push))
        putting.add_done_callback(done)
        stored = await asyncio.shield(putting)
        await self._executor.push.refresh(task_id)
        return stored

    async def get(
        self, request: GetTaskPushNotificationConfigRequest, context: CallContext, scope: Scope
    ) -> TaskPushNotificationConfig:
        """Return a configuration. Raises ``TaskNotFoundError`` for an unknown id."""
        for push in await self._pushes(request.task_id, scope):
            if push.id == request.id:
                return self._shown(push, request.task_id, context)
        raise TaskNotFoundError(
            f"the task has no push notification configuration {request.id[:100]!r}; it was not "
            "found among those of the task",
            metadata={"taskId": request.task_id[:100], "configId": request.id[:100]},
        )

    async def list(
        self, request: ListTaskPushNotificationConfigsRequest, context: CallContext, scope: Scope
    ) -> ListTaskPushNotificationConfigsResponse:
        """Return a page of a task's configurations, in the order of their ids."""
        size = page_size(request.page_size, LARGEST_PAGE)
        after = read_token(request.page_token, _PageToken).after if request.page_token else ""
        pushes = [p for p in await self._pushes(request.task_id, scope) if p.id > after]
        page = pushes[:size]
        return ListTaskPushNotificationConfigsResponse(
            configs=tuple(self._shown(push, request.task_id, context) for push in page),
            next_page_token=write_token(_PageToken(page[-1].id)) if len(pushes) > size else "",
        )

    async def delete(
        self, request: DeleteTaskPushNotificationConfigRequest, context: CallContext, scope: Scope
    ) -> Empty:
        """Remove a configuration: no further notification is sent. Idempotent."""
        self._check_supported()
        await self._owned(request.task_id, scope)
        try:
            await self._store.remove_push(request.task_id, request.id)
        except StoreError as error:
            raise self._executor.unavailable(error) from error
        await self._executor.push.forget(request.task_id, request.id)
        return Empty()

    async def set_options(
        self, request: SetPushOptionsRequest, context: CallContext, scope: Scope
    ) -> PushOptionsResponse:
        """Set the events for a configuration: it is stored again, and continues its deliveries."""
        options, replaced = PushOptions(events=request.events), PushReplaced()
        for _ in range(SET_OPTIONS_TRIES):
            found = [p for p in await self._pushes(request.task_id, scope) if p.id == request.id]
            if not found:
                break
            [push] = found
            if push.options != options or push.state is PushState.SUSPENDED:
                changes = {"options": options, "revision": new_id(), "replaces": push.revision}
                try:
                    await self._put(request.task_id, replace(push, **changes), scope)
                except UnknownTask:
                    break
                except PushReplaced as error:
                    replaced = error
                    continue
                except StoreError as error:
                    raise self._executor.unavailable(error) from error
            return PushOptionsResponse(
                task_id=request.task_id, id=request.id, events=request.events
            )
        else:
            raise self._executor.unavailable(replaced) from replaced
        raise not_found(request.task_id)

    async def history(self, request: GetPushHistoryRequest, scope: Scope) -> GetPushHistoryResponse:
        """Return the deliveries of one configuration of a task, or of all."""
        found = []
        for push in await self._pushes(request.task_id, scope):
            if request.id not in ("", push.id):
                continue
            try:
                attempts = await self._store.push_attempts(request.task_id, push.id)
            except StoreError as error:
                raise self._executor.unavailable(error) from error
            found.append(
                PushHistory(
                    id=push.id,
                    state=_STATES[push.state],
                    note=push.note,
                    events=push.options.events or self._default_events,
                    delivered=push.cursor,
                    attempts=tuple(map(_attempt, attempts)),
                )
            )
        if request.id and not found:
            raise not_found(request.task_id)
        return GetPushHistoryResponse(webhooks=tuple(found))

    def _shown(
        self, push: PushRecord, task_id: str, context: CallContext
    ) -> TaskPushNotificationConfig:
        """Return a configuration without its credentials, and with its token if it can be read."""
        try:
            push = replace(push, config=self._executor.push.proofs.secrets.opened(push.config))
        except ProofFailed:
            push = replace(push, config=replace(push.config, token=""))
        return _without_credentials(push, task_id, context)

    def _check_supported(self) -> None:
        if not self._enabled:
            raise PushNotificationNotSupportedError

    async def _owned(self, task_id: str, scope: Scope) -> None:
        try:
            await owned(self._store, task_id, scope)
        except StoreError as error:
            raise self._executor.unavailable(error) from error

    async def _pushes(self, task_id: str, scope: Scope) -> Sequence[PushRecord]:
        self._check_supported()
        await self._owned(task_id, scope)
        try:
            return await self._store.pushes(task_id)
        except StoreError as error:
            raise self._executor.unavailable(error) from error


_STATES = {PushState.ACTIVE: "active", PushState.SUSPENDED: "suspended", PushState.DONE: "done"}


def _attempt(attempt: DeliveryAttempt) -> PushAttempt:
    return PushAttempt(
        number=attempt.number,
        at=_time(attempt.at),
        duration=attempt.duration,
        status=attempt.status,
        error=attempt.error,
        next=_time(attempt.next_at) if attempt.next_at else None,
        delivery_id=attempt.delivery_id,
    )


def _time(at: int) -> Timestamp:
    """Return a time of the store (ms)."""
    return Timestamp.of(datetime.fromtimestamp(at / 1000, UTC))


def _without_credentials(
    push: PushRecord, task_id: str, context: CallContext
) -> TaskPushNotificationConfig:
    authentication = push.config.authentication
    if authentication is not None:
        authentication = replace(authentication, credentials="")
    return replace(
        push.config, task_id=task_id, tenant=context.tenant, authentication=authentication
    )
