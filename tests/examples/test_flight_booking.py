"""A flight agent that asks for missing details, and books once."""

from __future__ import annotations

import pytest

from parley import TaskState

pytestmark = pytest.mark.anyio


@pytest.fixture
def flights(example):
    return example("flight_booking").agent


def booking(task):
    [artifact] = task.artifacts
    return artifact.parts[1].data


async def test_it_books_at_once_when_it_was_told_everything(flights, serve) -> None:
    async with serve(flights) as agent:
        task = await agent.send("Book a flight from Berlin to New York on 2027-03-14")
    assert task.state is TaskState.COMPLETED
    assert booking(task) | {"code": "?"} == {
        "code": "?",
        "from": "Berlin",
        "to": "New York",
        "day": "2027-03-14",
    }
    assert task.text == (
        f"Booked: Berlin to New York on 2027-03-14. Your code is {booking(task)['code']}."
    )


async def test_it_asks_for_each_thing_that_is_missing(flights, serve) -> None:
    asked = []
    async with serve(flights) as agent:
        task = await agent.send("I need a flight")
        for answer in ("Berlin", "Lisbon", "next week", "2027-02-30", "2027-03-01"):
            assert task.state is TaskState.INPUT_REQUIRED
            asked.append(task.status.message.text)
            task = await agent.send(answer, task=task)
    assert asked == [
        "Where do you fly from?",
        "Where do you fly to?",
        "On what day? Say it as 2027-03-14.",
        "On what day? Say it as 2027-03-14.",
        "On what day? Say it as 2027-03-14.",
    ]
    assert task.state is TaskState.COMPLETED
    assert (booking(task)["from"], booking(task)["day"]) == ("Berlin", "2027-03-01")


async def test_a_question_survives_a_restart_of_the_server(flights, serve, tmp_path) -> None:
    store = f"sqlite:///{tmp_path}/flights.db"
    async with serve(flights, store) as agent:
        asking = await agent.send("Book a flight from Berlin to Lisbon")
    async with serve(flights, store) as agent:
        task = await agent.send("2027-03-14", task=asking)
    assert task.id == asking.id
    assert booking(task)["day"] == "2027-03-14"


async def test_it_rejects_a_flight_to_where_it_begins(flights, serve) -> None:
    async with serve(flights) as agent:
        task = await agent.send("Book a flight from Berlin to Berlin on 2027-03-14")
    assert task.state is TaskState.REJECTED
    assert task.text == "You are in Berlin already."
