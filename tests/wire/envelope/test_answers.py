"""Answers: whom they are for, what they answer, and errors in them."""

from __future__ import annotations

import json

import pytest

from parley.envelope import answers
from parley.envelope.codec import read_message, write_message
from parley.envelope.messages import (
    ENVELOPE_ERRORS,
    Envelope,
    EnvelopeError,
    MessageSource,
    ResponsePayload,
    Status,
    a2a_error,
    envelope_error,
)
from parley.model.errors import (
    ERRORS,
    A2AError,
    FieldViolation,
    InvalidParamsError,
    OverloadedError,
    PeerError,
    TaskNotFoundError,
)
from tests.wire.envelope.messages import request

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
