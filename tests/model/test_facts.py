"""The data model equals the specification: messages, fields, names, enums, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import inspect

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
from parley.model.operations import BY_NAME, OPERATIONS, Empty
from parley.model.parts import Role
from parley.model.service import A2AService
from parley.model.struct import Timestamp
from parley.model.tasks import TaskState
from tests.kit.strategies import MESSAGES

FACTS: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "a2a_v1_messages.json").read_text("utf-8")
)
SPECIFIED = {name: m["fields"] for name, m in FACTS["messages"].items() if "." not in name}
FIELDS = [(name, fact) for name, fields in SPECIFIED.items() for fact in fields]
PACKAGE = FACTS["package"] + "."


def _short(type_name: str) -> str:
    return type_name.removeprefix(PACKAGE)


def test_the_model_has_the_messages_of_the_specification_and_no_others():
    assert {*MESSAGES} == {*SPECIFIED} | {"Empty"}


@pytest.mark.parametrize("name", SPECIFIED)
def test_a_message_has_its_fields_in_order(name):
    info = inspect.type_info(MESSAGES[name])
    assert [f.name for f in info.fields] == [fact["name"] for fact in SPECIFIED[name]]


@pytest.mark.parametrize(("name", "fact"), FIELDS, ids=[f"{n}.{f['name']}" for n, f in FIELDS])
def test_a_field_is_as_specified(name, fact):
    (field,) = [f for f in inspect.type_info(MESSAGES[name]).fields if f.name == fact["name"]]
    assert field.encode_name == fact["json"]
    assert field.required is fact.get("required", False)
    kind, optional = _without_null(field.type)
    has_presence = (
        fact.get("presence", False)
        or "oneof" in fact
        or (fact["label"] != "repeated" and fact["type"] not in {*_SCALARS} and not _is_enum(fact))
    )
    if fact["type"] == "google.protobuf.Value":
        assert isinstance(kind, inspect.AnyType)
        return
    assert optional is (has_presence and not field.required), "None is for fields with presence"
    if _short(fact["type"]).endswith("Entry"):
        entry = {f["name"]: f for f in FACTS["messages"][_short(fact["type"])]["fields"]}
        assert isinstance(kind, inspect.DictType)
        assert entry["key"]["type"] == "string"
        kind, fact = kind.value_type, entry["value"]
    elif fact["label"] == "repeated":
        assert isinstance(kind, inspect.VarTupleType)
        kind = kind.item_type
    assert _spelled(kind) == fact["type"]


@pytest.mark.parametrize(("kind", "name"), [(TaskState, "TaskState"), (Role, "Role")])
def test_an_enum_has_its_values_in_the_order_of_their_numbers(kind, name):
    assert {value.value: number for number, value in enumerate(kind)} == FACTS["enums"][name]


def test_an_enum_prints_its_name_in_the_specification():
    assert str(TaskState.INPUT_REQUIRED) == "TASK_STATE_INPUT_REQUIRED"
    assert str(Role.USER) == "ROLE_USER"


def test_the_operations_are_the_methods_of_the_service():
    assert {*BY_NAME} == {method["name"] for method in FACTS["service"]["methods"]}
    assert len(OPERATIONS) == 11


@pytest.mark.parametrize("method", FACTS["service"]["methods"], ids=lambda m: m["name"])
def test_an_operation_is_as_specified(method):
    operation = BY_NAME[method["name"]]
    assert operation.request.__name__ == _short(method["input"])
    assert operation.response.__name__ == _short(method["output"]).removeprefix("google.protobuf.")
    assert operation.streaming is method["server_streaming"]
    assert callable(getattr(A2AService, operation.method))
    assert operation.method.replace("_", "") == operation.name.lower()


@pytest.mark.parametrize(
    ("name", "verb", "path"),
    [  # specification §5.3
        ("SendMessage", "POST", "/message:send"),
        ("SendStreamingMessage", "POST", "/message:stream"),
        ("GetTask", "GET", "/tasks/{id}"),
        ("ListTasks", "GET", "/tasks"),
        ("CancelTask", "POST", "/tasks/{id}:cancel"),
        ("SubscribeToTask", "POST", "/tasks/{id}:subscribe"),
        ("CreateTaskPushNotificationConfig", "POST", "/tasks/{task_id}/pushNotificationConfigs"),
        ("GetTaskPushNotificationConfig", "GET", "/tasks/{task_id}/pushNotificationConfigs/{id}"),
        ("ListTaskPushNotificationConfigs", "GET", "/tasks/{task_id}/pushNotificationConfigs"),
        (
            "DeleteTaskPushNotificationConfig",
            "DELETE",
            "/tasks/{task_id}/pushNotificationConfigs/{id}",
        ),
        ("GetExtendedAgentCard", "GET", "/extendedAgentCard"),
    ],
)
def test_an_operation_has_its_http_route(name, verb, path):
    assert (BY_NAME[name].verb, BY_NAME[name].path) == (verb, path)


def test_the_fields_in_a_path_are_fields_of_the_request():
    for operation in OPERATIONS:
        named = {piece.partition("}")[0] for piece in operation.path.split("{")[1:]}
        assert named <= {*operation.request.__struct_fields__}


def test_empty_has_no_fields():
    assert Empty.__struct_fields__ == ()


_SCALARS = {
    "string": inspect.StrType,
    "bytes": inspect.BytesType,
    "bool": inspect.BoolType,
    "int32": inspect.IntType,
}


def _is_enum(fact: dict[str, Any]) -> bool:
    return _short(fact["type"]) in FACTS["enums"]


def _without_null(info: inspect.Type) -> tuple[inspect.Type, bool]:
    if not isinstance(info, inspect.UnionType):
        return info, False
    (one,) = [case for case in info.types if not isinstance(case, inspect.NoneType)]
    return one, True


def _spelled(info: inspect.Type) -> str:
    """Return the proto's name of a type."""
    match info:
        case inspect.StructType(cls=cls) | inspect.EnumType(cls=cls):
            return PACKAGE + cls.__name__
        case inspect.CustomType(cls=cls) if cls is Timestamp:
            return "google.protobuf.Timestamp"
        case inspect.DictType(value_type=inspect.AnyType()):
            return "google.protobuf.Struct"
        case inspect.IntType(ge=lowest, le=highest):
            assert (lowest, highest) == (-(2**31), 2**31 - 1)
            return "int32"
    (name,) = [name for name, kind in _SCALARS.items() if isinstance(info, kind)]
    return name


# -- the errors and their codes in each binding (specification 1.0.1 §5.4, §9.5) -------------------


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
    assert error().message == (error.__doc__ or "").split("\n")[0]


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
