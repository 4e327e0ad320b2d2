"""Valid declarations of an agent for the envelope protocol, and the errors for invalid ones."""

from __future__ import annotations

import pytest

import parley
from parley import Agent, CardDetails
from parley.envelope.declared import DeclaredPerformance, EnvelopeSettings, MaintenanceWindow

WRONG = {
    "time_zone is a name": {
        "maintenance_windows": [
            MaintenanceWindow(day="sunday", start="01:00", end="02:00", time_zone="Mars/Olympus")
        ]
    },
    "a moment must be an RFC 3339 time": {
        "maintenance_windows": [MaintenanceWindow(start="tomorrow", end="later")]
    },
    "its end is after its start": {
        "maintenance_windows": [
            MaintenanceWindow(start="2026-12-24T23:00:00Z", end="2026-12-24T22:00:00Z")
        ]
    },
    "leave time_zone out": {
        "maintenance_windows": [
            MaintenanceWindow(
                start="2026-12-24T22:00:00Z", end="2026-12-24T23:00:00Z", time_zone="CET"
            )
        ]
    },
    "day is monday": {
        "maintenance_windows": [MaintenanceWindow(day="Sun", start="01:00", end="02:00")]
    },
    "a time of day is HH:MM": {
        "maintenance_windows": [MaintenanceWindow(day="sunday", start="1:00", end="02:00")]
    },
    "end is another time": {
        "maintenance_windows": [MaintenanceWindow(day="sunday", start="01:00", end="01:00")]
    },
    "requests_per_minute of envelope is a whole number from 1": {"requests_per_minute": -1},
    "concurrent_connections of envelope is a whole number": {"concurrent_connections": 0},
    "public, internal, confidential, restricted": {"data_classification": "secret"},
    "give required_permissions": {"data_classification": "confidential"},
    "required_permissions of envelope are scopes": {"required_permissions": ["read write"]},
    "signature_window of envelope is 1 to 3600": {"signature_window": 0},
    "reliability in the performance of 'now'": {
        "performance": {"now": DeclaredPerformance(reliability=1.5)}
    },
    r"average_response_time \(ms\)": {
        "performance": {"now": DeclaredPerformance(average_response_time=-5)}
    },
    "max_concurrent_requests in": {
        "performance": {"now": DeclaredPerformance(max_concurrent_requests=0)}
    },
}


@pytest.mark.parametrize("words", WRONG)
def test_what_is_wrong_is_refused_when_the_agent_is_made(words):
    with pytest.raises(ValueError, match=words):
        Agent("Clock", card=CardDetails(envelope=EnvelopeSettings(**WRONG[words])))


def test_settings_are_true_false_or_settings():
    with pytest.raises(TypeError, match=r"parley\.EnvelopeSettings"):
        Agent("Clock", card=CardDetails(envelope={"vendor": "Acme"}))
    with pytest.raises(TypeError, match="write tags="):
        EnvelopeSettings(tags="time")
    assert Agent("Clock").envelope is True
    assert Agent("Clock", card=CardDetails(envelope=False)).envelope is False


def clock(**settings):
    agent = Agent("Clock", card=CardDetails(envelope=EnvelopeSettings(**settings)))
    agent.skill(id="now")(lambda: "12:00")
    return agent


def test_what_nobody_could_meet_is_refused_when_the_agent_is_served():
    unknown = clock(performance={"later": DeclaredPerformance(reliability=0.5)})
    with pytest.raises(ValueError, match="names the skill 'later'"):
        parley.asgi(unknown)
    with pytest.raises(ValueError, match="nothing tells the scopes"):
        parley.asgi(clock(required_permissions=["read"]))
    with pytest.raises(ValueError, match="nothing tells who calls"):
        parley.asgi(clock(data_classification="internal"))
    with pytest.raises(ValueError, match="no key to verify"):
        parley.asgi(clock(signed=True))
    with pytest.raises(ValueError, match="no key to verify"):
        parley.asgi(clock(data_classification="restricted"))
