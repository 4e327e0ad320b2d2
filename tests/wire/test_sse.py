"""Server-sent events: one line in, one line out, wherever the bytes are cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.errors import InvalidAgentResponseError
from parley.wire.sse import KEEP_ALIVE, SseEvent, SseParser, frame


def parse(stream: bytes) -> list[SseEvent]:
    return SseParser().feed(stream)


def test_a_frame_carries_its_number_and_its_data():
    assert frame(b'{"a":1}', 7) == b'id: 7\ndata: {"a":1}\n\n'
    assert frame(b'{"a":1}', None) == b'data: {"a":1}\n\n'


@pytest.mark.parametrize("data", [b"a\nb", b"a\rb", b"a\r\nb", b"\n", b"a\n\nb\n"])
def test_data_of_several_lines_stays_one_event(data):
    (event,) = parse(frame(data, 1))
    assert event.data == data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def test_a_keep_alive_is_no_event():
    assert parse(KEEP_ALIVE * 3 + frame(b"x") + KEEP_ALIVE) == [SseEvent(None, "message", b"x")]


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


def test_a_stream_is_read_as_the_standard_says():
    parser = SseParser()
    assert parser.feed(STREAM) == EVENTS
    assert parser.retry == 1500


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


def test_an_event_is_given_out_with_the_first_byte_that_completes_it():
    parser = SseParser()
    assert parser.feed(b"data: x\r\n\r") == [SseEvent(None, "message", b"x")]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"data: y\n\n") == [SseEvent(None, "message", b"y")]


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


def test_many_events_within_the_bound_are_no_large_event():
    parser = SseParser(max_event=100)
    stream = frame(b"x" * 80, 1) * 50 + KEEP_ALIVE * 100
    assert len(parser.feed(stream)) == 50
    assert sum(len(parser.feed(stream[at : at + 64])) for at in range(0, len(stream), 64)) == 50


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
    """Return the events of a stream as they are read when no event ever lies in one chunk."""
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
