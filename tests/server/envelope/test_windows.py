"""Maintenance windows: their edges, midnight, daylight saving time, and what they refuse."""

from __future__ import annotations

import pytest

from parley.envelope.declared import EnvelopeSettings, MaintenanceGate, MaintenanceWindow
from parley.envelope.messages import UnderMaintenance
from parley.model.struct import Timestamp


def at(text: str) -> int:
    return Timestamp.parse(text).milliseconds


def end_of(text: str, *windows: MaintenanceWindow) -> str | None:
    end = MaintenanceGate(windows, lambda: 0).end_at(at(text))
    return None if end is None else str(Timestamp.from_milliseconds(end))[:19] + "Z"


ONCE = MaintenanceWindow(start="2026-12-24T22:00:00+01:00", end="2026-12-24T23:00:00Z")
SUNDAY = MaintenanceWindow(day="sunday", start="01:30", end="03:30", time_zone="Europe/Berlin")
NIGHT = MaintenanceWindow(day="saturday", start="23:00", end="01:00")


def test_a_window_is_from_its_start_until_before_its_end():
    assert end_of("2026-12-24T20:59:59.999Z", ONCE) is None
    assert end_of("2026-12-24T21:00:00Z", ONCE) == "2026-12-24T23:00:00Z"
    assert end_of("2026-12-24T22:59:59.999Z", ONCE) == "2026-12-24T23:00:00Z"
    assert end_of("2026-12-24T23:00:00Z", ONCE) is None


def test_a_weekly_window_is_on_its_day_in_its_time_zone():
    # Sunday the 7th of June: Berlin is two hours ahead of UTC.
    assert end_of("2026-06-06T23:29:59Z", SUNDAY) is None
    assert end_of("2026-06-06T23:30:00Z", SUNDAY) == "2026-06-07T01:30:00Z"
    assert end_of("2026-06-07T01:30:00Z", SUNDAY) is None
    assert end_of("2026-06-08T00:00:00Z", SUNDAY) is None
    # And one hour in January.
    assert end_of("2026-01-04T00:30:00Z", SUNDAY) == "2026-01-04T02:30:00Z"


def test_a_window_over_midnight_ends_on_the_next_day():
    assert end_of("2026-06-06T22:59:59Z", NIGHT) is None
    assert end_of("2026-06-06T23:30:00Z", NIGHT) == "2026-06-07T01:00:00Z"
    assert end_of("2026-06-07T00:59:59Z", NIGHT) == "2026-06-07T01:00:00Z"
    assert end_of("2026-06-07T23:30:00Z", NIGHT) is None
    whole = MaintenanceWindow(day="sunday", start="00:00", end="24:00")
    assert end_of("2026-06-07T00:00:00Z", whole) == "2026-06-08T00:00:00Z"


def test_where_clocks_change_the_window_is_what_clocks_show():
    # 2026-03-29, 02:00 to 03:00 do not exist: one hour of two is left.
    assert end_of("2026-03-29T00:29:59Z", SUNDAY) is None
    assert end_of("2026-03-29T00:30:00Z", SUNDAY) == "2026-03-29T01:30:00Z"
    assert end_of("2026-03-29T01:30:00Z", SUNDAY) is None
    # 2026-10-25, 02:00 to 03:00 are there twice: three hours.
    assert end_of("2026-10-24T23:30:00Z", SUNDAY) == "2026-10-25T02:30:00Z"
    assert end_of("2026-10-25T02:29:59Z", SUNDAY) == "2026-10-25T02:30:00Z"
    # One that begins and ends within the hour that is there twice lasts until the second.
    inside = MaintenanceWindow(day="sunday", start="02:15", end="02:45", time_zone="Europe/Berlin")
    assert end_of("2026-10-25T00:15:00Z", inside) == "2026-10-25T01:45:00Z"
    assert end_of("2026-10-25T01:44:59Z", inside) == "2026-10-25T01:45:00Z"


def test_windows_that_meet_end_together():
    second = MaintenanceWindow(start="2026-12-24T23:00:00Z", end="2026-12-25T01:00:00Z")
    assert end_of("2026-12-24T21:30:00Z", ONCE, second) == "2026-12-25T01:00:00Z"
    always = MaintenanceWindow(day="daily", start="00:00", end="24:00")
    assert end_of("2026-12-24T21:30:00Z", always) is not None  # and it is found out soon


def test_the_refusal_says_when_to_come_again():
    settings = EnvelopeSettings(maintenance_windows=[ONCE])
    windows = MaintenanceGate(settings.maintenance_windows, lambda: at("2026-12-24T22:59:58.500Z"))
    with pytest.raises(UnderMaintenance, match="2026-12-24T23:00:00Z") as caught:
        windows.check()
    assert caught.value.retry_after == 1.5
    assert EnvelopeSettings().rules.gates(lambda: 0) == ()
