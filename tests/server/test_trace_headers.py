"""Traces are read from their headers as the W3C's Trace Context has it."""

from __future__ import annotations

import pytest

from parley.model.service import NO_TRACE, TraceContext
from parley.server.dispatch import MAX_TRACEPARENT, MAX_TRACESTATE, read_trace

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def test_a_trace_has_an_id_and_headers() -> None:
    trace = read_trace([PARENT], ["vendor=1"])
    assert trace == TraceContext(traceparent=PARENT, tracestate="vendor=1")
    assert trace
    assert trace.trace_id == TRACE_ID
    assert trace.headers == {"traceparent": PARENT, "tracestate": "vendor=1"}
    assert read_trace([f" {PARENT}\t"]).headers == {"traceparent": PARENT}


def test_without_one_there_is_no_trace() -> None:
    assert not NO_TRACE
    assert (NO_TRACE.trace_id, NO_TRACE.headers) == ("", {})
    assert read_trace([], ["vendor=1"]) is NO_TRACE


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00-1-2-01",
        PARENT.upper(),
        PARENT[:-1],
        PARENT + "0",
        PARENT + "-00",  # version 00 has no more fields
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"0g-{TRACE_ID}-b7ad6b7169203331-01",
        PARENT + "\n",
        "01" + PARENT[2:] + "x",
        "01" + PARENT[2:] + "-" + "a" * MAX_TRACEPARENT,
        "01" + PARENT[2:] + "-\x00",
        "٠٠" + PARENT[2:],
    ],
)
def test_what_is_not_a_traceparent_is_no_trace(parent: str) -> None:
    assert read_trace([parent], ["vendor=1"]) is NO_TRACE


def test_two_traceparents_are_no_trace() -> None:
    assert read_trace([PARENT, PARENT]) is NO_TRACE


@pytest.mark.parametrize("more", ["", "-", "-ab-cd"])
def test_a_later_version_may_have_more_fields(more: str) -> None:
    later = "cc" + PARENT[2:] + more
    assert read_trace([later]).traceparent == later


@pytest.mark.parametrize(
    ("states", "kept"),
    [
        (["a=1,b=2"], "a=1,b=2"),
        ([" a=1 ,\t b=2,, "], "a=1,b=2"),
        (["a=1", "b=2"], "a=1,b=2"),
        (["tenant@vendor=x y", "a/b*c_-d=!"], "tenant@vendor=x y,a/b*c_-d=!"),
        (["a=1,a=2"], ""),
        (["a=1,B=2"], ""),
        (["a"], ""),
        (["a="], ""),
        (["a=1=2"], ""),
        (["a=\x7f"], ""),
        (["a=ü"], ""),
        (["=1"], ""),
        ([f"a={'1' * 257}"], ""),
        ([",".join(f"k{n}=1" for n in range(33))], ""),
        ([",".join(f"k{n}=1" for n in range(32))], ",".join(f"k{n}=1" for n in range(32))),
        (["a=1," + "," * 100_000], ""),
    ],
)
def test_a_tracestate_is_kept_if_it_is_valid(states: list[str], kept: str) -> None:
    assert read_trace([PARENT], states) == TraceContext(traceparent=PARENT, tracestate=kept)


def test_of_a_long_tracestate_the_long_members_go_first_and_then_the_last() -> None:
    long, short = f"long={'1' * 200}", [f"k{n}={'1' * 60}" for n in range(9)]
    assert read_trace([PARENT], [",".join([*short[:3], long])]).tracestate.endswith(long)
    kept = read_trace([PARENT], [",".join([long, *short])]).tracestate
    assert kept == ",".join(short[:8])
    assert len(kept) <= MAX_TRACESTATE
