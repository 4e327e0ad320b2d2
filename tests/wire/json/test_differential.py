"""Arbitrary JSON: compared with protobuf's codec, rejected with a reason, and bounded."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from parley.model.errors import A2AError, InvalidParamsError
from parley.model.tasks import Task
from parley.wire.json.protojson import check_limits, decode, encode
from tests.kit.strategies import MESSAGES, abort, any_message, json_values, value_of
from tests.wire.json.oracle import parse, write


def name_of(value: Any) -> str:
    return type(value).__name__


@pytest.mark.parametrize("name", MESSAGES)
def test_protobuf_and_we_read_what_the_other_writes(name):
    @settings(max_examples=15)
    @given(value_of(MESSAGES[name]))
    def check(value):
        read = parse(encode(value), name)
        assert decode(write(read), MESSAGES[name]) == value

    check()


@pytest.mark.slow
@settings(max_examples=300)
@given(any_message(), st.data())
def test_every_spelling_that_protobuf_allows_means_the_same_to_us(value, data):
    spelled = json.dumps(_respell(json.loads(encode(value)), type(value), data.draw)).encode()
    ours = decode(spelled, type(value))
    assert ours == value
    theirs = parse(spelled, name_of(value))
    assert theirs == parse(encode(value), name_of(value))


@pytest.mark.slow
@settings(max_examples=300)
@given(any_message(), st.data())
def test_what_we_read_from_spoiled_input_is_what_protobuf_reads(value, data):
    members = json.loads(encode(value))
    abort(members, data.draw)
    body = json.dumps(members).encode()
    with suppress(InvalidParamsError):
        ours = decode(body, type(value))
        assert parse(encode(ours), name_of(value)) == parse(body, name_of(value))


def _respell(members: dict[str, Any], kind: type, draw: Any) -> dict[str, Any]:
    """Rewrite a message in another spelling that ProtoJSON allows."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    spelled: dict[str, Any] = {}
    for field in info.fields:
        name = draw(st.sampled_from([field.name, field.encode_name]))
        if field.encode_name in members:
            spelled[name] = _respell_value(members[field.encode_name], field.type, draw)
        elif not isinstance(field.type, inspect.AnyType) and draw(st.booleans()):
            spelled[name] = None
    if draw(st.booleans()):
        spelled["notAField"] = draw(json_values)
    return spelled


def _respell_value(value: Any, info: inspect.Type, draw: Any) -> Any:
    match info:
        case inspect.UnionType(types=types):
            (one,) = [case for case in types if not isinstance(case, inspect.NoneType)]
            return _respell_value(value, one, draw)
        case inspect.StructType(cls=cls):
            return _respell(value, cls, draw)
        case inspect.VarTupleType(item_type=item):
            return [_respell_value(each, item, draw) for each in value]
        case inspect.DictType(value_type=inspect.StructType() as item):
            return {key: _respell_value(each, item, draw) for key, each in value.items()}
        case inspect.EnumType(cls=cls):
            return draw(st.sampled_from([value, [m.value for m in cls].index(value)]))
        case inspect.IntType():
            return draw(st.sampled_from([value, float(value), str(value)]))
        case inspect.BytesType():
            urlsafe = base64.urlsafe_b64encode(base64.b64decode(value)).decode()
            return draw(st.sampled_from([value, value.rstrip("="), urlsafe, urlsafe.rstrip("=")]))
        case inspect.CustomType():
            return draw(st.sampled_from([value, value.replace("Z", "000Z"), value[:-1] + "+00:00"]))
    return value


# -- any input yields a value, or an A2A error with the reason -------------------------------------


kinds = st.sampled_from(sorted(MESSAGES)).map(MESSAGES.__getitem__)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), kinds)
@example(b"\x00", Task)
def test_no_bytes_whatever_raise_anything_but_a2a_errors(body, kind):
    with suppress(A2AError):
        decode(body, kind)


@pytest.mark.slow
@given(json_values, kinds)
def test_no_json_whatever_raises_anything_but_invalid_params(value, kind):
    with suppress(InvalidParamsError):
        decode(json.dumps(value).encode(), kind)


@pytest.mark.slow
@given(any_message(), st.data())
@settings(max_examples=300)
def test_a_value_with_one_member_spoiled_is_read_soundly_or_refused(value, data):
    members = json.loads(encode(value))
    abort(members, data.draw)
    with suppress(InvalidParamsError):
        again = decode(json.dumps(members).encode(), type(value))
        assert decode(encode(again), type(value)) == again


@pytest.mark.slow
@given(any_message(), st.data())
@settings(max_examples=300)
def test_a_cut_or_changed_body_raises_nothing_but_a2a_errors(value, data):
    body = bytearray(encode(value))
    place = data.draw(st.integers(0, len(body) - 1))
    if data.draw(st.booleans()):
        del body[place:]
    else:
        body[place] = data.draw(st.integers(0, 255))
    with suppress(A2AError):
        decode(bytes(body), type(value))


# -- the depth of a body and the number of message parts are checked before decoding ---------------


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@pytest.mark.slow
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


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff{{{", b"[{},{},{}]", b'{"message":5}', b'{"message":{"parts":{}}}{{{']
)
def test_what_is_wrong_otherwise_is_left_to_the_decoder(body):
    check_limits(body, max_parts=1)
