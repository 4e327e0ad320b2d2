"""Errors as typed details and as gRPC statuses, in both directions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.errors import (
    ERRORS,
    A2AError,
    FieldViolation,
    InternalError,
    InvalidParamsError,
    OverloadedError,
    PeerError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from parley.wire.errors import details_of, error_of
from parley.wire.protobuf.errors import (
    CODES,
    MAX_DETAILS_BYTES,
    has_reason,
    read_status,
    write_status,
)
from tests.kit.strategies import json_values

INFO = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "TASK_NOT_CANCELABLE",
    "domain": "a2a-protocol.org",
    "metadata": {"taskId": "t"},
}


@pytest.mark.parametrize(
    ("seconds", "written"), [(3, "3s"), (0.5, "0.5s"), (0, "0s"), (100, "100s"), (-1, "0s")]
)
def test_when_to_try_again_is_a_retry_info(seconds, written):
    details = details_of(OverloadedError(retry_after=seconds))
    assert details[1:] == [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": written}
    ]


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


@pytest.mark.slow
@given(st.none() | st.integers(), st.text(max_size=5), _details)
def test_nothing_that_a_peer_sends_makes_reading_its_error_fail(code, message, details):
    error = error_of(code, message, details)
    assert details_of(error)[0]["reason"] == error.reason
    json.dumps(details_of(error))


# -- errors as the status and the trailing metadata of gRPC ----------------------------------------


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_is_read_as_the_one_that_was_written(kind):
    error = kind("words", metadata={"taskId": "t"}, retry_after=1.5)
    details = write_status(error)
    assert has_reason(details)
    # Several errors share a status, and older servers use different ones: the reason decides.
    for status in (error.grpc_status, "UNIMPLEMENTED", "UNKNOWN"):
        read = read_status(status, "words", details)
        assert type(read) is kind
        assert (read.message, read.metadata, read.retry_after) == ("words", {"taskId": "t"}, 1.5)


def test_further_details_travel_as_what_they_are_or_as_an_object():
    kind = "type.googleapis.com/google.protobuf.Struct"
    error = InternalError(
        "words", details=({"a": [1]}, {"@type": "type.googleapis.com/x.Unknown", "b": 2})
    )
    read = read_status("INTERNAL", "words", write_status(error))
    assert [*map(dict, read.details)] == [
        {"@type": kind, "value": {"a": [1]}},
        {"@type": kind, "value": {"@type": "type.googleapis.com/x.Unknown", "b": 2}},
    ]


def test_details_are_cut_to_what_metadata_may_hold_and_the_reason_stays():
    error = InvalidParamsError(
        "w" * 5000,
        metadata={"taskId": "i" * 5000},
        violations=tuple(FieldViolation(f"f{n}", "d" * 500) for n in range(20)),
        details=({"a": "b" * 5000},),
        retry_after=1,
    )
    details = write_status(error)
    assert len(details) <= MAX_DETAILS_BYTES
    read = read_status("INVALID_ARGUMENT", "words", details)
    assert isinstance(read, InvalidParamsError)
    assert 0 < len(read.violations) < 20
    assert read.violations[0] == error.violations[0]


@pytest.mark.parametrize(
    ("status", "message", "kind", "words"),
    [
        ("NOT_FOUND", "no such task", TaskNotFoundError, "no such task"),
        ("UNIMPLEMENTED", "not here", UnsupportedOperationError, "not here"),
        ("UNIMPLEMENTED", "TaskNotCancelableError: it ended", TaskNotCancelableError, "it ended"),
        ("INTERNAL", "NoSuchError: words", InternalError, "NoSuchError: words"),
        ("UNAVAILABLE", "busy", OverloadedError, "busy"),
        ("DATA_LOSS", "gone", PeerError, "gone"),
    ],
)
def test_a_peer_without_details_is_understood_by_name_or_status(status, message, kind, words):
    for details in (None, b"", b"\xff\xff\xff"):
        assert not has_reason(details)
        error = read_status(status, message, details)
        assert type(error) is kind
        assert error.message == words


@given(st.sampled_from(sorted(CODES)), st.text(max_size=20), st.binary(max_size=80))
def test_nothing_that_a_peer_sends_makes_reading_fail(status, message, details):
    assert isinstance(read_status(status, message, details), A2AError)
