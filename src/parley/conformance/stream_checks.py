"""Checks of streams: their first event, their contents, and their end."""

from __future__ import annotations

import asyncio
from typing import Any

from parley.conformance.probe import MISSING_TASK, CallResult, Probe
from parley.conformance.verdicts import (
    NEW,
    OLD,
    OVER_HTTP,
    REST,
    RPC,
    Checks,
    NotApplicable,
    fail_if,
)
from parley.model.errors import TaskNotFoundError, UnsupportedOperationError, an
from parley.model.parts import Message
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

check = Checks()


async def _streamed(probe: Probe) -> CallResult:
    streamed = await probe.stream(probe.task_text)
    streamed.given()
    return streamed


@check(
    "STREAM-1",
    "MUST",
    "3.1.2",
    "A stream begins with the task, or is a single message",
    versions=NEW,
)
async def _(probe: Probe) -> None:
    first, *others = (await _streamed(probe)).value
    if isinstance(first, Message):
        fail_if(others, f"{len(others)} events follow the message")
    else:
        _is_task(first)


@check("STREAM-2", "MUST", "3.1.2", "A stream ends when its task has ended")
async def _(probe: Probe) -> None:
    streamed = await _streamed(probe)
    state = _last_state(streamed.value)
    if state.is_interrupted:
        raise NotApplicable(
            "the agent asked a question; give --task a text whose task ends by itself"
        )
    fail_if(not state.is_terminal, f"the stream ended, and the last state in it is {state}")
    still_open = f"the task is {state}, and the stream is still open after a while"
    fail_if(not streamed.closed, still_open)


@check("STREAM-3", "MUST", "3.5.2", "All events of a stream belong to one task and context")
async def _(probe: Probe) -> None:
    events = (await _streamed(probe)).value
    tasks = {_ids(event)[0] for event in events if not isinstance(event, Message)}
    contexts = {_ids(event)[1] for event in events}
    fail_if(len(tasks) > 1, f"the events have different taskIds: {sorted(tasks)}")
    several = len(contexts) > 1 or "" in contexts
    fail_if(several, f"the events have different contextIds: {sorted(contexts)}")


@check("STREAM-4", "MUST", "9.4.2", "A stream is text/event-stream", bindings=OVER_HTTP)
async def _(probe: Probe) -> None:
    wire = (await _streamed(probe)).wire
    kind = wire.media_type if wire else "missing"
    fail_if(kind != "text/event-stream", f"its Content-Type is {kind!r}")


@check("STREAM-5", "MUST", "9.4.2", "Every event is a JSON-RPC response", bindings=RPC)
async def _(probe: Probe) -> None:
    for data in (await _streamed(probe)).events:
        fail_if(data.get("jsonrpc") != "2.0", 'an event has no "jsonrpc": "2.0"')
        fail_if("id" not in data, "an event has no id")
        both = ("result" in data) == ("error" in data)
        fail_if(both, "an event has not exactly one of result and error")


