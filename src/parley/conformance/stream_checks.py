"""Checks of streams: how they begin, what is in them, and how they end."""

from __future__ import annotations

import json
from typing import Any

from parley.conformance.probe import MISSING_TASK, Probe, Streamed, last_state
from parley.conformance.verdicts import OVER_HTTP, Checks, ConformanceViolation, NotApplicable
from parley.model.errors import TaskNotFoundError, UnsupportedOperationError, an
from parley.model.operations import SubscribeToTaskRequest
from parley.model.parts import Message
from parley.model.tasks import Event, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from parley.wire.sse import SseParser

check = Checks()
NEW = ("1.0",)


async def _streamed(probe: Probe) -> Streamed:
    streamed = await probe.stream(probe.texts.task or probe.texts.text)
    streamed.given()
    return streamed


@check(
    "STREAM-1", "MUST", "3.1.2", "A stream begins with the task, or is one message", versions=NEW
)
async def _(probe: Probe) -> None:
    events = (await _streamed(probe)).events
    if isinstance(events[0], Message):
        if len(events) > 1:
            raise ConformanceViolation(f"{len(events) - 1} events follow the message")
    elif not isinstance(events[0], Task):
        raise ConformanceViolation(f"the first event is {an(type(events[0]).__name__)}")


@check("STREAM-2", "MUST", "3.1.2", "A stream ends when its task has ended")
async def _(probe: Probe) -> None:
    streamed = await _streamed(probe)
    state = last_state(streamed.events)
    if state is None:
        raise NotApplicable("the agent answers directly")
    if state.is_interrupted:
        raise NotApplicable("the agent asked back; --task names a text whose task ends by itself")
    if not state.is_terminal:
        raise ConformanceViolation(f"the stream ended, and the last state in it is {state}")
    if not streamed.closed:
        raise ConformanceViolation(
            f"the task is {state}, and the stream is still open after a while"
        )


@check("STREAM-3", "MUST", "3.5.2", "All events of a stream are of one task and context")
async def _(probe: Probe) -> None:
    events = (await _streamed(probe)).events
    tasks = {_ids(event)[0] for event in events if not isinstance(event, Message)}
    contexts = {_ids(event)[1] for event in events}
    if len(tasks) > 1:
        raise ConformanceViolation(f"the events have different taskIds: {sorted(tasks)}")
    if len(contexts) > 1 or "" in contexts:
        raise ConformanceViolation(f"the events have different contextIds: {sorted(contexts)}")


