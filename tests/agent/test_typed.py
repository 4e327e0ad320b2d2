"""Typed inputs, results and answers, from the author's and the caller's side."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from parley import Agent, BlockingTurn, Message, Part, Role, Task, TaskState, Turn
from parley.client import question, schemas_on
from parley.extensions import SkillSchemas
from parley.extensions.questions import SCHEMA_MEDIA_TYPE
from tests.engine.fleet import Fleet, until_state
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


@dataclass
class Conversion:
    amount: float
    currency: Literal["EUR", "USD"] = "EUR"


@dataclass
class Dates:
    start: str
    nights: Annotated[int, msgspec.Meta(ge=1)]


class Order(pydantic.BaseModel):
    item: str
    count: int = pydantic.Field(default=1, gt=0)


def message(*parts: Part, **about: Any) -> Message:
    return Message(message_id=about.pop("message_id", "m"), role=Role.USER, parts=parts, **about)


def data(value: Any, **about: Any) -> Message:
    return message(Part(data=value), **about)


def asked(task: Task) -> Any:
    found = question(task)
    assert found is not None
    return found


def fields(problems: Any) -> list[tuple[str, str]]:
    return [(each.field, each.description) for each in problems]


# -- inputs ------------------------------------------------------------------------------------


async def test_each_form_of_a_function_gets_its_values(talk: Any) -> None:
    agent = Agent("Forms")

    @agent.skill
    async def coroutine(request: Conversion) -> str:
        return repr(request)

    @agent.skill
    def plain(turn: BlockingTurn, amount: float, currency: str = "EUR") -> str:
        assert isinstance(turn, BlockingTurn)
        return f"{amount} {currency}"

    @agent.skill
    async def streams(turn: Turn, amount: float) -> Any:
        assert isinstance(turn, Turn)
        yield f"{amount}"

    @agent.skill
    def yields(amount: float) -> Iterator[str]:
        yield f"{amount}"

    @agent.skill
    async def order(order: Order) -> Order:
        return order

    async with talk(agent) as caller:
        said = [
            (await caller.send(data({"amount": 3, "item": "tea"}, metadata={"skill": skill})))
            for skill in agent.skills
        ]
    assert said[0].text == "Conversion(amount=3.0, currency='EUR')"
    assert [reply.text for reply in said[1:4]] == ["3.0 EUR", "3.0", "3.0"]
    assert said[4].parts[0].data == {"item": "tea", "count": 1}


def test_typed_skills_take_json_and_text_whatever_the_agent_takes() -> None:
    agent = Agent("Modes", input_modes=["image/png"], output_modes=["image/png"])

    @agent.skill
    async def blind(request: Conversion) -> Conversion:
        return request

    @agent.skill
    async def seeing(turn: Turn, request: Conversion) -> str:
        return ""

    @agent.skill
    async def plain(turn: Turn) -> str:
        return ""

    modes = {skill.id: (skill.input_modes, skill.output_modes) for skill in agent.card("").skills}
    assert modes == {
        "blind": (("application/json", "text/plain"), ("application/json", "image/png")),
        "seeing": (("application/json", "image/png"), ()),
        "plain": ((), ()),
    }


# -- the card ----------------------------------------------------------------------------------


def test_the_card_has_the_schemas_of_typed_skills_and_no_others() -> None:
    agent = Agent("Carded")

    @agent.skill
    async def convert(turn: Turn, request: Conversion) -> Order:
        return Order(item="tea")

    @agent.skill
    async def say(turn: Turn) -> str:
        return ""

    schemas = schemas_on(agent.card(""))
    assert schemas.keys() == {"convert"}
    assert schemas["convert"].input is not None
    assert schemas["convert"].input["required"] == ["amount"]
    assert schemas["convert"].output is not None
    assert schemas["convert"].output["properties"].keys() == {"item", "count"}
    declared = [each for each in agent.describe().extensions if each.uri == SkillSchemas.uri]
    assert len(declared) == 1
    assert not declared[0].required


# -- asking for input --------------------------------------------------------------------------


def asking(seen: list[Any]) -> Agent:
    agent = Agent("Asking")

    @agent.skill(invalid_input="ask")
    async def convert(turn: Turn, amount: float, currency: Literal["EUR", "USD"]) -> str:
        """Converts money."""
        seen.append((amount, currency))
        if amount > 100:
            await turn.ask("So much?")
        return f"{amount} {currency}"

    return agent


async def test_prose_leads_to_a_question_and_answers_complete_it(talk: Any) -> None:
    seen: list[Any] = []
    async with talk(asking(seen)) as caller:
        task = await caller.task("Convert some money, please")
        assert task.state is TaskState.INPUT_REQUIRED
        assert fields(asked(task).problems) == [
            ("amount", "required: a number"),
            ("currency", 'required: one of "EUR", "USD"'),
        ]
        assert asked(task).schema["required"] == ["amount", "currency"]
        assert task.status.message.parts[-1].media_type == SCHEMA_MEDIA_TYPE
        assert "- amount: required: a number" in asked(task).text

        task = await caller.task("I do not know", task_id=task.id)
        assert len(asked(task).problems) == 2

        task = await caller.task(data({"amount": 500, "currency": "GBP"}, task_id=task.id))
        assert fields(asked(task).problems) == [("currency", 'expected one of "EUR", "USD"')]
        assert asked(task).schema == {
            "type": "object",
            "properties": {"currency": {"enum": ["EUR", "USD"]}},
            "required": ["currency"],
        }
        assert seen == []

        task = await caller.task("USD", task_id=task.id)
        assert task.status.message.text == "So much?"
        task = await caller.task("yes", task_id=task.id)
        assert task.text == "500.0 USD"
    assert seen == [(500.0, "USD")] * 2


async def test_what_was_valid_is_kept_and_what_was_wrong_is_asked_for(talk: Any) -> None:
    seen: list[Any] = []
    async with talk(asking(seen)) as caller:
        task = await caller.task(data({"amount": "much", "currency": "EUR"}))
        assert fields(asked(task).problems) == [("amount", "expected a number, got text")]
        task = await caller.task("12.5", task_id=task.id)
        assert task.text == "12.5 EUR"
        task = await caller.task(data({"currency": "EUR"}, message_id="m2"))
        task = await caller.task('{"amount": 7}', task_id=task.id)
        assert task.text == "7.0 EUR"
        reply = await caller.send(data({"amount": 1, "currency": "USD"}, message_id="m3"))
        assert reply.text == "1.0 USD"  # the input is valid, so the agent does not ask


async def test_a_mapping_with_a_wrong_member_is_asked_for_as_a_whole(talk: Any) -> None:
    agent = Agent("Prices")

    @agent.skill(invalid_input="ask")
    async def order(name: str, prices: dict[str, float]) -> str:
        return f"{name} {prices}"

    async with talk(agent) as caller:
        task = await caller.task(data({"name": "tea", "prices": {"tea": "dear", "cup": 1}}))
        assert fields(asked(task).problems) == [("prices[...]", "expected a number, got text")]
        assert asked(task).schema["required"] == ["prices"]
        task = await caller.task(data({"name": "Tea"}, task_id=task.id))
        assert fields(asked(task).problems) == [("prices", "required: an object")]
        task = await caller.task('{"prices": {"tea": 2}}', task_id=task.id)
        assert task.text == "Tea {'tea': 2.0}"


async def test_nested_input_is_merged_field_by_field(talk: Any) -> None:
    agent = Agent("Nested")

    @dataclass
    class Trip:
        dates: Dates
        stops: list[str]

    @agent.skill(invalid_input="ask")
    async def plan(trip: Trip) -> Trip:
        return trip

    async with talk(agent) as caller:
        task = await caller.task(
            data({"dates": {"start": "Monday", "nights": 0}, "stops": ["a", 1]})
        )
        assert [field for field, _ in fields(asked(task).problems)] == ["dates.nights"]
        task = await caller.task(data({"dates": {"nights": 2}}, task_id=task.id))
        assert fields(asked(task).problems) == [("stops[1]", "expected text, got a number")]
        task = await caller.task('["a"]', task_id=task.id)
        assert task.artifacts[0].parts[0].data == {
            "dates": {"start": "Monday", "nights": 2},
            "stops": ["a"],
        }


async def test_completed_input_survives_a_restart(talk: Any, new_store: Any) -> None:
    store = new_store()
    if type(store).__name__ == "MemoryTaskStore":
        pytest.skip("a store in memory survives nothing")
    seen: list[Any] = []
    async with talk(asking(seen), store) as caller:
        task = await caller.task("Convert, please")
        task = await caller.task(data({"amount": 200}, task_id=task.id))
    async with talk(asking(seen)) as caller:
        task = await caller.task("EUR", task_id=task.id)
        assert task.status.message.text == "So much?"
    async with talk(asking(seen)) as caller:
        assert (await caller.task("yes", task_id=task.id)).text == "200.0 EUR"
    assert seen == [(200.0, "EUR")] * 2


@pytest.mark.slow
@pytest.mark.E3
async def test_a_crash_changes_no_values(mortal_fleet: Fleet) -> None:
    agent, seen, go_on = Agent("Crashing"), [], asyncio.Event()

    @agent.skill(invalid_input="ask", replies="task")
    async def convert(turn: Turn, amount: float, dates: Dates) -> str:
        when = await turn.ask("When?", answer=Dates)
        seen.append((turn.attempt, amount, dates, when))
        await go_on.wait()
        return f"{amount} {when.start}"

    one, two = await mortal_fleet.add(agent), await mortal_fleet.add(agent)
    task = await one.task(data({"amount": 3}))
    monday, friday = {"start": "Monday", "nights": 1}, {"start": "Friday", "nights": 2}
    task = await one.task(data({"dates": monday}, task_id=task.id))
    task = await one.task(data({"start": "Friday"}, task_id=task.id))
    await one.task(data(friday, task_id=task.id), return_immediately=True)
    await until(lambda: bool(seen))
    running = one if one.executor.running else two
    other = two if running is one else one
    await mortal_fleet.kill(running)
    await until(lambda: len(seen) == 2)
    go_on.set()
    done = await until_state(other, task.id, TaskState.COMPLETED)
    assert done.text == "3.0 Friday"
    values = (3.0, Dates("Monday", 1), Dates("Friday", 2))
    assert seen == [(1, *values), (2, *values)]


# -- answers -----------------------------------------------------------------------------------


def booking(seen: list[Any]) -> Agent:
    agent = Agent("Booking")

    @agent.skill(replies="task", default=True)
    async def book(turn: Turn) -> Dates:
        first = await turn.ask("When?", answer=Dates)
        size = await turn.ask("Which size?", answer=Literal["small", "large"], key="size")
        note = await turn.ask("Anything else?")
        seen.append((first, size, note.text))
        return first

    @agent.skill
    def blocking(turn: BlockingTurn) -> str:
        dates = turn.ask("When?", answer=Dates)
        return f"{dates.start} {turn.ask('How many?', answer=int)}"

    return agent


async def test_an_answer_is_asked_for_until_it_fits(talk: Any) -> None:
    seen: list[Any] = []
    async with talk(booking(seen)) as caller:
        task = await caller.task("Book")
        assert asked(task).text == "When?"
        assert not asked(task).problems
        assert asked(task).schema["required"] == ["start", "nights"]
        task = await caller.task("next week", task_id=task.id)
        assert fields(asked(task).problems) == [("$", "expected an object, got text")]
        task = await caller.task(data({"start": 3, "nights": 0}, task_id=task.id))
        assert fields(asked(task).problems) == [("start", "expected text, got a number")]
        assert asked(task).text.startswith("When?\n\nThat does not fit:\n- start: expected")
        task = await caller.task('{"start": "Monday", "nights": 2}', task_id=task.id)
        assert asked(task).schema == {"enum": ["large", "small"]}
        task = await caller.task("small", task_id=task.id)
        assert question(task) is None
        task = await caller.task("no", task_id=task.id)
        assert task.state is TaskState.COMPLETED
        assert task.artifacts[0].parts[0].data == {"start": "Monday", "nights": 2}
    assert seen == [(Dates("Monday", 2), "small", "no")]


async def test_a_function_in_a_thread_asks_for_types_too(talk: Any) -> None:
    async with talk(booking([])) as caller:
        task = await caller.task("Book", metadata={"skill": "blocking"})
        task = await caller.task(data({"start": "Monday"}, task_id=task.id))
        task = await caller.task(data({"start": "Monday", "nights": 2}, task_id=task.id))
        task = await caller.task("many", task_id=task.id)
        assert fields(asked(task).problems) == [("$", "expected an integer, got text")]
        task = await caller.task("4", task_id=task.id)
        assert task.text == "Monday 4"


# -- results -----------------------------------------------------------------------------------


async def test_callers_of_a_data_skill_may_accept_json_alone(talk: Any) -> None:
    agent = Agent("Json")

    @agent.skill
    async def dates(turn: Turn) -> Dates:
        return Dates("Monday", 1)

    async with talk(agent) as caller:
        reply = await caller.send("go", accepted_output_modes=("application/json",))
        assert reply.parts[0].data == {"start": "Monday", "nights": 1}
        reply = await caller.send("go", accepted_output_modes=("text/plain",))
        assert reply.text == '{"start":"Monday","nights":1}'


async def test_a_text_may_come_as_data_under_the_name_of_its_parameter(talk: Any) -> None:
    agent = Agent("Echo")

    @agent.skill(id="plain")
    async def plain(query: str) -> str:
        return f"<{query}>"

    @agent.skill(id="turn")
    async def with_turn(turn: Turn, query: str) -> str:
        return f"<{query}>"

    given = ({"query": "refunds"}, "refunds", {"other": "refunds"})
    async with talk(agent) as caller:
        for skill in agent.skills:
            said = [
                (await caller.send(data(each, message_id=f"{skill}{n}", metadata={"skill": skill})))
                for n, each in enumerate(given)
            ]
            assert [reply.text for reply in said] == ["<refunds>", "<refunds>", "<>"]
