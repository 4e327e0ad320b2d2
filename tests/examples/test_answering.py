"""Three agents answer a question, one after another."""

from __future__ import annotations

import pytest

from parley import TaskState

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
