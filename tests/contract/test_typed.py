"""Typed inputs, results and questions, over every binding, version and store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

import parley
from parley import Agent, Execution, Message, Part, Role, TaskState, Turn
from parley.client import RemoteAgent, question, schemas_on
from parley.extensions import TypedQuestions
from parley.model.errors import InvalidParamsError
from tests.contract.conftest import Serve, Speech, reach

pytestmark = pytest.mark.anyio

agent = Agent(
    "Typed",
    description="Knows what it takes and what it gives.",
    execution=Execution(blocking_timeout=20.0),
)


@dataclass
class Stop:
    city: str
    nights: Annotated[int, msgspec.Meta(ge=1)] = 1


@dataclass
class Trip:
    stops: list[Stop]
    currency: Literal["EUR", "USD"] = "EUR"


class Order(pydantic.BaseModel):
    item: str
    count: int = pydantic.Field(default=1, gt=0)


@agent.skill(replies="task")
async def plan(trip: Trip) -> Trip:
    """Plans a trip."""
    return trip


@agent.skill
async def order(turn: Turn, order: Order) -> Order:
    """Orders something."""
    return order


@agent.skill
async def square(n: int) -> int:
    """Squares a number."""
    return n * n


@agent.skill(invalid_input="ask")
async def convert(amount: float, currency: Literal["EUR", "USD"]) -> str:
    """Converts money, and asks for what it needs to know."""
    return f"{amount} {currency}"


@agent.skill(replies="task")
async def book(turn: Turn) -> Stop:
    """Books a stop."""
    return await turn.ask("Where to?", answer=Stop)


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, agent))


@pytest.fixture(scope="session")
async def typed(addresses: Sequence[str], speech: Speech) -> AsyncIterator[RemoteAgent]:
    async with reach(addresses, speech) as remote:
        yield remote


async def sent(remote: RemoteAgent, skill: str, content: Any = None, **options: Any) -> Any:
    return await remote.send(content, message_metadata={"skill": skill}, **options)


async def test_input_comes_as_data_or_as_text(typed: RemoteAgent) -> None:
    trip = {"stops": [{"city": "Rome", "nights": 2}]}
    whole = {**trip, "currency": "EUR"}
    for options in ({"data": trip}, {"content": msgspec.json.encode(trip).decode()}):
        task = await sent(typed, "plan", **options)
        assert task.state is TaskState.COMPLETED
        assert task.artifacts[0].parts[0].data == whole
    for options in ({"data": 7}, {"data": {"n": 7}}, {"content": "7"}, {"content": '{"n": 7}'}):
        reply = await sent(typed, "square", **options)
        assert reply.parts[0].data == 49


async def test_a_mismatch_is_refused_by_its_fields_without_a_task(typed: RemoteAgent) -> None:

    for wrong, violation in (
        ({"stops": [{"city": 3}, {}]}, ("stops[0].city", "expected text, got a number")),
        ({"stops": [{"city": "x", "nights": 0}]}, ("stops[0].nights", "expected an integer >= 1")),
        ({"stops": [{"city": "x"}, {}]}, ("stops[1].city", "required: text")),
        ({"stops": [], "currency": "GBP"}, ("currency", 'expected one of "EUR", "USD"')),
    ):
        with pytest.raises(InvalidParamsError, match="the skill 'plan' does not fit") as caught:
            await sent(typed, "plan", data=wrong)
        assert [tuple(each) for each in caught.value.violations] == [violation]
    with pytest.raises(InvalidParamsError) as caught:
        await sent(typed, "order", data={"count": 0})
    assert [tuple(each) for each in caught.value.violations] == [
        ("item", "Field required"),
        ("count", "Input should be greater than 0"),
    ]
    stream = typed.stream("A trip, please", message_metadata={"skill": "plan"})
    with pytest.raises(InvalidParamsError) as caught:
        await anext(aiter(stream))
    assert [tuple(each) for each in caught.value.violations] == [("stops", "required: a list")]


async def test_prose_is_answered_by_a_question_that_data_answers(typed: RemoteAgent) -> None:
    task = await sent(typed, "convert", "Convert some money, please")
    assert task.state is TaskState.INPUT_REQUIRED
    asked = question(task)
    assert asked is not None
    assert [each.field for each in asked.problems] == ["amount", "currency"]
    assert set(asked.schema["properties"]) == {"amount", "currency"}
    task = await typed.send(data={"amount": 3, "currency": "GBP"}, task=task)
    asked = question(task)
    assert asked is not None
    assert [each.field for each in asked.problems] == ["currency"]
    task = await typed.send("USD", task=task)
    assert task.text == "3.0 USD"
    reply = await sent(typed, "convert", data={"amount": 2, "currency": "EUR"})
    assert reply.text == "2.0 EUR"


async def test_a_skill_is_named_by_its_id(typed: RemoteAgent) -> None:
    assert (await typed.send("7", skill="square")).parts[0].data == 49
    reply = await typed.send(data={"amount": 2, "currency": "EUR"}, skill="convert")
    assert reply.text == "2.0 EUR"
    events = [event async for event in typed.stream("?", skill="book")]
    assert events[-1].status.state is TaskState.INPUT_REQUIRED


async def test_an_unknown_skill_is_refused_with_those_that_there_are(typed: RemoteAgent) -> None:
    names = "it has plan, order, square, convert, book"
    with pytest.raises(InvalidParamsError, match=f"no skill 'cube'; {names}") as caught:
        await typed.send("7", skill="cube")
    assert caught.value.violations[0].field == "message.metadata.skill"
    with pytest.raises(InvalidParamsError, match=f"no skill 'cube'; {names}"):
        await sent(typed, "cube", "7")
    with pytest.raises(ValueError, match="another skill than 'square'"):
        await typed.send("7", skill="square", message_metadata={"skill": "plan"})


async def test_data_goes_to_the_only_skill_that_it_fits(typed: RemoteAgent) -> None:
    assert (await typed.send(data={"item": "pen"})).parts[0].data == {"item": "pen", "count": 1}
    assert (await typed.send(data={"amount": 2, "currency": "EUR"})).text == "2.0 EUR"
    assert (await typed.send('{"n": 3}')).parts[0].data == 9
    task = await typed.send(data={"stops": [{"city": "Rome"}]})
    assert task.artifacts[0].parts[0].data["stops"] == [{"city": "Rome", "nights": 1}]
    task = await typed.send(data={"fits": "no type"})
    assert task.state is TaskState.INPUT_REQUIRED


async def test_a_typed_answer_is_asked_for_until_it_fits(typed: RemoteAgent) -> None:
    task = await sent(typed, "book", "Book")
    asked = question(task)
    assert asked is not None
    assert asked.text == "Where to?"
    assert asked.schema["required"] == ["city"]
    assert not asked.problems
    task = await typed.send("somewhere", task=task)
    asked = question(task)
    assert asked is not None
    assert [each.field for each in asked.problems] == ["$"]
    task = await typed.send(data={"city": "Rome", "nights": 3}, task=task)
    assert task.artifacts[0].parts[0].data == {"city": "Rome", "nights": 3}


async def test_a_plain_question_has_no_schema() -> None:
    data = Part(data={"schema": "a word of the agent's own"})
    assert question(Message(message_id="m", role=Role.AGENT, parts=(data,))) is None


async def test_the_card_has_the_schemas(typed: RemoteAgent) -> None:
    schemas = schemas_on(typed.card)
    assert schemas.keys() == {"plan", "order", "square", "convert", "book"}
    assert schemas["plan"].input is not None
    assert schemas["plan"].input["$defs"]["Stop"]["properties"]["nights"]["minimum"] == 1
    assert schemas["convert"].output is None
    assert schemas["book"].input is None
    modes = {skill.id: skill.input_modes for skill in typed.card.skills}
    assert modes["plan"] == ("application/json", "text/plain")


async def test_a_question_names_the_extension_for_those_who_ask_for_it(
    addresses: Sequence[str], speech: Speech
) -> None:
    async with reach(addresses, speech, extensions=[TypedQuestions()]) as remote:
        task = await sent(remote, "book", "Book")
        assert task.id
        assert task.status.message is not None
        assert TypedQuestions.uri in task.status.message.extensions
        assert question(task) is not None
