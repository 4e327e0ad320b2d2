"""The errors and their codes in each binding (specification 1.0.1 §5.4, §9.5)."""

from __future__ import annotations

import pytest

from parley.model import errors
from parley.model.cards import AgentCapabilities
from parley.model.errors import (
    ERRORS,
    ERRORS_BY_CODE,
    ERRORS_BY_REASON,
    A2AError,
    PeerError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from parley.model.operations import BY_NAME, OPERATIONS

TABLE = [
    ("JSONParseError", -32700, "INVALID_ARGUMENT", 400),
    ("InvalidRequestError", -32600, "INVALID_ARGUMENT", 400),
    ("MethodNotFoundError", -32601, "UNIMPLEMENTED", 404),
    ("InvalidParamsError", -32602, "INVALID_ARGUMENT", 400),
    ("InternalError", -32603, "INTERNAL", 500),
    ("TaskNotFoundError", -32001, "NOT_FOUND", 404),
    ("TaskNotCancelableError", -32002, "FAILED_PRECONDITION", 400),
    ("PushNotificationNotSupportedError", -32003, "FAILED_PRECONDITION", 400),
    ("UnsupportedOperationError", -32004, "FAILED_PRECONDITION", 400),
    ("ContentTypeNotSupportedError", -32005, "INVALID_ARGUMENT", 400),
    ("InvalidAgentResponseError", -32006, "INTERNAL", 500),
    ("ExtendedAgentCardNotConfiguredError", -32007, "FAILED_PRECONDITION", 400),
    ("ExtensionSupportRequiredError", -32008, "FAILED_PRECONDITION", 400),
    ("VersionNotSupportedError", -32009, "FAILED_PRECONDITION", 400),
]


@pytest.mark.parametrize(("name", "code", "grpc_status", "http_status"), TABLE)
def test_an_error_has_the_codes_of_the_specification(name, code, grpc_status, http_status):
    error = getattr(errors, name)
    assert (error.code, error.grpc_status, error.http_status) == (code, grpc_status, http_status)


@pytest.mark.parametrize("name", [row[0] for row in TABLE if row[1] > -32100])
def test_a_reason_is_the_name_in_upper_snake_case_without_error(name):
    words = "".join(f"_{c}" if c.isupper() else c.upper() for c in name.removesuffix("Error"))
    assert getattr(errors, name).reason == words.removeprefix("_")


def test_no_two_errors_share_a_code_or_a_reason():
    assert len(ERRORS_BY_CODE) == len(ERRORS_BY_REASON) == len(ERRORS) >= len(TABLE)
    assert A2AError not in ERRORS
    assert PeerError not in ERRORS


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_codes_beyond_the_specification_stay_in_its_range(error):
    assert error.code in {row[1] for row in TABLE} or -32099 <= error.code <= -32010
    assert error().message == error.__doc__


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: e.__name__)
def test_the_drawing_shows_every_error_with_its_code(error):
    (line,) = [
        part for part in (errors.__doc__ or "").splitlines() if f" {error.__name__} " in part
    ]
    assert line.split()[2] == str(error.code)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_an_operation_needs_only_its_own_capability(operation):
    everything = AgentCapabilities(
        streaming=True, push_notifications=True, extended_agent_card=True
    )
    operation.check(everything)
    if operation.capability is None:
        operation.check(AgentCapabilities())
        return
    refusal = (
        PushNotificationNotSupportedError
        if operation.capability == "push_notifications"
        else UnsupportedOperationError
    )
    with pytest.raises(refusal, match=f"^{operation.name} needs capabilities"):
        operation.check(AgentCapabilities(streaming=False))


def test_safe_operations_are_those_that_change_nothing():
    assert {name for name, operation in BY_NAME.items() if operation.safe} == {
        "GetTask",
        "ListTasks",
        "SubscribeToTask",
        "GetTaskPushNotificationConfig",
        "ListTaskPushNotificationConfigs",
        "GetExtendedAgentCard",
    }
