"""The money changer: data in, questions for what is missing, data out."""

from __future__ import annotations

import pytest

from parley import TaskState
from parley.client import question, schemas_on

pytestmark = pytest.mark.anyio


@pytest.fixture
def currency(example):
    return example("currency")


async def test_data_that_fits_is_answered_at_once(currency, serve) -> None:
    async with serve(currency.agent) as agent:
        reply = await agent.send(data={"amount": 100, "source": "EUR", "target": "USD"})
        assert reply.parts[0].data == {"amount": 108.0, "currency": "USD", "pickup": None}
        reply = await agent.send('{"amount": 108, "source": "USD"}')
        assert reply.parts[0].data == {"amount": 100.0, "currency": "EUR", "pickup": None}


async def test_prose_is_asked_for_what_it_lacks(currency, serve) -> None:
    async with serve(currency.agent) as agent:
        task = await agent.send("Change some money, please")
        asked = question(task)
        assert [each.field for each in asked.problems] == ["amount", "source"]
        task = await agent.send('{"amount": 100}', task=task)
        assert [each.field for each in question(task).problems] == ["source"]
        task = await agent.send("EUR", task=task)
        assert task.artifacts[0].parts[0].data["amount"] == 100.0


async def test_a_large_sum_is_fetched(currency, serve) -> None:
    async with serve(currency.agent) as agent:
        task = await agent.send(data={"amount": 340_000, "source": "JPY"})
        assert task.state is TaskState.INPUT_REQUIRED
        assert question(task).schema["required"] == ["branch", "day"]
        task = await agent.send(data={"branch": "Harbour", "day": "soon"}, task=task)
        assert [each.field for each in question(task).problems] == ["branch"]
        task = await agent.send(data={"branch": "Station", "day": "soon"}, task=task)
        assert [each.field for each in question(task).problems] == ["day"]
        pickup = {"branch": "Station", "day": "2027-03-14"}
        task = await agent.send(data=pickup, task=task)
        made = {"amount": 2000.0, "currency": "EUR", "pickup": pickup}
        assert task.artifacts[0].parts[0].data == made


async def test_the_card_describes_what_goes_in(currency, serve) -> None:
    async with serve(currency.agent) as agent:
        schema = schemas_on(agent.card)["exchange"].input
        assert schema["required"] == ["amount", "source"]
        assert schema["properties"]["amount"]["description"] == "how much to change"
        assert schema["properties"]["target"]["default"] == "EUR"
