"""One answer, whatever came: its members, typed results, and what follows a question."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import parley
from parley import Agent, Answer, Part, RemoteTaskFailed, ResultMismatch, ResultMissing, Turn
from parley.client import auth_request, new_output, question
from parley.client.answer import ReturnType
from parley.compose import Outcome, PartFailure, part, sequence
from parley.extensions.usage import spent_on
from parley.model.cards import AgentCapabilities, AgentCard, AgentExtension, AgentSkill
from parley.model.errors import InvalidParamsError
from parley.server.run import serving
from parley.testing import client
from parley.testing import completed as is_completed

pytestmark = pytest.mark.anyio


@dataclass
class Offer:
    route: str
    price: float
    day: date | None = None


class Priced(BaseModel):
    price: float


@dataclass
class Cabin:
    price: float
    cabin: str


def desk(replies: Literal["message", "task"] | None = None) -> Agent:
    agent = Agent("Fare desk", description="Knows fares")

    @agent.skill(replies=replies)
    async def fare(origin: str, day: date) -> Offer:
        return Offer(f"{origin}-LIS", 97.2, day)

    @agent.skill(replies=replies)
    async def say(turn: Turn) -> str:
        return turn.text

    @agent.skill(replies=replies)
    async def draw(turn: Turn) -> list[Part]:
        return [Part(text="a dot"), Part(raw=b"dot", filename="dot.png", media_type="image/png")]

    @agent.skill
    async def choose(turn: Turn) -> Offer:
        answer = await turn.ask("Which cabin?", answer=Literal["A", "B"])
        return Offer(answer, 5)

    @agent.skill
    async def plain(turn: Turn) -> str:
        return (await turn.ask("Where to?")).text

    @agent.skill
    async def guarded(turn: Turn) -> str:
        await turn.require_auth("May I?", scopes="fares.read")
        return "done"

    @agent.skill
    async def allowed(turn: Turn) -> str:
        return (await turn.require_auth("May I?")).text

    @agent.skill
    async def fails(turn: Turn) -> Offer:
        turn.fail("No fares today.")

    @agent.skill
    async def paid(turn: Turn) -> str:
        return f"paid {await turn.wait_event('payment')}"

    return agent


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("replies", ["message", "task"])
async def test_a_quick_and_a_slow_answer_have_the_same_members(replies: Any, version: str) -> None:
    async with client(desk(replies), version=version) as remote:
        said = await remote.send("hello", skill="say")
        fare = await remote.send(data={"origin": "BER", "day": "2027-03-15"}, skill="fare")
        drawn = await remote.send("a dot", skill="draw")
    for answer in (said, fare, drawn):
        assert (answer.ok, answer.state.name, answer.question) == (True, "COMPLETED", None)
        assert answer.auth_request is None
        assert (answer.task is None) == (replies == "message") == (answer.id == "")
        assert answer.required() is answer
        assert answer.reply in (answer.task, answer.message)
    assert (said.text, said.data, said.files, str(said)) == ("hello", None, (), "hello")
    assert said.parts == (Part(text="hello", media_type=said.parts[0].media_type),)
    offer = {"route": "BER-LIS", "price": 97.2, "day": "2027-03-15"}
    assert (fare.data, fare.text) == (offer, "")
    assert str(fare) == '{"route":"BER-LIS","price":97.2,"day":"2027-03-15"}'
    assert [file.raw for file in drawn.files] == [b"dot"]
    assert len(drawn.artifacts) == (replies == "task")


async def test_a_question_is_read_and_answered_in_one_way() -> None:
    async with client(desk()) as remote:
        asked = await remote.send("go", skill="choose")
        assert (asked.ok, asked.data) == (False, None)
        assert asked.question == question(asked)
        assert asked.question is not None
        assert (asked.question.text, asked.question.schema["enum"]) == ("Which cabin?", ["A", "B"])
        again = await remote.send(data="C", task=asked)
        assert again.question is not None
        assert again.question.problems
        chosen = await remote.send(data="B", task=again, returns=Offer)
        assert chosen.data == Offer("B", 5)
        assert new_output(asked, chosen).artifacts == chosen.artifacts
        plain = await remote.send("go", skill="plain")
        assert plain.question is not None
        assert (plain.question.text, plain.question.schema) == ("Where to?", {})
        assert (await remote.send("Rome", task=plain)).text == "Rome"
        direct = await remote.send("hello", skill="say")
        assert (
            await remote.send("again", task=direct, skill="say")
        ).context_id == direct.context_id
        with pytest.raises(ValueError, match="direct message"):
            await remote.wait(direct)


async def test_what_continues_a_task_gives_the_answer_that_follows() -> None:
    async with client(desk()) as remote:
        asked = await remote.send("go", skill="guarded")
        assert asked.auth_request == auth_request(asked)
        assert asked.question is None
        assert (await remote.authorize(asked, "a-token")).text == "done"
        asked = await remote.send("go", skill="guarded")
        waiting = asyncio.create_task(remote.wait(asked))
        await remote.settle()
        assert not waiting.done()  # what follows the question, and not the question
        given = await remote.authorize(asked, "a-token", return_immediately=True)
        assert given.id == asked.id
        assert (await waiting).text == "done"
        asked = await remote.send("go", skill="allowed")
        assert asked.auth_request is not None
        assert (asked.auth_request.text, asked.auth_request.callback) == ("May I?", "")
        assert (await remote.send("You may", task=asked)).text == "You may"
        order = await remote.send("go", skill="paid", return_immediately=True)
        assert not order.ok
        assert (await remote.complete("payment", 5, task=order)).text == "paid 5"


async def test_results_are_decoded_by_their_type() -> None:
    given: dict[str, Any] = {"data": {"origin": "BER", "day": "2027-03-15"}, "skill": "fare"}
    async with client(desk()) as remote:
        assert (await remote.send(**given, returns=Offer)).data.day == date(2027, 3, 15)
        assert (await remote.send(**given, returns=Priced)).data.price == 97.2
        assert (await remote.send(**given, returns=dict[str, Any])).data["route"] == "BER-LIS"
        assert (await remote.send("7", skill="say", returns=int)).data == 7
        assert (await remote.send("7", skill="say", returns=str)).data == "7"
        assert (await remote.send('{"price": 2}', skill="say", returns=Priced)).data.price == 2
        task = await remote.send(**given, return_immediately=True)
        if task.task:
            assert (await remote.wait(task, returns=Offer)).data.price == 97.2


async def test_a_result_that_does_not_fit_names_agent_and_field() -> None:
    given: dict[str, Any] = {"data": {"origin": "BER", "day": "2027-03-15"}, "skill": "fare"}
    async with client(desk()) as remote:
        with pytest.raises(ResultMismatch, match=r"Fare desk is not Priced: price: ") as caught:
            await remote.send('{"price": "much"}', skill="say", returns=Priced)
        assert [field for field, _ in caught.value.fields] == ["price"]
        before = len((await remote.list()).tasks)
        with pytest.raises(ResultMismatch, match=r"Fare desk is not Cabin: cabin: missing from"):
            await remote.send(**given, returns=Cabin)
        with pytest.raises(ResultMismatch, match="route: expected an integer, the card says"):
            await remote.send(**given, returns=dict_with_a_number())
        assert len((await remote.list()).tasks) == before  # nothing was sent
        with pytest.raises(ResultMissing, match=r"no Offer: the task .* asks: Which cabin") as asks:
            _ = (await remote.send("go", skill="choose", returns=Offer)).data
        assert asks.value.answer.question is not None
        failed = await remote.send("go", skill="fails", returns=Offer)
        assert (failed.ok, failed.text) == (False, "No fares today.")
        with pytest.raises(RemoteTaskFailed, match="of Fare desk failed: No fares today"):
            failed.required()


def dict_with_a_number() -> Any:
    return dataclass(type("Numbered", (), {"__annotations__": {"route": int}}))


async def test_a_skill_is_a_function() -> None:
    app = parley.asgi(desk(), store="memory:")
    async with serving(app) as url, parley.connect(url) as remote:
        fare = remote.skill("fare", returns=Offer)
        assert await fare(origin="BER", day=date(2027, 3, 15)) == Offer(
            "BER-LIS", 97.2, date(2027, 3, 15)
        )
        assert await remote.skill("say")("hello") == "hello"
        assert (await remote.skill("fare")(origin="BER", day=date(2027, 3, 15)))["price"] == 97.2
        with pytest.raises(InvalidParamsError, match="day"):
            await fare(origin="BER")
        with pytest.raises(InvalidParamsError, match="fare"):
            remote.skill("fair")
        with pytest.raises(ResultMismatch, match="cabin"):
            remote.skill("fare", returns=Cabin)
        with pytest.raises(RemoteTaskFailed, match="No fares"):
            await remote.skill("fails", returns=Offer)("go")
        with pytest.raises(ResultMissing, match="asks"):
            await remote.skill("plain", returns=str)("go")

        def blocking() -> Any:
            with parley.connect_sync(url) as twin:
                return twin.skill("say", returns=str)("hello"), twin.send("7", skill="say").text

        assert await asyncio.to_thread(blocking) == ("hello", "7")


async def test_a_turn_has_typed_answers_and_passes_questions_on() -> None:
    other, agent = desk(), Agent("Planner")

    @agent.skill
    async def quoted(turn: Turn) -> str:
        given = {"origin": "BER", "day": "2027-03-15"}
        answer = await turn.delegate("http://desk", data=given, skill="fare", returns=Offer)
        return f"{answer.data.price:g}"

    @agent.skill
    async def chosen(turn: Turn) -> str:
        remote = await turn.connect("http://desk")
        offer = await remote.skill("choose", returns=Offer)("go")
        return offer.route

    async with client(agent, remotes={"http://desk": other}) as remote:
        assert await remote.send("go", skill="quoted") == is_completed("97.2")
        asked = await remote.send("go", skill="chosen")
        assert asked.question is not None
        assert (await remote.send(data="B", task=asked)).text == "B"


async def test_the_parts_of_a_composition_have_typed_answers() -> None:
    agent = Agent("Reader")

    @agent.skill
    async def read(turn: Turn) -> str:
        return turn.text

    @agent.skill
    async def shout(turn: Turn) -> str:
        return turn.text.upper()

    fits = sequence(part(agent, returns=Priced), name="Fits")
    loud = sequence(part(agent, skill="shout"), name="Loud")
    async with client(loud) as remote:
        assert (await remote.send("hello")).text == "HELLO"
    with pytest.raises(ValueError, match="no skill"):
        part(str.upper, skill="shout")
    async with client(fits) as remote:
        assert (await remote.send('{"price": 2}')).ok
        failed = await remote.send('{"price": "much"}')
        assert not failed.ok
        assert "Priced" in failed.text


async def test_events_have_a_kind_and_a_text() -> None:
    async with client(desk("task")) as remote:
        events = [(event.kind, event.text) async for event in remote.stream("hi", skill="say")]
    assert events[0] == ("task", "")
    assert ("artifact-update", "hi") in events
    assert events[-1] == ("status-update", "")


def test_a_hostile_schema_on_a_card_ends() -> None:
    loop: dict[str, Any] = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(500):
        deep = {"type": "object", "properties": {"price": deep}}
    for schema in (loop, deep, {"type": "object", "properties": 7}, {"$ref": 7}, {}):
        params = {"skills": {"fare": {"output": schema}}}
        extension = AgentExtension(uri="urn:parley:skill-schemas:v1", params=params)
        card = AgentCard(
            name="Evil",
            description="",
            version="1",
            capabilities=AgentCapabilities(extensions=(extension,)),
            default_input_modes=(),
            default_output_modes=(),
            skills=(AgentSkill(id="fare", name="Fare", description="", tags=()),),
            supported_interfaces=(),
        )
        with contextlib.suppress(ResultMismatch):
            ReturnType.of_skill(Priced, card, "fare")


def test_an_answer_compares_and_counts_as_its_reply() -> None:
    message = parley.Message(message_id="m", role=parley.Role.AGENT, parts=(Part(text="hi"),))
    answer: Answer[Any] = Answer(message, agent="Echo")
    assert answer == message
    assert answer == Answer(message)
    assert repr(answer) == "Answer(COMPLETED, 'hi')"
    assert spent_on(answer) == spent_on(message)


def test_an_outcome_without_an_answer_says_so() -> None:
    failed = Outcome(part="Fares", failure=PartFailure(part="Fares", reason="timeout"))
    assert (failed.ok, failed.state.name, failed.text, failed.data) == (False, "FAILED", "", None)
    with pytest.raises(ResultMissing, match="no answer of Fares"):
        _ = failed.reply
