"""A server whose agent follows a test's script, for tests of bindings and their limits.

``app_of(Scripted(send_message=...))`` is an app whose operations are the functions of a test;
``Scripted`` records the calls. ``Standstill`` is a stream that ends when its reader leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

from parley.model.cards import AgentCapabilities, AgentCard, AgentExtension, AgentSkill
from parley.model.operations import OPERATIONS, Empty, ListTasksResponse
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import CallContext, StreamItem
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatus
from parley.server.app import App, Endpoint, create_app
from parley.server.endpoint import Interfaces

EXTENSION = "urn:example:numbers:v1"

_METHODS = {operation.method for operation in OPERATIONS}


class Asked(NamedTuple):
    """One call of the service."""

    method: str
    request: Any
    context: CallContext


class Scripted:
    """Answers each operation with a function of the test, and records calls."""

    def __init__(self, **script: Callable[[Any, CallContext], Any]) -> None:
        self.script: dict[str, Callable[[Any, CallContext], Any]] = {**DEFAULTS, **script}
        self.asked: list[Asked] = []

    def forget(self) -> None:
        """Reset for another test."""
        self.script = dict(DEFAULTS)
        self.asked = []

    @property
    def context(self) -> CallContext:
        """Return the context of the last call."""
        return self.asked[-1].context

    def __getattr__(self, name: str) -> Any:
        if name not in _METHODS:
            raise AttributeError(name)

        def call(request: Any, context: CallContext) -> Any:
            self.asked.append(Asked(name, request, context))
            return self.script[name](request, context)

        return call


def reply(text: str = "It is noon.") -> Message:
    return Message(message_id="r-1", context_id="c-1", role=Role.AGENT, parts=(Part(text=text),))


def task(state: TaskState = TaskState.WORKING) -> Task:
    return Task(id="t-1", context_id="c-1", status=TaskStatus(state=state))


def chunk(text: str) -> TaskArtifactUpdateEvent:
    artifact = Artifact(artifact_id="a-1", parts=(Part(text=text),))
    return TaskArtifactUpdateEvent(task_id="t-1", context_id="c-1", artifact=artifact, append=True)


async def _reply(request: Any, context: CallContext) -> Message:
    return reply()


async def _task(request: Any, context: CallContext) -> Task:
    return task()


async def _page(request: Any, context: CallContext) -> ListTasksResponse:
    return ListTasksResponse(tasks=(task(),), next_page_token="", page_size=50, total_size=1)


async def _empty(request: Any, context: CallContext) -> Empty:
    return Empty()


async def _three(request: Any, context: CallContext) -> AsyncIterator[StreamItem]:
    yield StreamItem(task(), 1)
    yield StreamItem(chunk("one"), 2)
    yield StreamItem(chunk("two"), 3)


DEFAULTS: dict[str, Callable[[Any, CallContext], Any]] = {
    "send_message": _reply,
    "send_streaming_message": _three,
    "get_task": _task,
    "list_tasks": _page,
    "cancel_task": _task,
    "subscribe_to_task": _three,
    "delete_task_push_notification_config": _empty,
}


class Standstill:
    """A stream that yields the given events, then waits until it is closed."""

    def __init__(self, *first: StreamItem) -> None:
        self._first = first
        self.closed = asyncio.Event()
        self.open = 0

    async def __call__(self, request: Any, context: CallContext) -> AsyncIterator[StreamItem]:
        self.open += 1
        try:
            for item in self._first:
                yield item
            await asyncio.get_running_loop().create_future()
        finally:
            self.open -= 1
            self.closed.set()


def card_of(name: str = "Scripted", **capabilities: Any) -> Callable[[Interfaces], AgentCard]:
    """Return a function that creates an agent's card, by default with streaming."""
    given = AgentCapabilities(**{"streaming": True, **capabilities})

    def card(interfaces: Interfaces) -> AgentCard:
        return AgentCard(
            name=name,
            description="Does what a test tells it.",
            version="1.0.0",
            supported_interfaces=interfaces,
            capabilities=given,
            default_input_modes=("text/plain",),
            default_output_modes=("text/plain",),
            skills=(AgentSkill(id="s", name="S", description="Does it.", tags=("test",)),),
        )

    return card


def extension(*, required: bool = False, uri: str = EXTENSION) -> AgentExtension:
    return AgentExtension(uri=uri, required=required)


def app_of(service: Any = None, **options: Any) -> App:
    """Return an app with one agent, at the root."""
    card = options.pop("card", None) or card_of()
    return create_app({"": Endpoint(service or Scripted(), card)}, **options)
