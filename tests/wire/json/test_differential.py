"""Protobuf's own JSON codec is the judge: it reads what we write, and we read what it reads.

Known differences, all of them wanted:

- numbers in data and metadata: protobuf holds doubles, we keep integers as integers (so `1` comes
  back from it as `1.0`; they compare equal here);
- we refuse a value without its required fields, without any member of a oneof, with an unknown
  enum name or number, or with malformed base64; protobuf lets those pass;
- protobuf refuses a member given twice under one name, which JSON parsers do not tell us about;
- protobuf keeps nanoseconds, we keep milliseconds, as specification §5.6.1 asks.
"""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from parley.model.errors import InvalidParamsError
from parley.wire.json.protojson import decode, encode
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


@settings(max_examples=300)
@given(any_message(), st.data())
def test_every_spelling_that_protobuf_allows_means_the_same_to_us(value, data):
    spelled = json.dumps(_respell(json.loads(encode(value)), type(value), data.draw)).encode()
    ours = decode(spelled, type(value))
    assert ours == value
    theirs = parse(spelled, name_of(value))
    assert theirs == parse(encode(value), name_of(value))


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
    """Write a message another way that ProtoJSON allows."""
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