@check(
    *("STREAM-6", "MUST", "3.5.2", "Every event has exactly one of its four kinds"),
    versions=NEW,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    for data in (await _streamed(probe)).events:
        members = data.get("result", data)
        kinds = {"task", "message", "statusUpdate", "artifactUpdate"} & members.keys()
        fail_if(len(kinds) != 1, f"an event has {sorted(kinds) or 'none'} of the four kinds")


@check("STREAM-7", "MUST", "3.1.2", "Nothing follows the end of the task")
async def _(probe: Probe) -> None:
    ended = False
    for event in (await _streamed(probe)).value:
        fail_if(ended, f"{an(type(event).__name__)} follows the end of the task")
        ended = isinstance(event, Task | TaskStatusUpdateEvent) and event.status.state.is_terminal


@check("STREAM-8", "MUST", "4.2.2", "The artifacts of a stream equal the task's artifacts")
async def _(probe: Probe) -> None:
    events = (await _streamed(probe)).value
    _last_state(events)
    task = (await probe.get(_ids(events[-1])[0])).given()
    told = _texts_of(events)
    kept = {a.artifact_id: "".join(p.text or "" for p in a.parts) for a in task.artifacts}
    differ = task.state.is_terminal and told != kept
    fail_if(differ, f"the stream has {told}, but the task has {kept}")


@check("STREAM-9", "MUST", "3.1.6", "Subscribing to an ended task is rejected", versions=NEW)
async def _(probe: Probe) -> None:
    said = await probe.subscribe((await probe.finished()).id)
    said.rejected_with(UnsupportedOperationError, why="to an ended task")


@check("STREAM-10", "MUST", "3.1.6", "Subscribing to an unknown task is rejected with TaskNotFound")
async def _(probe: Probe) -> None:
    said = await probe.subscribe(MISSING_TASK)
    said.rejected_with(TaskNotFoundError, why="to an unknown task")


@check(
    "STREAM-11",
    "MUST",
    "3.3.4",
    "Stream requests are rejected unless the card declares streaming",
    versions=NEW,
)
async def _(probe: Probe) -> None:
    if probe.card.capabilities.streaming:
        raise NotApplicable("the card declares capabilities.streaming")
    for said in (
        await probe.call("SubscribeToTask", id=MISSING_TASK),
        await probe.send(operation="SendStreamingMessage"),
    ):
        said.rejected_with(UnsupportedOperationError, why="to an agent without streaming")


@check("STREAM-12", "MUST", "3.1.6", "A subscription begins with the task", versions=NEW)
async def _(probe: Probe) -> None:
    task = await probe.running()
    said = await probe.subscribe(task.id, events=1)
    if isinstance(said.error, UnsupportedOperationError):
        raise NotApplicable(
            "the task ended first; give --slow a text that takes the agent some seconds"
        )
    first = said.given()[0]
    _is_task(first)
    fail_if(first.id != task.id, f"the first event is the task {first.id!r}")


@check("STREAM-13", "MUST", "3.1.2", "A stream request for an ended task is rejected", versions=NEW)
async def _(probe: Probe) -> None:
    said = await probe.stream(task=(await probe.finished()).id)
    said.rejected_with(UnsupportedOperationError, why="for a task that has ended")


@check(
    "STREAM-14",
    "MUST",
    "3.1.2",
    "A stream request for an unknown task is rejected with TaskNotFound",
)
async def _(probe: Probe) -> None:
    said = await probe.stream(task=MISSING_TASK)
    said.rejected_with(TaskNotFoundError, why="for a task that does not exist")


@check(
    *(
        "STREAM-15",
        "MAY",
        "11.7",
        "A stream request is rejected with a plain error, not in a stream",
    ),
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    for said in (await probe.subscribe(MISSING_TASK), await probe.stream(task=MISSING_TASK)):
        said.rejected(why="for a task that does not exist")
        wire = said.wire
        fail_if(wire and wire.media_type == "text/event-stream", "the error came in a stream")
        status = wire.status if wire and probe.binding == "HTTP+JSON" else 404
        fail_if(status != 404, f"the status of the error is {status}, not 404")


@check("STREAM-16", "MUST", "3.2.4", "A stream obeys historyLength", versions=NEW)
async def _(probe: Probe) -> None:
    for most in (0, 1):
        for event in (await probe.stream(probe.task_text, history=most)).given():
            found = len(event.history) if isinstance(event, Task) else 0
            fail_if(found > most, f"historyLength {most}, and a task has {found} messages")


@check("STREAM-17", "MAY", "3.1.2", "The stream of a message ends when the agent asks a question")
async def _(probe: Probe) -> None:
    await probe.asking()
    streamed = await probe.stream(probe.texts.ask or probe.texts.text)
    state = _last_state(streamed.given())
    asked = state is TaskState.INPUT_REQUIRED and streamed.closed
    fail_if(not asked, f"the last state in it is {state}, and it is {_open(streamed)}")


@check("STREAM-18", "MUST", "3.1.6", "A subscription lasts until the task ends", versions=NEW)
async def _(probe: Probe) -> None:
    (told,) = await _watched(probe, 1)
    state = _last_state(told.given())
    ended = state.is_terminal and told.closed
    fail_if(not ended, f"the last state in it is {state}, and it is {_open(told)}")


@check(
    "STREAM-19",
    "MUST",
    "3.5.2",
    "All streams of a task have the same events in the same order",
    versions=NEW,
)
async def _(probe: Probe) -> None:
    first, second = (said.given() for said in await _watched(probe, 2))
    fail_if(first != second, f"one stream has {_kinds(first)}, another has {_kinds(second)}")


@check("STREAM-20", "MUST", "3.5.2", "Closing one stream does not end another", versions=NEW)
async def _(probe: Probe) -> None:
    told, _ = await _watched(probe, 2, closes=True)
    fail_if(len(told.given()) < 2, "nothing came after another stream was closed")


@check("STREAM-21", "MAY", "11.3", "Subscribing works with GET and with POST", bindings=REST)
async def _(probe: Probe) -> None:
    task = await probe.asking()
    for verb in ("GET", "POST"):
        _is_task((await probe.subscribe(task.id, events=1, verb=verb)).given()[0])


@check(
    *("OLD-3", "MUST", "0.3:7.2.2", "Only the last status update of a stream is final"),
    versions=OLD,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    await _final(probe, probe.task_text)


@check(
    *("OLD-5", "MAY", "0.3:7.2.2", "The status in which the agent asks a question is final"),
    versions=OLD,
    bindings=OVER_HTTP,
)
async def _(probe: Probe) -> None:
    await probe.asking()
    await _final(probe, probe.texts.ask or probe.texts.text)


@check("OLD-6", "MAY", "0.3:7.9", "A subscription of 0.3 begins with the task", versions=OLD)
async def _(probe: Probe) -> None:
    said = await probe.subscribe((await probe.asking()).id, events=1)
    _is_task(said.given()[0])


@check("OLD-4", "MAY", "0.3:7.9", "A subscription of 0.3 ends with its final update", versions=OLD)
async def _(probe: Probe) -> None:
    (told,) = await _watched(probe, 1)
    _last_state(told.given())
    fail_if(not told.closed, "the stream is still open after a while")


async def _final(probe: Probe, text: str) -> None:
    """Require that the last status update of a message's stream is final, and no other."""
    told = [data.get("result", data) for data in (await probe.stream(text)).events]
    told = [each.get("statusUpdate", each) for each in told]
    finals = [each.get("final", False) for each in told if "status" in each and "taskId" in each]
    if not finals:
        raise NotApplicable("the stream has no status update")
    fail_if(finals[-1] is not True, f"the last status update has final: {finals[-1]!r}")
    fail_if(True in finals[:-1], "a status update before the last one is final")


async def _watched(probe: Probe, count: int, *, closes: bool = False) -> list[CallResult]:
    """Return the streams of a task that asked a question and received the answer.

    ``closes``: the last stream is closed at its first event, before the answer.
    """
    probe.need_streams()
    task = await probe.asking()
    begun = [asyncio.Event() for _ in range(count)]
    streams = [
        asyncio.ensure_future(
            probe.subscribe(task.id, begun=each, events=int(closes and each is begun[-1]))
        )
        for each in begun
    ]
    try:
        for each in begun:
            await each.wait()
        if closes:
            await streams[-1]
        (await probe.send("Here it is", task=task.id)).given()
        told = list(await asyncio.gather(*streams))
    finally:
        for stream in streams:
            stream.cancel()
    if not told[0].closed and not (await probe.get(task.id)).given().state.is_terminal:
        raise NotApplicable("the answer to the question did not end the task")
    return told


def _open(streamed: CallResult) -> str:
    return "closed" if streamed.closed else "still open"


def _kinds(events: tuple[Event, ...]) -> list[str]:
    return [type(event).__name__ for event in events]


def _is_task(event: Event) -> None:
    what = f"the first event is {an(type(event).__name__)}"
    fail_if(not isinstance(event, Task), what)


def _last_state(events: tuple[Event, ...]) -> TaskState:
    """Return the last state in the events of a stream."""
    for event in reversed(events):
        if isinstance(event, Task | TaskStatusUpdateEvent):
            return event.status.state
    raise NotApplicable("the agent answers directly")


def _ids(event: Any) -> tuple[str, str]:
    return event.id if isinstance(event, Task) else event.task_id, event.context_id


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
