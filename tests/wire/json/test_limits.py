"""How deep a body is, and how many parts its message has, is found out before decoding."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from parley.model.errors import InvalidParamsError
from parley.wire.json.protojson import check_limits
from tests.kit.strategies import json_values


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@given(json_values)
def test_a_body_is_refused_exactly_when_it_is_deeper_than_the_limit(value):
    body = json.dumps(value, ensure_ascii=False).encode()
    depth = depth_of(value)
    check_limits(body, max_depth=depth)
    if depth:
        with pytest.raises(InvalidParamsError, match=f"more than {depth - 1} levels"):
            check_limits(body, max_depth=depth - 1)


@pytest.mark.parametrize(
    "text",
    ["[" * 200, "{" * 200, '"[' * 200, '\\"[' * 200, "\\\\[" * 200, '[\\\\\\"[' * 99, "]}" * 99],
)
def test_brackets_in_strings_are_not_nesting(text):
    body = json.dumps({"a": [text, {"b": text}]}).encode()
    check_limits(body, max_depth=3)
    with pytest.raises(InvalidParamsError):
        check_limits(body, max_depth=2)


def test_brackets_that_close_in_strings_hide_no_nesting():
    body = b'["]]]]]"' * 50 + b"]" * 50
    with pytest.raises(InvalidParamsError):
        check_limits(body, max_depth=49)


@pytest.mark.parametrize("depth", [101, 100_000])
def test_nesting_is_limited_by_default(depth):
    with pytest.raises(InvalidParamsError, match="more than 100 levels deep"):
        check_limits(b"[" * depth + b"]" * depth)


@pytest.mark.parametrize(
    "wrap",
    [
        "%s",
        '{"jsonrpc":"2.0","params":%s}',
        '{"jsonrpc":"2.0","params":%s,"message":5}',
        '{"params":{"request":{}},"message":[],"jsonrpc":"2.0","params":%s}',
    ],
)
def test_a_message_with_too_many_parts_is_refused(wrap):
    parts = ",".join(['{"text":"a"}'] * 5)
    body = (wrap % f'{{"message":{{"parts":[{parts}]}}}}').encode()
    check_limits(body, max_parts=5)
    with pytest.raises(InvalidParamsError, match="more than 4 parts") as caught:
        check_limits(body, max_parts=4)
    assert caught.value.violations[0].field == "message.parts"


def test_objects_in_data_are_not_parts():
    body = b'{"message":{"parts":[{"data":[%b]}]}}' % b",".join([b"{}"] * 50)
    check_limits(body, max_parts=1)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff{{{", b"[{},{},{}]", b'{"message":5}', b'{"message":{"parts":{}}}{{{']
)
def test_what_is_wrong_otherwise_is_left_to_the_decoder(body):
    check_limits(body, max_parts=1)
