"""Whatever arrives in 0.3: a value, or an A2A error that says what is wrong."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.model.errors import A2AError, InvalidAgentResponseError
from parley.model.operations import StreamResponse
from parley.model.service import StreamItem
from parley.wire import versions
from parley.wire.json.syntax import check_limits
from parley.wire.v0_3.http_json import HttpJson
from parley.wire.v0_3.json import JsonRpc
from tests.kit.strategies import abort, json_objects, json_values, value_of
from tests.wire.v0_3.exchanges import CALLED, answer_of, cards, request_of

CODECS = [JsonRpc(), HttpJson()]
events = value_of(StreamResponse).map(lambda wrapper: wrapper.payload)
bodies = st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode())
some = settings(max_examples=100, deadline=None)


def answers_read(codec: Any, body: bytes) -> None:
    for operation in CALLED:
        with suppress(InvalidAgentResponseError):
            codec.read_result(operation, body)
    with suppress(A2AError):
        codec.read_event(body)


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


@some
@given(st.data())
def test_a_request_with_one_member_spoiled_is_read_or_refused(data):
    operation = data.draw(st.sampled_from(CALLED))
    params = json.loads(CODECS[0].write_request(operation, data.draw(request_of(operation))))
    abort(params, data.draw)
    with suppress(A2AError):
        CODECS[0].read_request(operation, json.dumps(params).encode())


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


@some
@given(events, st.data())
def test_an_event_with_one_member_spoiled_is_read_or_refused(event, data):
    for codec in CODECS:
        members = json.loads(codec.write_event(StreamItem(event)))
        abort(members, data.draw)
        with suppress(A2AError):
            codec.read_event(json.dumps(members).encode())


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
