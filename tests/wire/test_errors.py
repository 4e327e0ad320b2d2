"""Errors as typed details, there and back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.errors import (
    FieldViolation,
    InternalError,
    InvalidParamsError,
    OverloadedError,
    PeerError,
    TaskNotCancelableError,
    TaskNotFoundError,
)
from parley.wire.errors import details_of, error_of
from tests.kit.strategies import json_values

INFO = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "TASK_NOT_CANCELABLE",
    "domain": "a2a-protocol.org",
    "metadata": {"taskId": "t"},
}


def test_wrong_fields_are_a_bad_request_after_the_error_info():
    error = InvalidParamsError(violations=(FieldViolation("message.parts", "must not be empty"),))
    info, bad_request = details_of(error)
    assert info["reason"] == "INVALID_PARAMS"
    assert bad_request == {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [{"field": "message.parts", "description": "must not be empty"}],
    }


@pytest.mark.parametrize(
    ("seconds", "written"), [(3, "3s"), (0.5, "0.5s"), (0, "0s"), (100, "100s"), (-1, "0s")]
)
def test_when_to_try_again_is_a_retry_info(seconds, written):
    details = details_of(OverloadedError(retry_after=seconds))
    assert details[1:] == [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": written}
    ]


def test_every_detail_has_a_type():
    error = InternalError(details=({"@type": "x/y", "a": 1}, {"b": 2}))
    assert details_of(error)[1:] == [
        {"@type": "x/y", "a": 1},
        {"@type": "type.googleapis.com/google.protobuf.Struct", "value": {"b": 2}},
    ]


def test_the_reason_decides_before_the_code():
    error = error_of(TaskNotFoundError.code, "no", [INFO])
    assert type(error) is TaskNotCancelableError
    assert error.metadata == {"taskId": "t"}


def test_a_reason_of_another_domain_decides_nothing():
    info = INFO | {"domain": "example.com"}
    error = error_of(TaskNotFoundError.code, "no", [info])
    assert type(error) is TaskNotFoundError
    assert error.details == (info,)


def test_a_reason_that_is_unknown_is_kept_for_the_caller_to_see():
    info = INFO | {"reason": "OUT_OF_CREDIT"}
    error = error_of(-32050, "pay", [info])
    assert isinstance(error, PeerError)
    assert error.details == (info,)


def test_a_binding_without_codes_is_told_by_reason_alone():
    assert type(error_of(None, "no", [INFO])) is TaskNotCancelableError
    assert error_of(None, "no", []).code == InternalError.code


def test_everything_survives_the_wire():
    error = InvalidParamsError(
        "no",
        metadata={"a": "b"},
        violations=(FieldViolation("x", "y"),),
        details=({"@type": "x/y", "a": 1},),
        retry_after=2.25,
    )
    again = error_of(error.code, error.message, json.loads(json.dumps(details_of(error))))
    assert type(again) is InvalidParamsError
    for field in ("message", "metadata", "violations", "details", "retry_after"):
        assert getattr(again, field) == getattr(error, field)


def test_metadata_that_is_not_text_becomes_text():
    error = error_of(None, "no", [INFO | {"metadata": {"n": 5, "o": {"a": [1]}}}])
    assert error.metadata == {"n": "5", "o": '{"a":[1]}'}


_types = st.sampled_from(
    [
        INFO["@type"],
        *[f"type.googleapis.com/google.rpc.{name}" for name in ("BadRequest", "RetryInfo", "Help")],
    ]
)
_details = st.lists(
    json_values
    | st.fixed_dictionaries(
        {"@type": _types},
        optional={
            "reason": json_values | st.just("TASK_NOT_FOUND"),
            "domain": json_values | st.just("a2a-protocol.org"),
            "metadata": json_values,
            "fieldViolations": json_values
            | st.lists(st.dictionaries(st.just("field"), json_values)),
            "retryDelay": json_values | st.just("1.5s"),
        },
    )
)


@given(st.none() | st.integers(), st.text(max_size=5), _details)
def test_nothing_that_a_peer_sends_makes_reading_its_error_fail(code, message, details):
    error = error_of(code, message, details)
    assert details_of(error)[0]["reason"] == error.reason
    json.dumps(details_of(error))