@check("STREAM-4", "MUST", "9.4.2", "A stream is text/event-stream", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    wire = (await _streamed(probe)).wire
    if wire is None or wire.media_type != "text/event-stream":
        raise ConformanceViolation(
            f"its Content-Type is {wire.media_type if wire else 'missing'!r}"
        )


@check(
    "STREAM-5",
    "MUST",
    "9.4.2",
    "Every event is a JSON-RPC response to the request",
    bindings=("JSONRPC",),
)
async def _(probe: Probe) -> None:
    for data in _raw_events(await _streamed(probe)):
        if data.get("jsonrpc") != "2.0":
            raise ConformanceViolation('an event has no "jsonrpc": "2.0"')
        if "id" not in data:
            raise ConformanceViolation("an event has no id")
        if ("result" in data) == ("error" in data):
            raise ConformanceViolation("an event has not exactly one of result and error")


@check(
    "STREAM-6",
    "MUST",
    "3.5.2",
    "Every event has exactly one of its four kinds",
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    for data in _raw_events(await _streamed(probe)):
        members = data.get("result", {}) if probe.binding == "JSONRPC" else data
        kinds = {"task", "message", "statusUpdate", "artifactUpdate"} & members.keys()
        if len(kinds) != 1:
            raise ConformanceViolation(f"an event has {sorted(kinds) or 'none'} of the four kinds")


@check("STREAM-7", "MUST", "3.1.2", "Nothing follows the end of the task")
async def _(probe: Probe) -> None:
    ended = False
    for event in (await _streamed(probe)).events:
        if ended:
            raise ConformanceViolation(f"{an(type(event).__name__)} follows the end of the task")
        ended = isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state.is_terminal


@check("STREAM-8", "MUST", "4.2.2", "The artifacts of a stream are those of the task")
async def _(probe: Probe) -> None:
    events = (await _streamed(probe)).events
    ids = [_ids(event)[0] for event in events if not isinstance(event, Message)]
    if not ids:
        raise NotApplicable("the agent answers directly")
    task = (await probe.get(ids[0])).given()
    told = _texts_of(events)
    kept = {a.artifact_id: "".join(p.text or "" for p in a.parts) for a in task.artifacts}
    if task.state.is_terminal and told != kept:
        raise ConformanceViolation(f"the stream told {told}, and the task has {kept}")


@check("STREAM-9", "MUST", "3.1.6", "Subscribing to an ended task is refused", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.finished()
    _refused(await probe.subscribe(task.id), UnsupportedOperationError, "to an ended task")


@check("STREAM-10", "MUST", "3.1.6", "Subscribing to an unknown task is refused as TaskNotFound")
async def _(probe: Probe) -> None:
    _refused(await probe.subscribe(MISSING_TASK), TaskNotFoundError, "to an unknown task")


@check(
    "STREAM-11",
    "MUST",
    "3.3.4",
    "Streaming that the card does not declare is refused",
    versions=NEW,
)
async def _(probe: Probe) -> None:
    if probe.card.capabilities.streaming:
        raise NotApplicable("the card declares capabilities.streaming")
    said = await probe.call("SubscribeToTask", SubscribeToTaskRequest(id=MISSING_TASK))
    said.refused_with(UnsupportedOperationError, why="to an agent without streaming")


@check("STREAM-12", "MUST", "3.1.6", "A subscription begins with the task", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.running()
    streamed = await probe.subscribe(task.id, events=1)
    if isinstance(streamed.error, UnsupportedOperationError):
        raise NotApplicable("the task ended first; --slow names a text for longer work")
    first = streamed.given()[0]
    if not isinstance(first, Task) or first.id != task.id:
        raise ConformanceViolation(f"the first event is {an(type(first).__name__)}")


@check(
    "OLD-3",
    "MUST",
    "0.3:7.2.2",
    "The last status of a stream is final",
    versions=("0.3",),
    bindings=("JSONRPC",),
)
async def _(probe: Probe) -> None:
    told = [data.get("result", {}) for data in _raw_events(await _streamed(probe))]
    updates = [each for each in told if each.get("kind") == "status-update"]
    if not updates:
        raise NotApplicable("the stream has no status update")
    if updates[-1].get("final") is not True:
        raise ConformanceViolation(
            f"the last status update has final: {updates[-1].get('final')!r}"
        )


def _refused(streamed: Streamed, kind: type[Exception], what: str) -> None:
    if streamed.error is None:
        raise ConformanceViolation(
            f"SubscribeToTask {what} was answered with {len(streamed.events)} events"
        )
    if not isinstance(streamed.error, kind):
        raise ConformanceViolation(
            f"SubscribeToTask {what} was answered with {type(streamed.error).__name__}: "
            f"{str(streamed.error)[:200]}, not with {kind.__name__}"
        )


def _ids(event: Event) -> tuple[str, str]:
    if isinstance(event, Task):
        return event.id, event.context_id
    if isinstance(event, Message):
        return event.task_id, event.context_id
    return event.task_id, event.context_id


def _texts_of(events: tuple[Event, ...]) -> dict[str, str]:
    told: dict[str, str] = {}
    for event in events:
        if isinstance(event, Task):
            for each in event.artifacts:
                told[each.artifact_id] = "".join(part.text or "" for part in each.parts)
        elif isinstance(event, TaskArtifactUpdateEvent):
            artifact = event.artifact
            text = "".join(part.text or "" for part in artifact.parts)
            before = told.get(artifact.artifact_id, "") if event.append else ""
            told[artifact.artifact_id] = before + text
    return told


def _raw_events(streamed: Streamed) -> list[dict[str, Any]]:
    if streamed.wire is None:
        return []
    if streamed.wire.media_type != "text/event-stream":
        raise NotApplicable("the answer is no stream")
    found = []
    for _, _, data in SseParser().feed(streamed.wire.body):
        try:
            members = json.loads(data)
        except ValueError:
            raise ConformanceViolation(f"an event is not JSON: {data[:80]!r}") from None
        if not isinstance(members, dict):
            raise ConformanceViolation(f"an event is no JSON object: {data[:80]!r}")
        found.append(members)
    return found
