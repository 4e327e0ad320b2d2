"""gRPC messages of version 0.3 are equivalent to the JSON of its proto."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import assume, given, settings

from parley.model.cards import AgentCard
from parley.model.errors import (
    A2AError,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
)
from parley.model.operations import (
    BY_NAME,
    Empty,
    ListTaskPushNotificationConfigsResponse,
    Operation,
    SendMessageRequest,
    StreamResponse,
    TaskPushNotificationConfig,
)
from parley.model.parts import Part, Role
from parley.model.service import StreamItem
from parley.model.tasks import Task, TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.wire import versions
from parley.wire.protobuf.messages import POOL, Messages
from parley.wire.v0_3 import proto
from tests.kit.strategies import value_of

CODEC = versions.dialect("0.3").grpc()
MADE = Messages("a2a.v1")
SEND = BY_NAME["SendMessage"]
ASKED = [BY_NAME[name] for name in CODEC.names]


def in_json(operation: Operation, request: Any) -> Any:
    """Return the request for the proto's JSON, or the error."""
    try:
        members = proto.write_request(operation, request)
        if members.get("historyLength") == 0:  # the proto cannot distinguish it from none
            del members["historyLength"]
        if members.get("configuration", {}).get("historyLength") == 0:
            del members["configuration"]["historyLength"]
        return proto.read_request(operation, members)
    except A2AError as error:
        return type(error), error.violations


def in_protobuf(operation: Operation, request: Any) -> Any:
    try:
        return CODEC.read_request(operation, CODEC.write_request(operation, request))
    except A2AError as error:
        return type(error), error.violations


@pytest.mark.slow
@pytest.mark.parametrize("operation", ASKED, ids=lambda operation: operation.name)
def test_a_request_means_what_it_means_in_json(operation):
    @settings(max_examples=60)
    @given(value_of(operation.request))
    def check(request):
        assume(getattr(request, "task_id", "t"))  # a task without an id has no name
        assert in_protobuf(operation, request) == in_json(operation, request)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Task, AgentCard, TaskPushNotificationConfig])
def test_an_answer_means_what_it_means_in_json(kind):
    (operation, *_) = [each for each in ASKED if each.response is kind]

    @settings(max_examples=60)
    @given(value_of(kind))
    def check(answer):
        assume(getattr(answer, "task_id", "t"))
        assume(kind is not AgentCard or not _has_newer_flows(answer))
        members = proto.write_result(operation, answer)
        try:
            wanted = proto.read_result(operation, members)
        except InvalidAgentResponseError:
            with pytest.raises(InvalidAgentResponseError):
                CODEC.read_result(operation, CODEC.write_result(operation, answer))
        else:
            read = CODEC.read_result(operation, CODEC.write_result(operation, answer))
            if kind is AgentCard:  # the proto cannot distinguish false and empty from unset there
                read, wanted = _without_empty(read), _without_empty(wanted)
            assert read == wanted

    check()


def _has_newer_flows(card: AgentCard) -> bool:
    """Whether a scheme has features missing in the proto: device codes, and required PKCE."""
    schemes = [scheme.oauth2_security_scheme for scheme in card.security_schemes.values()]
    flows = [scheme.flows for scheme in schemes if scheme is not None]
    codes = [flow.authorization_code for flow in flows if flow.authorization_code is not None]
    return any(flow.device_code is not None for flow in flows) or any(
        code.pkce_required for code in codes
    )


def _without_empty(card: AgentCard) -> AgentCard:
    given = card.capabilities
    capabilities = msgspec.structs.replace(
        given,
        streaming=given.streaming or None,
        push_notifications=given.push_notifications or None,
        extended_agent_card=given.extended_agent_card or None,
    )
    return msgspec.structs.replace(
        card,
        capabilities=capabilities,
        documentation_url=card.documentation_url or None,
        icon_url=card.icon_url or None,
    )


@pytest.mark.slow
@settings(max_examples=100)
@given(value_of(StreamResponse))
def test_an_event_means_what_it_means_in_json(response):
    event = response.payload
    wanted = proto.read_event(proto.write_event(event))
    assert CODEC.read_event(CODEC.write_event(StreamItem(event))) == wanted


