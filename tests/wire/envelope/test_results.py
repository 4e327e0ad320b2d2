"""Answers: whom they are for, and tasks, replies and operations of A2A as results."""

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
    status_of,
    write_operation,
    write_operation_result,
    write_stream_event,
)
from parley.envelope.codec import read_message, write_message
from parley.envelope.messages import (
    ENVELOPE_ERRORS,
    Envelope,
    EnvelopeError,
    MessageSource,
    ResponsePayload,
    Status,
    UnknownAction,
    a2a_error,
    envelope_error,
    task_error,
)
from parley.model.errors import (
    ERRORS,
    A2AError,
    FieldViolation,
    InvalidAgentResponseError,
    InvalidParamsError,
    OverloadedError,
    PeerError,
    TaskNotFoundError,
)
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


# -- answers: whom they are for, what they answer, and errors in them ------------------------------


AGENT = MessageSource(agent_id="knowledge-base-001")


def asked() -> Envelope:
    return read_message(json.dumps(request()))


def over_the_wire(error: A2AError) -> A2AError:
    answer = read_message(write_message(answers.error_response(asked(), error, source=AGENT)))
    assert isinstance(answer.payload, ResponsePayload)
    assert answer.payload.status == Status.ERROR
    assert answer.payload.error is not None
    return a2a_error(answer.payload.error)


def test_an_answer_names_what_it_answers_and_is_for_its_sender() -> None:
    given = asked()
    payload = ResponsePayload(status=Status.SUCCESS, results=({"title": "a"},))

    for make, kind in ((answers.response, "RESPONSE"), (answers.event, "EVENT")):
        answer = make(given, payload, source=AGENT)

        assert answer.message.type == kind
        assert answer.message.correlation_id == given.message_id
        assert answer.message.priority == "high"
        assert answer.target.agent_id == "customer-service-001"
        assert answer.source == AGENT
        assert answer.message_id not in ("", given.message_id)


def test_an_answer_always_has_results_and_metadata() -> None:
    answer = answers.response(asked(), ResponsePayload(status=Status.SUCCESS), source=AGENT)

    written = json.loads(write_message(answer))["payload"]
    assert written == {"status": "success", "results": [], "metadata": {}}


def test_a_message_that_could_not_be_read_is_answered_by_its_id() -> None:
    answer = answers.error_response("m-1", TaskNotFoundError(), source=AGENT)

    assert answer.message.correlation_id == "m-1"
    assert (
        answers.error_response("", TaskNotFoundError(), source=AGENT).message.correlation_id == ""
    )


def test_a_heartbeat_answers_another() -> None:
    first = answers.heartbeat(AGENT, payload={"load": 0.5})
    second = answers.heartbeat(AGENT, answered=first)

    assert first.message.correlation_id == ""
    assert second.message.correlation_id == first.message_id
    assert json.loads(write_message(first))["payload"] == {"load": 0.5}


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


def test_an_error_is_written_without_what_it_does_not_have() -> None:
    written = write_message(answers.error_response(asked(), InvalidParamsError("no"), source=AGENT))

    assert json.loads(written)["payload"]["error"] == {"code": "INVALID_PARAMS", "message": "no"}
    assert envelope_error(OverloadedError("x", retry_after=0.0001)).retry_after == 1


def test_a_code_that_nobody_knows_is_an_error_of_the_peer_with_that_code() -> None:
    error = a2a_error(EnvelopeError(code="OUT_OF_STOCK", message="none left", retry_after=250))

    assert isinstance(error, PeerError)
    assert error.message == "none left"
    assert error.metadata == {"code": "OUT_OF_STOCK"}
    assert error.retry_after == 0.25


def test_no_code_of_the_protocol_is_one_of_a2a() -> None:
    assert not ENVELOPE_ERRORS.keys() & {error.reason for error in ERRORS}
