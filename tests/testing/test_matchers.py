"""Matchers of events, and the output of failed assertions."""

from __future__ import annotations

import re

import pytest

from parley.model.parts import Artifact, Message, Part, Role
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.testing import (
    anything,
    artifact,
    assert_events,
    completed,
    containing,
    failed,
    input_required,
    message,
    submitted,
    working,
)


def said(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.AGENT, parts=parts)


def update(state: TaskState, text: str = "", *, data: object = None, **more: object) -> Event:
    parts = (Part(text=text),) if data is None else (Part(text=text), Part(data=data))
    status = TaskStatus(state=state, message=said(*parts) if text else None)
    return TaskStatusUpdateEvent(task_id="t", context_id="c", status=status, **more)


def chunk(text: str, *, append: bool = False, last: bool = False, id: str = "a") -> Event:
    return TaskArtifactUpdateEvent(
        task_id="t",
        context_id="c",
        artifact=Artifact(artifact_id=id, name="report", parts=(Part(text=text),)),
        append=append,
        last_chunk=last,
    )


EVENTS: list[Event] = [
    Task(id="t", status=TaskStatus(state=TaskState.SUBMITTED)),
    update(TaskState.WORKING, "Looking up the rates"),
    chunk("97"),
    chunk(".20", append=True, last=True),
    update(TaskState.COMPLETED),
]


def printed(expected: list[object], events: list[Event] = EVENTS) -> str:
    with pytest.raises(AssertionError) as raised:
        assert_events(events, expected)
    return str(raised.value)


def test_matchers_equal_what_they_describe() -> None:
    assert [
        submitted(),
        working("Looking up the rates"),
        artifact("97", name="report", append=False, last=False),
        artifact(append=True, last=True),
        completed(),
    ] == EVENTS
    assert EVENTS[1] == working(containing("rates"))
    assert EVENTS[1] == working(re.compile(r"rates$"))
    assert EVENTS[1] == anything()
    assert EVENTS[1] != working("Looking")
    assert EVENTS[1] != completed()
    assert EVENTS[1] != working(data={})
    assert working() != 3
    assert working("a") == working("a")
    assert working("a") != working("b")
    assert message("Hello") == said(Part(text="Hello"))


def test_data_and_metadata_are_matched() -> None:
    asked = update(TaskState.INPUT_REQUIRED, "When?", data={"a": 1, "b": [1, 2]}, metadata={"x": 1})
    assert asked == input_required("When?", data={"a": 1, "b": [1, 2]})
    assert asked == input_required(data=containing({"b": containing([2])}))
    assert asked == input_required(metadata={"x": 1})
    assert asked != input_required(metadata={"x": 2})
    assert asked != input_required(data={"a": 1})


def test_the_text_of_a_task_is_that_of_its_status_or_of_its_artifacts() -> None:
    task = Task(
        id="t",
        status=TaskStatus(state=TaskState.FAILED, message=said(Part(text="No rate"))),
        artifacts=(Artifact(artifact_id="a", parts=(Part(text="so far"),)),),
    )
    assert task == failed("No rate")
    assert task == failed("so far", artifacts=[artifact("so far")])
    assert task != failed("else")
    assert task != failed(artifacts=[])


def test_events_that_are_expected_pass() -> None:
    working_then_done = [submitted(), working(), artifact("97.20"), completed()]
    assert_events(EVENTS, working_then_done)
    assert_events(iter(EVENTS), [..., completed()])
    assert_events(EVENTS, [submitted(), ..., artifact("97.20", name="report"), ...])
    assert_events(EVENTS, [submitted(), anything(), ..., completed()])
    assert_events(EVENTS, [...])
    assert_events([], [])
    assert_events(EVENTS, [*EVENTS[:2], ...])
    assert_events(EVENTS, [..., artifact(), artifact(), completed()], join_chunks=False)


def test_the_difference_shows_what_was_expected_and_what_came() -> None:
    expected = [submitted(), working("Looking up rates"), artifact("97.20", name="rate")]
    assert printed([*expected, completed()]) == (
        "these are not the events:\n"
        "    submitted()\n"
        "  - working('Looking up rates')\n"
        "  + working('Looking up the rates')\n"
        "      text: 'Looking up the rates' is not 'Looking up rates'\n"
        "  - artifact('97.20', name='rate')\n"
        "  + artifact('97.20', name='report')\n"
        "      name: 'report' is not 'rate'\n"
        "    completed()"
    )


def test_the_difference_shows_what_is_missing_and_what_is_too_much() -> None:
    assert printed([submitted(), completed()]) == (
        "these are not the events:\n"
        "    submitted()\n"
        "  + working('Looking up the rates')\n"
        "  + artifact('97.20', name='report')\n"
        "    completed()"
    )
    assert "  - failed('no')" in printed([..., failed("no")])


def test_a_matcher_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected is a list: \[completed\(\)\]"):
        assert_events(EVENTS, completed())  # type: ignore[arg-type]
