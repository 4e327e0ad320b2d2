"""Tests of agents: the real client and the real app without a socket, with a clock that tests move.

    from datetime import timedelta
    from parley import testing

    async def test_it_reminds_after_two_days():
        async with testing.client(agent) as remote:
            task = await remote.send("Remind me", return_immediately=True)
            await remote.advance(timedelta(days=2))
            assert await remote.get(task.id) == testing.completed(text="Do it now.")

``docs/guides/test-your-agent.md`` is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parley.conformance import faults
    from parley.conformance.faults.proxy import FaultProxy
    from parley.conformance.issuer import Issuer
    from parley.testing.cassettes import Cassette, ModelCassette, cassette, model_cassette
    from parley.testing.in_process_client import Client, TestedAgent, TestTime, client
    from parley.testing.matchers import (
        Matcher,
        anything,
        artifact,
        assert_events,
        auth_required,
        canceled,
        completed,
        containing,
        failed,
        input_required,
        message,
        rejected,
        submitted,
        working,
    )
    from parley.testing.scripted import Received, ScriptedAgent
    from parley.testing.tape import NotOnTape, TapeUnreadable
    from parley.testing.webhooks import Deliveries, Delivery

_HOMES = {
    "Cassette": "parley.testing.cassettes",
    "Client": "parley.testing.in_process_client",
    "Deliveries": "parley.testing.webhooks",
    "Delivery": "parley.testing.webhooks",
    "FaultProxy": "parley.conformance.faults.proxy",
    "Issuer": "parley.conformance.issuer",
    "Matcher": "parley.testing.matchers",
    "ModelCassette": "parley.testing.cassettes",
    "NotOnTape": "parley.testing.tape",
    "Received": "parley.testing.scripted",
    "ScriptedAgent": "parley.testing.scripted",
    "TapeUnreadable": "parley.testing.tape",
    "TestTime": "parley.testing.in_process_client",
    "TestedAgent": "parley.testing.in_process_client",
    "anything": "parley.testing.matchers",
    "artifact": "parley.testing.matchers",
    "assert_events": "parley.testing.matchers",
    "auth_required": "parley.testing.matchers",
    "canceled": "parley.testing.matchers",
    "cassette": "parley.testing.cassettes",
    "client": "parley.testing.in_process_client",
    "completed": "parley.testing.matchers",
    "containing": "parley.testing.matchers",
    "failed": "parley.testing.matchers",
    "input_required": "parley.testing.matchers",
    "message": "parley.testing.matchers",
    "model_cassette": "parley.testing.cassettes",
    "rejected": "parley.testing.matchers",
    "submitted": "parley.testing.matchers",
    "working": "parley.testing.matchers",
}

__all__ = [
    "Cassette",
    "Client",
    "Deliveries",
    "Delivery",
    "FaultProxy",
    "Issuer",
    "Matcher",
    "ModelCassette",
    "NotOnTape",
    "Received",
    "ScriptedAgent",
    "TapeUnreadable",
    "TestTime",
    "TestedAgent",
    "anything",
    "artifact",
    "assert_events",
    "auth_required",
    "canceled",
    "cassette",
    "client",
    "completed",
    "containing",
    "failed",
    "faults",
    "input_required",
    "message",
    "model_cassette",
    "rejected",
    "submitted",
    "working",
]


def __getattr__(name: str) -> Any:
    """Load a name on first use: this keeps the pytest plugin cheap in runs that test no agent."""
    if name == "faults":
        return importlib.import_module("parley.conformance.faults")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'parley.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
