"""Three agents look at numbers at once, and one report has what they found."""

from __future__ import annotations

import pytest

from parley import TaskState

pytestmark = pytest.mark.anyio

VALUES = [10, 11, 12, 11, 13, 40, 14, 15]


async def test_one_report_has_statistics_trend_and_anomalies(example, serve) -> None:
    async with serve(example("report").agent) as reporter:
        task = await reporter.send({"values": VALUES})
        assert task.state is TaskState.COMPLETED
        text = task.text
        places = [text.index(f"## {name}") for name in ("Statistics", "Trend", "Anomalies")]
        assert places == sorted(places)
        assert "'mean': 15.75" in text
        assert "'course': 'rises'" in text
        assert "'position': 6" in text


async def test_no_numbers_are_refused_by_name(example, serve) -> None:
    async with serve(example("report").agent) as report:
        failed = await report.send({"values": []})
    assert failed.state is TaskState.FAILED
    assert "Statistics: the input of the skill 'describe' does not fit: values" in failed.text


async def test_an_agent_that_fails_is_named_in_the_report(example, serve) -> None:
    module = example("report")
    module.min = None  # what only one of them uses
    async with serve(module.agent) as reporter:
        task = await reporter.send({"values": VALUES})
        assert "No result: Statistics" in task.text
