"""Answers: recipients, and tasks, replies and operations of A2A as results."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.envelope import answers
from parley.envelope.answers import (
    action_of,
    operation_of,
    read_operation,
    read_operation_result,
    read_stream_event,
    results_of,
    write_operation,
    write_operation_result,
    write_stream_event,
)
from parley.envelope.codec import read_message, write_message
from parley.envelope.messages import (
    ENVELOPE_ERRORS,
    Envelope,
    MessageSource,
    ResponsePayload,
    Status,
    a2a_error,
)
from parley.model.errors import ERRORS, A2AError, FieldViolation, InvalidAgentResponseError
from parley.model.operations import OPERATIONS, Operation, SendMessageResponse, StreamResponse
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import StreamItem
from parley.model.tasks import Task, TaskState, TaskStatus
from tests.kit.strategies import value_of
from tests.wire.envelope.messages import request


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


@pytest.mark.slow
@given(st.one_of(value_of(Task), value_of(Message)))
@settings(max_examples=40)
def test_every_answer_has_results_that_are_json(answer: Task | Message) -> None:
    results = results_of(answer)

    assert msgspec.json.decode(msgspec.json.encode(results), type=tuple[Any, ...]) == results


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


def test_a_result_that_is_none_is_the_mistake_of_the_agent() -> None:
    for operation in OPERATIONS[:3]:
        if not operation.streaming:
            with pytest.raises(InvalidAgentResponseError):
                read_operation_result(operation, "hello")
    with pytest.raises(InvalidAgentResponseError):
        read_stream_event({"hello": 1})


# -- answers: recipients, requests, and errors -----------------------------------------------------


AGENT = MessageSource(agent_id="knowledge-base-001")


def asked() -> Envelope:
    return read_message(json.dumps(request()))


def over_the_wire(error: A2AError) -> A2AError:
    answer = read_message(write_message(answers.error_response(asked(), error, source=AGENT)))
    assert isinstance(answer.payload, ResponsePayload)
    assert answer.payload.status == Status.ERROR
    assert answer.payload.error is not None
    return a2a_error(answer.payload.error)


@pytest.mark.parametrize("kind", [*ERRORS, *ENVELOPE_ERRORS.values()], ids=lambda e: e.reason)
def test_every_error_arrives_as_what_it_was(kind: type[A2AError]) -> None:
    error = kind(
        "what was wrong",
        metadata={"taskId": "t-1"},
        violations=(FieldViolation("payload.action", "expected a skill"),),
        details=({"@type": "type.example/More", "more": 1},),
        retry_after=1.5,
    )

    arrived = over_the_wire(error)

    assert type(arrived) is kind
    assert arrived.message == "what was wrong"
    assert arrived.metadata == {"taskId": "t-1"}
    assert arrived.violations == error.violations
    assert arrived.details == error.details
    assert arrived.retry_after == 1.5


def test_no_code_of_the_protocol_is_one_of_a2a() -> None:
    assert not ENVELOPE_ERRORS.keys() & {error.reason for error in ERRORS}
