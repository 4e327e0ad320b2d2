"""The method ``tasks/spans`` (``docs/reference/extensions/task-spans.md``)."""

from __future__ import annotations

from typing import Any

import msgspec

from parley.model.extensions import Extension, method
from parley.model.operations import GetTaskRequest
from parley.model.service import A2AService, CallContext
from parley.model.struct import A2AStruct, NonEmpty, freeze

TASK_SPANS = "urn:parley:task-spans:v1"


class GetTaskSpansRequest(A2AStruct, frozen=True, kw_only=True):
    """A request for the spans of a task."""

    tenant: str = ""
    task_id: NonEmpty


class GetTaskSpansResponse(A2AStruct, frozen=True, kw_only=True):
    """The spans of a task that the answering process made and still has, by their begin.

    Each is a ``parley.observe.recent.RecentSpan``.
    """

    spans: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        freeze(self, "spans")


async def _spans(
    service: A2AService, request: GetTaskSpansRequest, context: CallContext
) -> GetTaskSpansResponse:
    from parley.observe.recent import recent

    await service.get_task(
        GetTaskRequest(tenant=request.tenant, id=request.task_id, history_length=0), context
    )  # raises the error of a caller who may not see the task
    found = recent.of_task(request.task_id)
    return GetTaskSpansResponse(spans=tuple(msgspec.to_builtins(found)))


class TaskSpans(Extension):
    """Callers see the spans of their tasks. Servers with tracing and a page have it."""

    uri = TASK_SPANS
    description = "The spans of a task that this process has made: tasks/spans."
    methods = (
        method(
            TASK_SPANS,
            "tasks/spans",
            GetTaskSpansRequest,
            GetTaskSpansResponse,
            _spans,
            verb="GET",
            path="/tasks/{task_id}/spans",
            safe=True,
        ),
    )
