"""Whatever arrives: a value, or an A2A error that says what is wrong."""

from __future__ import annotations

import json
from contextlib import suppress

from hypothesis import example, given, settings
from hypothesis import strategies as st

from parley.model.errors import A2AError, InvalidParamsError
from parley.model.tasks import Task
from parley.wire.json.protojson import decode, encode
from tests.kit.strategies import MESSAGES, abort, any_message, json_values

kinds = st.sampled_from(sorted(MESSAGES)).map(MESSAGES.__getitem__)


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode), kinds)
@example(b"\x00", Task)
def test_no_bytes_whatever_raise_anything_but_a2a_errors(body, kind):
    with suppress(A2AError):
        decode(body, kind)


@given(json_values, kinds)
def test_no_json_whatever_raises_anything_but_invalid_params(value, kind):
    with suppress(InvalidParamsError):
        decode(json.dumps(value).encode(), kind)


@given(any_message(), st.data())
@settings(max_examples=300)
def test_a_value_with_one_member_spoiled_is_read_soundly_or_refused(value, data):
    members = json.loads(encode(value))
    abort(members, data.draw)
    with suppress(InvalidParamsError):
        again = decode(json.dumps(members).encode(), type(value))
        assert decode(encode(again), type(value)) == again


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
