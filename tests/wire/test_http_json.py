"""HTTP+JSON of version 1.0 and server-sent events: decoding reverses encoding."""

from __future__ import annotations

import contextlib
import json
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parley.model.errors import (
    ERRORS,
    A2AError,
    FieldViolation,
    InvalidAgentResponseError,
    InvalidParamsError,
)
from parley.model.operations import BY_NAME, OPERATIONS, Empty, SendMessageResponse, StreamResponse
from parley.model.service import StreamItem
from parley.model.struct import A2AStruct
from parley.model.tasks import TaskState
from parley.server.http.paths import Paths, segments_of
from parley.wire import versions
from parley.wire.sse import SseEvent, SseParser, frame
from parley.wire.v1_0.http_json import read_query
from tests.kit.strategies import value_of

CODEC = versions.dialect("1.0").http_json
_NO_IDS = ("", ".", "..")
PATHS = Paths([("1.0", route) for route in CODEC.routes])


def sent(operation: Any, request: A2AStruct) -> Any:
    """Return a request after it was encoded, transmitted and decoded."""
    verb, path, query, body = CODEC.write_request(operation, request)
    scope = {"path": "", "raw_path": path.encode("ascii")}
    # A server passes the decoded path, and the raw one.
    scope["path"] = unquote(path, errors="strict")
    found = PATHS.find(verb, segments_of(scope))
    assert found.target.route.operation is operation
    tenant = found.fields.pop("tenant", "")
    parameters = parse_qsl(query, keep_blank_values=True)
    read = CODEC.read_request(found.target.route, found.fields, parameters, body or b"")
    return tenant, read


def is_ambiguous(operation: Any, request: Any) -> bool:
    """Return whether an id looks like an action, which takes precedence."""
    id = getattr(request, "id", "") if operation.path.endswith("{id}") else ""
    return id.endswith((":cancel", ":subscribe")) and id.rpartition(":")[0] != ""


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@given(data=st.data())
def test_a_request_is_read_as_it_was_written(operation, data):
    request = data.draw(value_of(operation.request))
    assume(not is_ambiguous(operation, request))
    fields = [name for name in ("id", "task_id") if f"{{{name}}}" in operation.path]
    if request.tenant in (".", "..") or any(getattr(request, f) in _NO_IDS for f in fields):
        with pytest.raises(InvalidParamsError, match="cannot be part of a path"):
            sent(operation, request)
        return
    tenant, read = sent(operation, request)
    assert (tenant or read.tenant) == request.tenant
    read = msgspec.structs.replace(read, tenant="")
    expected = type(request)(
        **{f: getattr(request, f) for f in request.__struct_fields__ if f != "tenant"}
    )
    assert read == expected


@pytest.mark.parametrize("tenant", ["tasks", "v1"])
@pytest.mark.parametrize("name", ["GetExtendedAgentCard", "ListTasks"])
def test_a_tenant_with_the_name_of_a_path_does_not_lead_astray(name, tenant):
    operation = BY_NAME[name]
    request = operation.request(tenant=tenant)
    assert sent(operation, request) == ("", request)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
@given(data=st.data())
def test_an_answer_is_read_as_it_was_written(operation, data):
    answer = data.draw(value_of(operation.response))
    if isinstance(answer, StreamResponse):
        assert CODEC.read_event(CODEC.write_event(StreamItem(answer.payload))) == answer.payload
        return
    if isinstance(answer, SendMessageResponse):
        answer = answer.payload
    read = CODEC.read_result(operation, CODEC.write_result(operation, answer))
    assert read == answer or isinstance(answer, Empty)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_is_read_as_it_was_written(kind):
    error = kind(
        "words",
        metadata={"taskId": "t"},
        violations=(FieldViolation("id", "wrong"),),
        details=({"@type": "type.example/More", "more": 1},),
        retry_after=1.5,
    )
    read = CODEC.read_error(kind.http_status, CODEC.write_error(error))
    assert type(read) is kind
    for name in ("message", "metadata", "violations", "details", "retry_after"):
        assert getattr(read, name) == getattr(error, name)


@given(status=st.integers(300, 599), body=st.binary(max_size=80))
def test_reading_an_error_never_fails_otherwise(status, body):
    with contextlib.suppress(InvalidAgentResponseError):
        assert isinstance(CODEC.read_error(status, body), A2AError)


class Filter(A2AStruct, frozen=True, kw_only=True):
    """The parameters of an extension's method."""

    tags: tuple[str, ...] = ()
    states: tuple[TaskState, ...] = ()
    only_open: bool = False
    more: dict[str, Any] | None = None


@pytest.mark.parametrize("query", ["tags=a&tags=b", "tags=a,b"])
def test_a_list_is_written_with_commas_or_by_repeating_it(query):
    assert read_query(Filter, parse_qsl(query)) == ({"tags": ["a", "b"]}, [])


def test_an_object_in_a_query_is_refused_by_its_name():
    _, wrong = read_query(Filter, [("more", "{}"), ("only_open", "true")])
    assert [violation.field for violation in wrong] == ["more"]


# -- server-sent events: one line in, one line out, wherever the bytes are split -------------------


def parse(stream: bytes) -> list[SseEvent]:
    return SseParser().feed(stream)


