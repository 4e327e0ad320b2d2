"""What happened between two looks at a task, told as events."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from parley.client.calls.stream_reader import diff
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from parley.store.fold import Fold
from tests.client.log_agent import IDS, REPORT, chunk, fold_of, says, task


def test_a_task_that_was_not_known_is_told_as_itself() -> None:
    now = fold_of(REPORT)
    assert diff(None, now) == [now]
    assert diff(Task(id="other", status=now.status), now) == [now]


def test_nothing_new_is_nothing_to_tell() -> None:
    for end in range(1, len(REPORT) + 1):
        now = fold_of(REPORT[:end])
        assert diff(now, now) == []


def test_a_grown_artifact_is_told_by_what_it_grew() -> None:
    assert diff(fold_of(REPORT[:3]), fold_of(REPORT[:4])) == [REPORT[3]]


def test_text_that_an_agent_joins_into_one_part_is_told_by_what_it_grew() -> None:
    before = fold_of(REPORT[:4])
    joined = Artifact(artifact_id="a-1", name="report", parts=(Part(text="one two three "),))
    now = Task(id="t-1", context_id="c-1", status=before.status, artifacts=(joined,))
    assert diff(before, now) == [chunk("three ")]


def test_a_replaced_artifact_is_told_whole() -> None:
    before = fold_of(REPORT[:4])
    other = Artifact(artifact_id="a-1", name="report", parts=(Part(text="another"),))
    now = Task(id="t-1", context_id="c-1", status=before.status, artifacts=(other,))
    assert diff(before, now) == [TaskArtifactUpdateEvent(**IDS, artifact=other)]


def test_status_messages_that_came_and_went_are_told_before_the_status() -> None:
    asked = Message(message_id="u", role=Role.USER, parts=(Part(text="go"),))
    fold = Fold(Task(id="t-1", context_id="c-1", status=TaskStatus(state=TaskState.SUBMITTED)))
    before = fold.task
    for text in ("first", "second", "third"):
        fold.apply(says(TaskState.WORKING, text))
    now = fold.task
    told = diff(before, Task(**{**_fields(now), "history": (asked, *now.history)}))
    assert [event.status.message.text for event in told] == ["first", "second", "third"]


def _fields(task: Task) -> dict:
    return {name: getattr(task, name) for name in task.__struct_fields__}


texts = some.text(some.characters(codec="ascii", categories=["L"]), min_size=1, max_size=3)


@some.composite
def logs(draw) -> list[Event]:
    events: list[Event] = [task()]
    for n in range(draw(some.integers(0, 12))):
        if draw(some.booleans()):
            events.append(
                says(TaskState.WORKING, draw(texts) if draw(some.booleans()) else "", f"m{n}")
            )
            continue
        parts = draw(
            some.lists(
                some.one_of(texts.map(_text), some.integers().map(_data)), min_size=1, max_size=3
            )
        )
        artifact = Artifact(artifact_id=draw(some.sampled_from("ab")), parts=tuple(parts))
        events.append(
            TaskArtifactUpdateEvent(**IDS, artifact=artifact, append=draw(some.booleans()))
        )
    if draw(some.booleans()):
        events.append(
            says(draw(some.sampled_from([TaskState.COMPLETED, TaskState.INPUT_REQUIRED])))
        )
    return events


def _text(text: str) -> Part:
    return Part(text=text)


def _data(value: int) -> Part:
    return Part(data=value)


@given(logs(), some.data())
def test_the_events_told_turn_the_earlier_task_into_the_later(log: list[Event], data) -> None:
    end = data.draw(some.integers(1, len(log)))
    before, now = fold_of(log[:end]), fold_of(log)
    fold = Fold(before)
    told = diff(before, now)
    for event in told:
        fold.apply(event)
    assert fold.task.status == now.status
    assert [a.artifact_id for a in fold.task.artifacts] == [a.artifact_id for a in now.artifacts]
    assert [a.text for a in fold.task.artifacts] == [a.text for a in now.artifacts]
    assert {m.message_id for m in fold.task.history} == {m.message_id for m in now.history}
    assert sum(isinstance(event, TaskStatusUpdateEvent) for event in told) <= len(log) - end
