"""A planner that calls two other agents."""

from __future__ import annotations

import pytest

import parley
from parley import TaskState
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio


async def test_it_calls_two_agents_and_passes_a_question_up(example, serve, monkeypatch) -> None:
    flights, clock = example("flight_booking").agent, example("time_agent").agent
    async with (
        under_uvicorn(parley.asgi(flights, store="memory:")) as flights_url,
        under_uvicorn(parley.asgi(clock, store="memory:")) as clock_url,
    ):
        monkeypatch.setenv("FLIGHTS", flights_url)
        monkeypatch.setenv("CLOCK", clock_url)
        async with serve(example("planner").agent) as planner:
            task = await planner.send("Plan a trip from Berlin to Tokyo")
            assert task.state is TaskState.INPUT_REQUIRED
            assert task.status.message.text.startswith("On what day?")
            task = await planner.send("2027-03-14", task=task)
            assert task.state is TaskState.COMPLETED
            assert "Booked: Berlin to Tokyo on 2027-03-14" in task.text
            assert "Tokyo" in task.text.splitlines()[1]
            assert any("Booking Berlin" in message.text for message in task.history)


async def test_a_refusal_of_the_other_agent_is_told(example, serve, monkeypatch) -> None:
    flights, clock = example("flight_booking").agent, example("time_agent").agent
    async with (
        under_uvicorn(parley.asgi(flights, store="memory:")) as flights_url,
        under_uvicorn(parley.asgi(clock, store="memory:")) as clock_url,
    ):
        monkeypatch.setenv("FLIGHTS", flights_url)
        monkeypatch.setenv("CLOCK", clock_url)
        async with serve(example("planner").agent) as planner:
            task = await planner.send("Plan a trip from Berlin to Berlin on 2027-03-14")
            assert task.state is TaskState.FAILED
            assert task.text == "There is no trip: You are in Berlin already."
