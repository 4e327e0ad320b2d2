"""Several agents: in sequence, in parallel, by a planner, and with handovers."""

from __future__ import annotations

import pytest

import parley
from parley import TaskState
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio


async def test_a_question_goes_through_intent_articles_and_answer(example, serve) -> None:
    async with serve(example("answering").agent) as shop:
        task = await shop.send("How long does delivery to Norway take?")
        assert task.state is TaskState.COMPLETED
        assert task.text.startswith("Delivery takes 2 days at home and 5 days abroad.")
        assert "(Articles: Delivery times, Delivery costs)" in task.text
        said = [message.text for message in task.history]
        assert not any("Answer" in text for text in said)


async def test_an_unclear_question_is_asked_back_by_the_agent_that_needs_it(example, serve) -> None:
    async with serve(example("answering").agent) as shop:
        task = await shop.send("Help me")
        assert task.state is TaskState.INPUT_REQUIRED
        assert task.status.message.text == "Intent: Is it about delivery, returns, payment?"
        task = await shop.send("payment", task=task)
        assert task.text.startswith("We take cards, transfers and invoices.")


async def test_what_the_shop_knows_nothing_of_is_refused(example, serve) -> None:
    async with serve(example("answering").agent) as shop:
        task = await shop.send("Who wrote Hamlet?")
        task = await shop.send("Shakespeare", task=task)
        assert task.state is TaskState.FAILED
        assert "I know about delivery, returns and payment." in task.text


# -- three agents analyze numbers in parallel, and one report contains their results ---------------


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
    module.min = None  # only one agent uses this function
    async with serve(module.agent) as reporter:
        task = await reporter.send({"values": VALUES})
        assert "No result: Statistics" in task.text


# -- A planner that calls two other agents ---------------------------------------------------------


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


# -- a conversation moves from customer service to billing and back, with its context --------------


async def test_billing_knows_what_was_said_and_returns_the_conversation(example, serve) -> None:
    module = example("customer_service")
    async with serve(module.agent) as service:
        first = await service.send("Has my order 42 been sent?")
        assert first.text == "The parcel of order 42 is in Tampere, and comes tomorrow."
        context = first.context_id
        asked = await service.send("But I was charged twice!", context_id=context)
        assert asked.state is TaskState.INPUT_REQUIRED
        assert "Order 42 was charged 2 times" in asked.status.message.text
        paid = await service.send("yes", task_id=asked.id)
        assert "30.00 EUR are on the way." in paid.text
        assert module.CHARGES["42"] == [30.0]
        last = await service.send("And when will the parcel of order 42 come?", context_id=context)
        assert "comes tomorrow" in last.text
        other = await service.send("I was charged for order 43?")
        assert "charged 1 times: 12.50" in other.text
        asked = await service.send("I was charged for order 77?")
        unknown = await service.send("my order", task_id=asked.id)
        assert unknown.text == "I know no order without a number."


async def test_what_the_customer_does_not_agree_to_is_not_done(example, serve) -> None:
    module = example("customer_service")
    async with serve(module.agent) as service:
        asked = await service.send("I was charged twice for order 42")
        done = await service.send("no, leave it", task_id=asked.id)
        assert "stays as it is" in done.text
        assert module.CHARGES["42"] == [30.0, 30.0]
