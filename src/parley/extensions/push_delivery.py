"""The events that webhooks receive, and their deliveries.

``docs/reference/extensions/push-delivery.md`` is the specification.
"""

from __future__ import annotations

from typing import Any

from parley.model.errors import PushNotificationNotSupportedError
from parley.model.extensions import PUSH_DELIVERY, Extension, method
from parley.model.operations import PushEvents, PushOptions
from parley.model.service import A2AService, CallContext
from parley.model.struct import A2AStruct, NonEmpty, Timestamp, freeze


class SetPushOptionsRequest(A2AStruct, frozen=True, kw_only=True):
    """A request to set the options of a push configuration of a task."""

    tenant: str = ""
    task_id: NonEmpty
    id: NonEmpty
    events: PushEvents


class PushOptionsResponse(A2AStruct, frozen=True, kw_only=True):
    """The options of a push configuration."""

    task_id: str
    id: str
    events: PushEvents


class GetPushHistoryRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for the deliveries of one configuration of a task, or of all without an id."""

    tenant: str = ""
    task_id: NonEmpty
    id: str = ""


class PushAttempt(A2AStruct, frozen=True, kw_only=True):
    """An attempt of a delivery. ``duration`` is in ms; ``status`` is 0 without a response.

    ``error`` is empty after a success; ``next`` is the time of the next attempt.
    """

    number: int
    at: Timestamp
    duration: int = 0
    status: int = 0
    error: str = ""
    next: Timestamp | None = None
    delivery_id: str = ""


class PushHistory(A2AStruct, frozen=True, kw_only=True):
    """The deliveries of a configuration: its state, and its last attempts, the newest first.

    ``state`` is ``active``, ``suspended`` or ``done``; ``note`` is the reason of a suspension, or
    the event that it waits for. ``delivered`` is the number of the last delivered event.
    """

    id: str
    state: str
    note: str = ""
    events: PushEvents
    delivered: int = 0
    attempts: tuple[PushAttempt, ...] = ()

    def __post_init__(self) -> None:
        freeze(self, "attempts")


class GetPushHistoryResponse(A2AStruct, frozen=True, kw_only=True):
    """The histories of configurations, by id."""

    webhooks: tuple[PushHistory, ...] = ()

    def __post_init__(self) -> None:
        freeze(self, "webhooks")


async def _set_options(
    service: A2AService, request: SetPushOptionsRequest, context: CallContext
) -> PushOptionsResponse:
    done: PushOptionsResponse = await _method(service, "set_push_options")(request, context)
    return done


async def _get_history(
    service: A2AService, request: GetPushHistoryRequest, context: CallContext
) -> GetPushHistoryResponse:
    found: GetPushHistoryResponse = await _method(service, "get_push_history")(request, context)
    return found


def _method(service: A2AService, name: str) -> Any:
    """Return a method of an agent's service, which must have push notifications."""
    method = getattr(service, name, None)
    if method is None:
        raise PushNotificationNotSupportedError
    return method


SET_PUSH_OPTIONS = method(
    PUSH_DELIVERY,
    "push/options/set",
    SetPushOptionsRequest,
    PushOptionsResponse,
    _set_options,
    path="/push:setOptions",
)

PUSH_HISTORY = method(
    PUSH_DELIVERY,
    "push/history",
    GetPushHistoryRequest,
    GetPushHistoryResponse,
    _get_history,
    path="/push:history",
    safe=True,
)


class PushDelivery(Extension):
    """The events that a webhook receives, and their delivery history. All agents with push have it.

    In the metadata of a request: ``PushDelivery.says(PushOptions(events="significant"))``.
    """

    uri = PUSH_DELIVERY
    description = "Which events a webhook receives (push/options/set), and past deliveries."
    methods = (SET_PUSH_OPTIONS, PUSH_HISTORY)
    data = PushOptions
