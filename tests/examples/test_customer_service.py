"""A conversation goes from customer service to billing and back, with its context."""

from __future__ import annotations

import pytest

from parley import TaskState

pytestmark = pytest.mark.anyio


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
