"""0.3 round trips lose only the listed data (``losses``), and its schema agrees."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from parley.model.cards import APIKeySecurityScheme, SecurityScheme
from parley.model.errors import ERRORS, A2AError, InvalidAgentResponseError, InvalidParamsError
from parley.model.operations import (
    BY_NAME,
    GetTaskRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    StreamResponse,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import StreamItem
from parley.model.tasks import Task
from parley.wire import jsonrpc, versions
from parley.wire.json.syntax import check_limits
from parley.wire.v0_3 import proto
from parley.wire.v0_3.cards import write_merged_card
from parley.wire.v0_3.http_json import HttpJson
from parley.wire.v0_3.json import JsonRpc
from parley.wire.v0_3.operations import NAMES
from tests.kit.strategies import abort, json_objects, json_values, value_of
from tests.wire.json.oracle import message_class
from tests.wire.v0_3.exchanges import CALLED, answer_of, cards, read, request_of
from tests.wire.v0_3.losses import left_of
from tests.wire.v0_3.schema import flaws

JSONRPC, HTTP_JSON = JsonRpc(), HttpJson()

events = value_of(StreamResponse).map(lambda wrapper: wrapper.payload)
few = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
named = pytest.mark.parametrize("operation", CALLED, ids=lambda operation: operation.name)


@named
@few
@given(data=st.data())
def test_requests_over_json_rpc(operation, data):
    request = data.draw(request_of(operation))
    params = JSONRPC.write_request(operation, request)
    assert JSONRPC.read_request(operation, params) == left_of(request)


@pytest.mark.slow
@named
@few
@given(data=st.data())
def test_answers_over_json_rpc(operation, data):
    answer = data.draw(answer_of(operation))
    result = JSONRPC.write_result(operation, answer)
    assert JSONRPC.read_result(operation, result) == left_of(answer)


@pytest.mark.slow
@few
@given(events)
def test_events_over_json_rpc(event):
    assert JSONRPC.read_event(JSONRPC.write_event(StreamItem(event))) == left_of(event)


@pytest.mark.slow
@few
@given(value_of(Task))
def test_what_a_webhook_is_told_is_a_task_with_its_kind(task):
    told = versions.dialect("0.3").write_push(task, task)
    assert json.loads(told)["kind"] == "task"
    assert JSONRPC.read_event(told) == left_of(task)


@pytest.mark.slow
@named
@few
@given(data=st.data())
def test_requests_over_http_json(operation, data):
    request = data.draw(request_of(operation))
    try:
        asked = HTTP_JSON.write_request(operation, request)
    except InvalidParamsError as refusal:
        assume("cannot be part of a path" not in refusal.message)
        raise
    left = left_of(request, proto=True)
    if operation.name == "CancelTask":
        left = replace(left, metadata=None)
    assert read(HTTP_JSON, asked) == left


@pytest.mark.slow
@named
@few
@given(data=st.data())
def test_answers_over_http_json(operation, data):
    answer = data.draw(answer_of(operation))
    body = HTTP_JSON.write_result(operation, answer)
    assert HTTP_JSON.read_result(operation, body) == left_of(answer, proto=True)


@pytest.mark.slow
@few
@given(events)
def test_events_over_http_json(event):
    body = HTTP_JSON.write_event(StreamItem(event))
    assert HTTP_JSON.read_event(body) == left_of(event, proto=True)


@pytest.mark.slow
@named
@few
@given(data=st.data())
def test_messages_of_the_proto_as_plain_values(operation, data):
    request = data.draw(request_of(operation))
    left = left_of(request, proto=True)
    if operation.name == "CancelTask":
        left = replace(left, metadata=None)
    members = proto.write_request(operation, request)
    if operation.name != "ListTasks":  # not a message of the proto
        assert json.loads(json.dumps(members)) == members
    assert proto.read_request(operation, members) == left
    answer = data.draw(answer_of(operation))
    members = proto.write_result(operation, answer)
    assert proto.read_result(operation, members) == left_of(answer, proto=True)


REQUESTS = {
    "SendMessage": "SendMessageRequest",
    "GetTask": "GetTaskRequest",
    "CancelTask": "CancelTaskRequest",
    "CreateTaskPushNotificationConfig": "CreateTaskPushNotificationConfigRequest",
    "GetTaskPushNotificationConfig": "GetTaskPushNotificationConfigRequest",
    "ListTaskPushNotificationConfigs": "ListTaskPushNotificationConfigRequest",
    "DeleteTaskPushNotificationConfig": "DeleteTaskPushNotificationConfigRequest",
}
ANSWERS = {
    "SendMessage": "SendMessageResponse",
    "GetTask": "Task",
    "CreateTaskPushNotificationConfig": "TaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs": "ListTaskPushNotificationConfigResponse",
    "GetExtendedAgentCard": "AgentCard",
}


def through_protobuf(name: str, members: dict[str, Any]) -> dict[str, Any]:
    """Return a value after a round trip through protobuf, which knows the proto of 0.3.0."""
    from google.protobuf import json_format

    read = json_format.ParseDict(members, message_class(name, "v0_3")(), ignore_unknown_fields=True)
    members = json_format.MessageToDict(read)
    return members


def bare(value: Any) -> Any:
    """Return a value without additions to the 0.3.0 proto."""
    if isinstance(value, tuple):
        return tuple(bare(each) for each in value)
    if isinstance(value, Part):
        if value.metadata and value.metadata.get("data_part_compat"):
            assume(False)  # it controls how the data is read
        return replace(value, filename="", metadata=None)
    names = {"message", "parts", "artifacts", "artifact", "history", "status"}
    held = names.intersection(getattr(value, "__struct_fields__", ()))
    return replace(value, **{name: bare(getattr(value, name)) for name in held}) if held else value


def has_only_objects(value: Any) -> bool:
    return '"data_part_compat"' not in JSONRPC.write_event(StreamItem(value)).decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
@few
@given(data=st.data())
def test_protobuf_agrees_with_requests(name, data):
    operation = BY_NAME[name]
    request = data.draw(request_of(operation))
    if isinstance(request, SendMessageRequest):
        assume(has_only_objects(request.message))
    left = bare(left_of(request, proto=True))
    if isinstance(request, GetTaskRequest) and request.history_length == 0:
        left = replace(left, history_length=None)
    if name == "CancelTask":
        left = replace(left, metadata=None)
    if isinstance(left, SendMessageRequest) and left.configuration.history_length == 0:
        left = replace(left, configuration=replace(left.configuration, history_length=None))
    members = through_protobuf(REQUESTS[name], proto.write_request(operation, request))
    assert proto.read_request(operation, members) == left


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERS)
@few
@given(data=st.data())
def test_protobuf_agrees_with_answers(name, data):
    operation = BY_NAME[name]
    answer = data.draw(answer_of(operation))
    if isinstance(answer, Task | Message):
        assume(has_only_objects(answer))
    members = through_protobuf(ANSWERS[name], proto.write_result(operation, answer))
    again = proto.read_result(operation, members)
    if name == "GetExtendedAgentCard":  # flags have no third state, and there are no icons
        assert (again.name, again.skills) == (answer.name, left_of(answer).skills)
        assert again.supported_interfaces == left_of(answer).supported_interfaces
    else:
        assert again == bare(left_of(answer, proto=True))


@pytest.mark.slow
@few
@given(events)
def test_protobuf_agrees_with_events(event):
    assume(has_only_objects(event))
    members = through_protobuf("StreamResponse", proto.write_event(event))
    assert proto.read_event(members) == bare(left_of(event, proto=True))


@pytest.mark.parametrize("data", [None, 5, 2**70, "text", [1, None, {"a": []}], True, {}, {"a": 1}])
@pytest.mark.parametrize("metadata", [None, {"a": 1}])
def test_data_of_any_kind_survives(data, metadata):
    part = Part(data=data, metadata=metadata)
    said = Message(message_id="m", role=Role.USER, parts=(part,))
    written = JSONRPC.write_event(StreamItem(said))
    assert isinstance(json.loads(written)["parts"][0]["data"], dict)
    assert JSONRPC.read_event(written) == said
    assert HTTP_JSON.read_event(HTTP_JSON.write_event(StreamItem(said))) == said


def test_data_that_looks_wrapped_survives():
    part = Part(data={"value": 1}, metadata={"data_part_compat": True})
    said = Message(message_id="m", role=Role.USER, parts=(part,))
    again = JSONRPC.read_event(JSONRPC.write_event(StreamItem(said)))
    assert again.parts[0].data == {"value": 1}


@pytest.mark.parametrize(("length", "written"), [(None, 2**31 - 1), (0, 0), (3, 3)])
def test_how_much_of_a_history_is_wanted_is_always_said(length, written):
    """Official servers treat a missing length as zero: in the proto, or in GetTask."""
    get, send = BY_NAME["GetTask"], BY_NAME["SendMessage"]
    request = GetTaskRequest(id="t", history_length=length)
    assert json.loads(JSONRPC.write_request(get, request))["historyLength"] == written
    assert HTTP_JSON.write_request(get, request).query == f"historyLength={written}"
    assert proto.write_request(get, request)["historyLength"] == written
    said = Message(message_id="m", role=Role.USER, parts=(Part(text="hi"),))
    configuration = SendMessageConfiguration(history_length=length)
    for told in [configuration] if length is not None else [configuration, None]:
        message = SendMessageRequest(message=said, configuration=told)
        members = proto.write_request(send, message)
        assert members["configuration"]["historyLength"] == written
        assert proto.read_request(send, members).configuration.history_length == length


# -- 0.3 output is valid against the JSON schema of 0.3 --------------------------------------------


schema_few = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

REQUEST_DEFINITIONS = {
    "message/send": "SendMessageRequest",
    "message/stream": "SendStreamingMessageRequest",
    "tasks/get": "GetTaskRequest",
    "tasks/cancel": "CancelTaskRequest",
    "tasks/resubscribe": "TaskResubscriptionRequest",
    "tasks/pushNotificationConfig/set": "SetTaskPushNotificationConfigRequest",
    "tasks/pushNotificationConfig/get": "GetTaskPushNotificationConfigRequest",
    "tasks/pushNotificationConfig/list": "ListTaskPushNotificationConfigRequest",
    "tasks/pushNotificationConfig/delete": "DeleteTaskPushNotificationConfigRequest",
    "agent/getAuthenticatedExtendedCard": "GetAuthenticatedExtendedCardRequest",
}


def test_every_method_of_the_schema_is_called_by_its_name():
    assert set(NAMES.values()) == REQUEST_DEFINITIONS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@schema_few
@given(data=st.data())
def test_requests(name, data):
    params = JSONRPC.write_request(BY_NAME[name], data.draw(request_of(BY_NAME[name])))
    method = NAMES[name]
    if method == "agent/getAuthenticatedExtendedCard":
        assert params == b"{}"
    else:
        assert flaws(REQUEST_DEFINITIONS[method], jsonrpc.request(1, method, params)) == []


@pytest.mark.slow
@pytest.mark.parametrize("operation", CALLED, ids=lambda operation: operation.name)
@schema_few
@given(data=st.data())
def test_answers(operation, data):
    method = NAMES.get(operation.name)
    if method is None:
        return  # 0.3 cannot list tasks
    if operation.name == "GetExtendedAgentCard":
        answer = data.draw(cards_of_known_places)
    else:
        answer = data.draw(answer_of(operation))
    response = REQUEST_DEFINITIONS[method].replace("Request", "SuccessResponse")
    result = JSONRPC.write_result(operation, answer)
    assert flaws(response, jsonrpc.response(b"1", result)) == []


@pytest.mark.slow
@schema_few
@given(value_of(StreamResponse))
def test_events(wrapper):
    event = JSONRPC.write_event(StreamItem(wrapper.payload))
    answer = jsonrpc.response(b"1", event)
    assert flaws("SendStreamingMessageSuccessResponse", answer) == []


def _key(scheme: SecurityScheme) -> bool:
    """Return whether an API key scheme, if it is one, has a location that OpenAPI knows."""
    key = scheme.api_key_security_scheme
    return not isinstance(key, APIKeySecurityScheme) or key.location in ("header", "query")


cards_of_known_places = cards.filter(lambda card: all(map(_key, card.security_schemes.values())))


@pytest.mark.slow
@schema_few
@given(cards_of_known_places)
def test_cards(card):
    assert flaws("AgentCard", JSONRPC.write_result(BY_NAME["GetExtendedAgentCard"], card)) == []
    assert flaws("AgentCard", write_merged_card(card)) == []


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors(kind):
    error = JSONRPC.write_error(kind("what is wrong"))
    assert flaws("JSONRPCErrorResponse", jsonrpc.error_response(b"1", error)) == []
    assert type(JSONRPC.read_error(error)) is kind


# -- any input in 0.3 yields a value, or an A2A error with the reason ------------------------------


CODECS = [JsonRpc(), HttpJson()]
bodies = st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode())
some = settings(max_examples=100, deadline=None)


def answers_read(codec: Any, body: bytes) -> None:
    for operation in CALLED:
        with suppress(InvalidAgentResponseError):
            codec.read_result(operation, body)
    with suppress(A2AError):
        codec.read_event(body)


@pytest.mark.slow
@some
@given(bodies)
def test_no_bytes_whatever_raise_anything_but_a2a_errors(body):
    jsonrpc, http_json = CODECS
    for operation in jsonrpc.methods.values():
        with suppress(A2AError):
            jsonrpc.read_request(operation, body)
    for route in http_json.routes:
        with suppress(A2AError):
            http_json.read_request(route, {"id": "t", "config_id": "c"}, [("status", "x")], body)
    for codec in CODECS:
        answers_read(codec, body)
    with suppress(A2AError):
        http_json.read_error(500, body)
    with suppress(A2AError):
        jsonrpc.read_error(body)


@pytest.mark.slow
@some
@given(st.data())
def test_a_request_with_one_member_spoiled_is_read_or_refused(data):
    operation = data.draw(st.sampled_from(CALLED))
    params = json.loads(CODECS[0].write_request(operation, data.draw(request_of(operation))))
    abort(params, data.draw)
    with suppress(A2AError):
        CODECS[0].read_request(operation, json.dumps(params).encode())


@pytest.mark.slow
@some
@given(st.data())
def test_an_answer_with_one_member_spoiled_is_read_or_refused(data):
    operation = data.draw(st.sampled_from(CALLED))
    answer = data.draw(answer_of(operation))
    for codec in CODECS:
        members = json.loads(codec.write_result(operation, answer))
        if isinstance(members, dict | list):
            abort(members, data.draw)
        answers_read(codec, json.dumps(members).encode())


@pytest.mark.slow
@some
@given(events, st.data())
def test_an_event_with_one_member_spoiled_is_read_or_refused(event, data):
    for codec in CODECS:
        members = json.loads(codec.write_event(StreamItem(event)))
        abort(members, data.draw)
        with suppress(A2AError):
            codec.read_event(json.dumps(members).encode())


@pytest.mark.slow
@some
@given(cards, json_objects, st.data())
def test_a_card_with_one_member_spoiled_is_read_or_refused(card, others, data):
    members = {**others, **json.loads(versions.write_card(card, "0.3"))}
    abort(members, data.draw)
    with suppress(A2AError):
        versions.read_card(members)


@pytest.mark.parametrize("name", ["parts", "content"])
@pytest.mark.parametrize("lease_owner", ["message", "request"])
def test_parts_are_counted_by_either_name(name, lease_owner):
    body = json.dumps({lease_owner: {name: [{"text": "x"}] * 1001}}).encode()
    with pytest.raises(A2AError, match="1000 parts"):
        check_limits(body)
    check_limits(json.dumps({lease_owner: {name: [{"text": "x"}] * 1000}}).encode())
