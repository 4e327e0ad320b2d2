"""Moments are in UTC and whole milliseconds, whatever they came as."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.struct import Timestamp
from tests.kit.strategies import timestamps


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00.1Z", "2026-01-31T12:00:00.100Z"),
        ("2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00.123Z"),
        ("2026-01-31T12:00:00.999999999Z", "2026-01-31T12:00:00.999Z"),
        ("2026-01-31T12:00:00+05:30", "2026-01-31T06:30:00.000Z"),
        ("2026-01-31T12:00:00.5-00:00", "2026-01-31T12:00:00.500Z"),
        ("2026-01-31t12:00:00.1z", "2026-01-31T12:00:00.100Z"),
        ("2026-01-31t12:00:00+05:30", "2026-01-31T06:30:00.000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_timestamp_of_any_offset_and_precision_is_read(text, written):
    assert str(Timestamp.parse(text)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31 12:00:00Z",
        "20260131T120000Z",
        "2026-W05-6T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00.0123456789Z",
        "2026-01-31T12:00:00+24:00",
        "2026-01-31T12:00:00+0100",
        "２026-01-31T12:00:00Z",
        " 2026-01-31T12:00:00Z",
        "x" * 100_000,
    ],
)
def test_what_is_no_timestamp_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="not a timestamp such as 2026") as e:
        Timestamp.parse(text)
    assert len(str(e.value)) < 120


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-01:00"])
def test_a_moment_that_falls_out_of_the_calendar_in_utc_is_refused(text):
    with pytest.raises(ValueError, match="no counterpart in UTC"):
        Timestamp.parse(text)


@given(timestamps)
def test_a_timestamp_survives_its_text_and_its_milliseconds(moment):
    assert Timestamp.parse(str(moment)) == moment
    assert Timestamp.from_milliseconds(moment.milliseconds) == moment
    assert type(Timestamp.from_milliseconds(moment.milliseconds)) is Timestamp


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)))
def test_a_datetime_in_any_zone_is_the_same_moment(naive):
    moment = naive.replace(tzinfo=timezone(timedelta(hours=5, minutes=45)))
    stamp = Timestamp.of(moment)
    assert stamp.tzinfo is UTC
    assert timedelta(0) <= moment - stamp < timedelta(milliseconds=1)


def test_a_datetime_without_a_zone_is_refused_with_what_to_use():
    with pytest.raises(ValueError, match=r"use datetime\.now\(timezone\.utc\)"):
        Timestamp.of(datetime(2026, 1, 31))


def test_now_is_in_utc_and_whole_milliseconds():
    now = Timestamp.now()
    assert now.tzinfo is UTC
    assert now.microsecond % 1000 == 0
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_timestamp_moved_to_another_zone_is_still_written_in_utc():
    moved = Timestamp.parse("2026-01-31T12:00:00Z").astimezone(timezone(timedelta(hours=2)))
    assert str(moved) == "2026-01-31T12:00:00.000Z"
