"""Tasks, replies and operations of A2A as results and parameters."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.envelope.answers import (
    action_of,
    operation_of,
    read_operation,
    read_operation_result,
    read_stream_event,
    results_of,
    status_of,
    write_operation,
    write_operation_result,
    write_stream_event,
)
from parley.envelope.messages import UnknownAction, task_error
from parley.model.errors import InvalidAgentResponseError, InvalidParamsError
from parley.model.operations import (
    OPERATIONS,
    GetTaskRequest,
    Operation,
    SendMessageResponse,
    StreamResponse,
)
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import StreamItem
from parley.model.tasks import Task, TaskState, TaskStatus
from tests.kit.strategies import value_of


def said(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.AGENT, parts=parts)


def task(state: TaskState, *artifacts: tuple[Part, ...], says: str = "") -> Task:
    message = said(Part(text=says)) if says else None
    made = (Artifact(artifact_id=str(n), parts=parts) for n, parts in enumerate(artifacts))
    return Task(id="t", status=TaskStatus(state=state, message=message), artifacts=tuple(made))


DONE = TaskState.COMPLETED
HITS = [{"title": "a", "confidence": 0.9}, {"title": "b", "confidence": 0.4}]


@pytest.mark.parametrize(
    ("answer", "results"),
    [
        (task(DONE, (Part(data=HITS),)), tuple(HITS)),
        (said(Part(data=HITS)), tuple(HITS)),
        (said(Part(data=[])), ()),
        (task(DONE, (Part(data=None),)), (None,)),
        (task(DONE, (Part(data=HITS),), (Part(text="x"),)), (HITS, {"text": "x"})),
        (
            task(DONE, (Part(text="to "), Part(text="day")), (Part(text="!"),)),
            ({"text": "to day"}, {"text": "!"}),
        ),
        (
            task(
                DONE,
                (
                    Part(text="a"),
                    Part(raw=b"\xff", filename="f.bin", media_type="a/b"),
                    Part(text="b"),
                ),
            ),
            (
                {"text": "a"},
                {"file": {"raw": "/w==", "filename": "f.bin", "mediaType": "a/b"}},
                {"text": "b"},
            ),
        ),
        (said(Part(url="https://a.example/f")), ({"file": {"url": "https://a.example/f"}},)),
        (task(DONE, says="Done."), ({"text": "Done."},)),
        (task(DONE, (Part(data=1),), says="Done."), (1,)),
        (task(TaskState.INPUT_REQUIRED, (Part(data=1),), says="Which?"), ({"text": "Which?"},)),
        (task(TaskState.AUTH_REQUIRED), ()),
        (task(TaskState.FAILED, (Part(data=1),), says="No."), (1,)),
        (task(TaskState.FAILED, says="No."), ()),
        (task(TaskState.WORKING, says="Looking"), ()),
    ],
    ids=range(15),
)
def test_results_are_what_the_agent_made(answer: Task | Message, results: tuple[Any, ...]) -> None:
    assert results_of(answer) == results


@given(st.one_of(value_of(Task), value_of(Message)))
@settings(max_examples=40)
def test_every_answer_has_results_that_are_json(answer: Task | Message) -> None:
    results = results_of(answer)

    assert msgspec.json.decode(msgspec.json.encode(results), type=tuple[Any, ...]) == results


def test_the_status_and_the_error_say_how_a_task_stands() -> None:
    statuses = {state: status_of(task(state)).value for state in TaskState}

    assert statuses == {
        TaskState.UNSPECIFIED: "accepted",
        TaskState.SUBMITTED: "accepted",
        TaskState.WORKING: "accepted",
        TaskState.COMPLETED: "success",
        TaskState.FAILED: "error",
        TaskState.CANCELED: "error",
        TaskState.REJECTED: "error",
        TaskState.INPUT_REQUIRED: "input-required",
        TaskState.AUTH_REQUIRED: "auth-required",
    }
    for state, status in statuses.items():
        assert (task_error(task(state)) is not None) == (status == "error")
    failed = task_error(task(TaskState.FAILED, says="The printer is on fire."))
    assert failed is not None
    assert (failed.code, failed.message) == ("TASK_FAILED", "The printer is on fire.")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
@given(data=st.data())
@settings(max_examples=8)
def test_every_operation_goes_there_and_back(operation: Operation, data: st.DataObject) -> None:
    assert operation_of(action_of(operation)) is operation
    request = data.draw(value_of(operation.request))
    assert read_operation(operation, write_operation(operation, request)) == request

    answer = data.draw(value_of(operation.response))
    if isinstance(answer, StreamResponse):
        event = answer.payload
        assert read_stream_event(write_stream_event(StreamItem(event))) == event
        return
    if isinstance(answer, SendMessageResponse):
        answer = answer.payload
    result = write_operation_result(operation, answer)
    assert read_operation_result(operation, result) == answer


def test_an_operation_that_a2a_does_not_have_is_refused_with_those_it_has() -> None:
    with pytest.raises(UnknownAction, match=r"a2a\.SendMessage, "):
        operation_of("a2a.getTask")

    assert operation_of("search") is None


def test_wrong_parameters_of_an_operation_are_named() -> None:
    get_task = next(each for each in OPERATIONS if each.request is GetTaskRequest)

    for parameters, field in (({}, "id"), ({"id": "t", "historyLength": "x"}, "historyLength")):
        with pytest.raises(InvalidParamsError) as caught:
            read_operation(get_task, parameters)
        assert [each.field for each in caught.value.violations] == [field]
    for parameters in (None, [], "t"):
        with pytest.raises(InvalidParamsError):
            read_operation(get_task, parameters)


def test_a_result_that_is_none_is_the_mistake_of_the_agent() -> None:
    for operation in OPERATIONS[:3]:
        if not operation.streaming:
            with pytest.raises(InvalidAgentResponseError):
                read_operation_result(operation, "hello")
    with pytest.raises(InvalidAgentResponseError):
        read_stream_event({"hello": 1})
