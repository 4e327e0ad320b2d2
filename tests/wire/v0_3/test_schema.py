"""What is written in 0.3 is what the JSON schema of 0.3 says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parley.model.cards import APIKeySecurityScheme, SecurityScheme
from parley.model.errors import ERRORS
from parley.model.operations import BY_NAME, StreamResponse
from parley.model.service import StreamItem
from parley.wire import jsonrpc
from parley.wire.v0_3.cards import write_merged_card
from parley.wire.v0_3.json import JsonRpc
from parley.wire.v0_3.operations import NAMES
from tests.kit.strategies import value_of
from tests.wire.v0_3.exchanges import CALLED, answer_of, cards, request_of
from tests.wire.v0_3.schema import flaws

JSONRPC = JsonRpc()

few = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

REQUESTS = {
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
    assert set(NAMES.values()) == REQUESTS.keys()


@pytest.mark.parametrize("name", NAMES)
@few
@given(data=st.data())
def test_requests(name, data):
    params = JSONRPC.write_request(BY_NAME[name], data.draw(request_of(BY_NAME[name])))
    method = NAMES[name]
    if method == "agent/getAuthenticatedExtendedCard":
        assert params == b"{}"
    else:
        assert flaws(REQUESTS[method], jsonrpc.request(1, method, params)) == []


@pytest.mark.parametrize("operation", CALLED, ids=lambda operation: operation.name)
@few
@given(data=st.data())
def test_answers(operation, data):
    method = NAMES.get(operation.name)
    if method is None:
        return  # 0.3 lists no tasks
    if operation.name == "GetExtendedAgentCard":
        answer = data.draw(cards_of_known_places)
    else:
        answer = data.draw(answer_of(operation))
    response = REQUESTS[method].replace("Request", "SuccessResponse")
    result = JSONRPC.write_result(operation, answer)
    assert flaws(response, jsonrpc.response(b"1", result)) == []


@few
@given(value_of(StreamResponse))
def test_events(wrapper):
    event = JSONRPC.write_event(StreamItem(wrapper.payload))
    answer = jsonrpc.response(b"1", event)
    assert flaws("SendStreamingMessageSuccessResponse", answer) == []


def _key(scheme: SecurityScheme) -> bool:
    """Whether the place of a key, if it is one, is one of those that OpenAPI knows."""
    key = scheme.api_key_security_scheme
    return not isinstance(key, APIKeySecurityScheme) or key.location in ("header", "query")


cards_of_known_places = cards.filter(lambda card: all(map(_key, card.security_schemes.values())))


@few
@given(cards_of_known_places)
def test_cards(card):
    assert flaws("AgentCard", JSONRPC.write_result(BY_NAME["GetExtendedAgentCard"], card)) == []
    assert flaws("AgentCard", write_merged_card(card)) == []


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_errors(kind):
    error = JSONRPC.write_error(kind("what is wrong"))
    assert flaws("JSONRPCErrorResponse", jsonrpc.error_response(b"1", error)) == []
    assert type(JSONRPC.read_error(error)) is kind