def test_a_page_of_webhooks_and_nothing_can_be_answered():
    config = TaskPushNotificationConfig(id="p", task_id="t", url="https://example.com/hook")
    page = ListTaskPushNotificationConfigsResponse(configs=(config,), next_page_token="n")
    operation = BY_NAME["ListTaskPushNotificationConfigs"]
    assert CODEC.read_result(operation, CODEC.write_result(operation, page)) == page
    operation = BY_NAME["DeleteTaskPushNotificationConfig"]
    assert CODEC.write_result(operation, Empty()) == b""
    assert CODEC.read_result(operation, b"") == Empty()


def test_the_methods_have_their_names_of_0_3():
    assert CODEC.service == "a2a.v1.A2AService"
    assert CODEC.names["SubscribeToTask"] == "TaskSubscription"
    assert CODEC.names["GetExtendedAgentCard"] == "GetAgentCard"
    assert "ListTasks" not in CODEC.names
    assert {*CODEC.methods} == {*POOL.FindServiceByName(CODEC.service).methods_by_name}


def test_a_final_event_ends_a_stream():
    event = TaskStatusUpdateEvent(
        task_id="t", context_id="c", status=TaskStatus(state=TaskState.COMPLETED)
    )
    message = MADE.parse("StreamResponse", CODEC.write_event(StreamItem(event, 7)))
    assert message.status_update.final
    assert CODEC.ends_stream(event)


@pytest.mark.parametrize("text", [False, True], ids=["as bytes", "as base64 text"])
def test_a_file_is_read_whichever_way_its_peer_writes_bytes(text):
    content = b"\x89PNG\r\n\x1a\n\x00"
    message = MADE["SendMessageRequest"]()
    message.request.message_id, message.request.role = "m", 1
    part = message.request.content.add()
    part.file.file_with_bytes = base64.b64encode(content) if text else content
    part.file.mime_type = "image/png"
    request = CODEC.read_request(SEND, message.SerializeToString())
    assert request.message.parts == (Part(raw=content, media_type="image/png"),)


def test_a_message_with_too_many_parts_is_refused_before_it_is_decoded():
    message = MADE["SendMessageRequest"]()
    for _ in range(6):
        message.request.content.add()
    with pytest.raises(InvalidParamsError, match="more than 5 parts"):
        CODEC.read_request(SEND, message.SerializeToString(), max_parts=5)


@pytest.mark.parametrize(
    ("state", "role", "field"), [(99, 1, "task.status.state"), (3, 99, "task.status.message.role")]
)
def test_an_enum_number_that_is_not_known_is_passed_over(state, role, field, caplog):
    message = MADE["StreamResponse"]()
    message.task.id, message.task.status.state = "t", state
    update = message.task.status.update
    update.message_id, update.role = "m", role
    update.content.add().text = "hi"
    event = CODEC.read_event(message.SerializeToString())
    assert event.state is (TaskState.COMPLETED if state == 3 else TaskState.UNSPECIFIED)
    assert event.status.message.role is (Role.USER if role == 1 else Role.AGENT)
    assert event.text == "hi"
    assert field in caplog.text


def test_a_number_that_json_does_not_have_is_refused_where_it_is_read():
    message = MADE["SendMessageRequest"]()
    message.request.message_id, message.request.role = "m", 1
    part = message.request.content.add()
    part.data.data.fields["a"].number_value = float("nan")
    with pytest.raises(InvalidParamsError) as refused:
        CODEC.read_request(SEND, message.SerializeToString())
    assert refused.value.violations[0].field == "message.content[0].data.data.a"


def test_a_number_that_no_double_holds_cannot_be_told():
    task = Task(id="t", status=TaskStatus(state=TaskState.WORKING), metadata={"n": 10**400})
    with pytest.raises(InternalError, match=r"cannot be sent over gRPC: metadata\.n: "):
        CODEC.write_result(BY_NAME["GetTask"], task)


@pytest.mark.slow
@settings(max_examples=200)
@given(value_of(SendMessageRequest))
def test_metadata_survive_whatever_they_hold(request):
    request = msgspec.structs.replace(request, tenant="")
    assert in_protobuf(SEND, request).metadata == request.metadata
