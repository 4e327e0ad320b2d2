"""The reference of a failed task leads to what happened, in the log and in the audit."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from parley import Agent, TaskState, Turn
from parley.model.ids import INCIDENT_KEY
from parley.store.audit.reading import fact_of

pytestmark = pytest.mark.anyio


async def test_a_reference_names_its_task_wherever_an_operator_looks(
    talk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Crasher")

    @agent.skill(replies="task")
    async def crash(turn: Turn) -> None:
        turn.log.warning("at %d %%", 5, extra={"kept": True})
        raise ValueError("secret")

    async with talk(agent) as caller:
        task = await caller.task("go")
        events = await caller.store.events(task.id, 0, 100)
    assert task.state is TaskState.FAILED
    said = task.status.message
    assert said is not None
    reference = said.text.rpartition(" ")[2]
    assert said.metadata == {INCIDENT_KEY: {"reference": reference, "skill": "crash"}}
    (incident,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    line = incident.getMessage()
    for each in (reference, task.id, task.context_id, "'crash'"):
        assert each in line
    fact = fact_of(events[-1], "")
    assert fact is not None
    assert fact.details == {
        "turn": 1, "reference": reference, "skill": "crash", "context": task.context_id
    }  # fmt: skip
    (own,) = [each for each in caplog.records if each.name == "parley.agent"]
    assert own.getMessage() == f"task {task.id}: at 5 %"
    assert vars(own)["kept"] is True
    assert vars(own)["task_id"] == task.id
    assert vars(own)["skill"] == "crash"