@pytest.mark.parametrize("data", [b"a\nb", b"a\rb", b"a\r\nb", b"\n", b"a\n\nb\n"])
def test_data_of_several_lines_stays_one_event(data):
    (event,) = parse(frame(data, 1))
    assert event.data == data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


STREAM = (
    "\ufeff: hello\r\n"
    "retry: 1500\r\n"
    "id: 1\r\n"
    'data: {"text":"日本語"}\r\n'
    "\r\n"
    "data:no space\r"
    "\r"
    "event: error\n"
    "data: first\n"
    "data:  second\n"
    "data\n"
    "id:3\n"
    "unknown: x\n"
    "\n"
    "event: nothing\n"
    "id: 4\n"
    "\n"
    "data: 😀\n"
    "\n"
    "data: never finished\n"
).encode()
EVENTS = [
    SseEvent("1", "message", '{"text":"日本語"}'.encode()),
    SseEvent(None, "message", b"no space"),
    SseEvent("3", "error", b"first\n second\n"),
    SseEvent(None, "message", "😀".encode()),
]


@pytest.mark.parametrize("size", range(1, 12))
def test_a_stream_cut_into_pieces_of_one_size_is_the_same(size):
    parser = SseParser()
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
def test_a_stream_cut_in_two_anywhere_is_the_same(line_end):
    stream = STREAM.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", line_end.encode())
    for at in range(len(stream) + 1):
        parser = SseParser()
        assert parser.feed(stream[:at]) + parser.feed(stream[at:]) == EVENTS, at


@given(
    st.lists(st.tuples(st.binary(max_size=8), st.none() | st.integers(0, 99)), max_size=5),
    st.sampled_from([b"\n", b"\r", b"\r\n"]),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_what_is_framed_is_read_back_under_every_cut(events, line_end, cuts):
    stream = b"".join(frame(data, id) for data, id in events).replace(b"\n", line_end)
    parser = SseParser()
    read = []
    places = [0, *sorted(cuts), len(stream)]
    for start, end in pairwise(places):
        read += parser.feed(stream[start:end])
    assert [(event.data, event.id) for event in read] == [
        (data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), None if id is None else str(id))
        for data, id in events
    ]


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_no_bytes_whatever_raise_anything(chunks):
    parser = SseParser()
    for chunk in chunks:
        parser.feed(chunk)


@pytest.mark.parametrize(
    "stream",
    [
        b"data: " + b"x" * 2000,
        b"data: " + b"x" * 2000 + b"\n\n",
        (b"data: " + b"x" * 90 + b"\n") * 12,
        b"data\n" * 300,
        b"event: " + b"x" * 2000,
        b"event: " + b"x" * 2000 + b"\n",
        b": " + b"x" * 2000,
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_event_larger_than_the_bound_is_refused(stream, size):
    parser = SseParser(max_event=1000)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    with pytest.raises(InvalidAgentResponseError, match="larger than 1000 bytes"):
        any(parser.feed(piece) for piece in pieces)


@pytest.mark.parametrize(
    "line", ["id: a\0b", "retry: soon", "retry: -1", "retry: ", "retry: 99999999999"]
)
def test_a_field_that_makes_no_sense_is_passed_over(line):
    parser = SseParser()
    assert parser.feed(f"{line}\ndata: x\n\n".encode()) == [SseEvent(None, "message", b"x")]
    assert parser.retry is None


def test_json_with_every_kind_of_line_separator_survives():
    data = json.dumps({"text": "a\u2028b\u2029c\x85d\u000be"}, ensure_ascii=False).encode()
    (event,) = parse(frame(data, 1))
    assert event.data == data


def one_line_at_a_time(stream: bytes) -> list[SseEvent]:
    """Return the events of a stream when no chunk contains a complete event."""
    parser = SseParser()
    lines = stream.splitlines(keepends=True)
    return [event for line in lines for event in parser.feed(line)]


LINES = st.sampled_from(
    [
        *(b"", b"id: 7", b"id:8", b"id: \0", b"id: \xff", b"id: 7 ", b"event: error", b": comment"),
        *(b"data: {}", b"data:  x", b"data", b"data: ", b"data:y", b" data: x", b"retry: 5", b"x"),
    ]
)


@given(st.lists(LINES, max_size=14), st.lists(st.integers(0, 120), max_size=3))
def test_events_cut_out_whole_are_those_of_their_lines(lines, cuts):
    stream = b"".join(line + b"\n" for line in lines)
    whole = SseParser()
    places = [0, *sorted(cuts), len(stream)]
    read = [event for a, b in pairwise(places) for event in whole.feed(stream[a:b])]
    assert read == one_line_at_a_time(stream)


@given(st.integers(1, 30), st.none() | st.integers(0, 999))
def test_the_bound_is_the_same_for_events_cut_out_whole(size, id):
    stream = frame(b"x", 1) + frame(b"y" * size, id)
    for parser, pieces in (
        (SseParser(max_event=20), [stream]),
        (SseParser(max_event=20), stream.splitlines(keepends=True)),
    ):
        is_refused = False
        try:
            for piece in pieces:
                parser.feed(piece)
        except InvalidAgentResponseError:
            is_refused = True
        fields = 6 + size + (0 if id is None else len(f"id: {id}"))
        assert is_refused == (fields > 20)
