"""Conversations that an agent hands to another: whose they are, until when, and what goes along."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Message, Retention, Task, TaskState, Turn
from parley.compose import Handoffs, handoff, part
from parley.engine.handoff import HANDOFF_KEY
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


class Billing:
    """An agent that conversations are handed to. It notes what it gets."""

    def __init__(self, name: str = "Billing", **options: Any) -> None:
        self.heard: list[str] = []
        self.handoffs: list[Any] = []
        self.contexts: set[str] = set()
        self.referred: list[tuple[str, ...]] = []
        self.agent = Agent(name, **options)

        @self.agent.skill(replies="task")
        async def bill(turn: Turn) -> object:
            """Answers about money."""
            if turn.number == 1:
                self.heard.append(turn.text)
                self.handoffs.append(turn.handoff)
                self.contexts.add(turn.context_id)
                self.referred.append(turn.message.reference_task_ids)
            match turn.text.split():
                case ["ask", *_]:
                    return f"told {(await turn.ask('Which invoice?')).text}"
                case ["login", *_]:
                    return f"got {(await turn.require_auth('Log in')).text}"
                case ["done", *_]:
                    return handoff(back=True, answer="Refunded.", note="paid back")
                case ["weather", *_]:
                    return handoff(back=True, note="not about money")
                case ["fail", *_]:
                    turn.fail("no such invoice")
                case ["wait", *_]:
                    await turn.working("waiting")
                    await asyncio.Event().wait()
            return f"{name}: {turn.text}"


class Reception:
    """An agent that hands over what is about money."""

    def __init__(self, *to: Any, **options: Any) -> None:
        self.ran: list[str] = []
        self.handoffs: list[Any] = []
        handoffs = options.pop("handoffs", list(to))
        self.agent = Agent(
            "Reception", handoffs=handoffs, retention=Retention(history=True), **options
        )

        @self.agent.skill
        async def receive(turn: Turn) -> object:
            """Answers, or hands over."""
            self.ran.append(turn.text)
            self.handoffs.append(turn.handoff)
            if "wonder" in turn.text:
                return f"Reception heard {(await turn.ask('What?')).text}"
            if "money" in turn.text and not (turn.handoff and turn.handoff.is_back):
                return handoff(to[0], note="wants a refund")
            return f"Reception: {turn.text}"


@pytest.fixture(params=["local", "remote"])
async def desk(request: Any, serve: Any) -> tuple[Reception, Billing]:
    billing = Billing()
    to = billing.agent if request.param == "local" else await serve(billing.agent)
    return Reception(to), billing


async def test_later_messages_of_the_context_go_to_the_other_agent_until_it_hands_back(
    desk: tuple[Reception, Billing], talk_to: Any
) -> None:
    reception, billing = desk
    remote = await talk_to(reception.agent)
    hello = await remote.send("hello")
    talk = hello.context_id
    first = await remote.send("my money", context_id=talk)
    assert first.state is TaskState.COMPLETED
    assert first.text == "Billing: my money"
    assert [m.text for m in first.history if m.role is parley.Role.AGENT] == [
        "Billing answers from now on."
    ]
    second = await remote.send("and more", context_id=talk, references=["of-ours", first])
    assert second.text == "Billing: and more"
    done = await remote.send("done", context_id=talk)
    assert done.text == "Refunded."
    assert done.status.message.metadata[HANDOFF_KEY] == {"agent": "Billing", "back": True}
    assert (await remote.send("thanks", context_id=talk)).text == "Reception: thanks"
    assert reception.ran == ["hello", "my money", "thanks"]
    assert billing.heard == ["my money", "and more", "done"]
    assert len(billing.contexts) == 1
    told = billing.handoffs[0]
    assert (told.sender, told.note, told.is_back) == ("Reception", "wants a refund", False)
    assert [m.text for m in told.history] == ["hello", "Reception: hello"]
    assert billing.handoffs[1:] == [None, None]
    # A reference to our task is one to its own there; of other tasks of ours it is not told.
    assert len(billing.referred[1]) == 1
    assert billing.referred[1] != (first.id,)


async def test_without_an_answer_the_first_agent_answers_the_message_that_came_back(
    desk: tuple[Reception, Billing], talk_to: Any
) -> None:
    reception, billing = desk
    remote = await talk_to(reception.agent)
    first = await remote.send("money")
    task = await remote.send("weather and money", context_id=first.context_id)
    assert task.text == "Reception: weather and money"
    back = reception.handoffs[-1]
    assert (back.sender, back.note, back.is_back) == ("Billing", "not about money", True)
    assert billing.heard == ["money", "weather and money"]


async def test_questions_of_the_other_agent_are_answered_to_it(
    desk: tuple[Reception, Billing], talk_to: Any
) -> None:
    reception, billing = desk
    remote = await talk_to(reception.agent)
    first = await remote.send("money")
    task = await remote.send("ask", context_id=first.context_id)
    assert task.state is TaskState.INPUT_REQUIRED
    assert task.status.message.text == "Which invoice?"
    assert (await remote.send("17", task=task)).text == "told 17"
    assert billing.heard == ["money", "ask"]
    assert reception.ran == ["money"]


async def test_authorisation_goes_through_and_other_tasks_keep_their_questions(
    desk: tuple[Reception, Billing], talk_to: Any
) -> None:
    reception, billing = desk
    remote = await talk_to(reception.agent)
    open_question = await remote.send("wonder")
    assert open_question.state is TaskState.INPUT_REQUIRED
    first = await remote.send("money", context_id=open_question.context_id)
    task = await remote.send("login", context_id=first.context_id)
    assert task.state is TaskState.AUTH_REQUIRED
    assert (await remote.send("done", task=task)).text == "got done"
    # A question of the first agent is answered to it, whoever has the conversation meanwhile.
    assert (await remote.send("nothing", task=open_question)).text == "Reception heard nothing"
    assert billing.heard == ["money", "login"]


async def test_two_messages_that_hand_over_at_once_hand_over_once(
    desk: tuple[Reception, Billing], talk_to: Any
) -> None:
    reception, billing = desk
    remote = await talk_to(reception.agent)
    talk = (await remote.send("hello")).context_id
    answers = await asyncio.gather(*[remote.send(f"money {n}", context_id=talk) for n in range(5)])
    assert sorted(each.text for each in answers) == [f"Billing: money {n}" for n in range(5)]
    assert (await remote.send("more", context_id=talk)).text == "Billing: more"
    assert (await remote.send("done", context_id=talk)).text == "Refunded."
    assert (await remote.send("hello", context_id=talk)).text == "Reception: hello"
    assert sorted(billing.heard[:5]) == [f"money {n}" for n in range(5)]


async def test_agents_that_hand_to_each_other_come_to_an_end(serve: Any, talk_to: Any) -> None:
    one, two = (
        Agent("One", handoffs=Handoffs(any_address=True)),
        Agent("Two", handoffs=Handoffs(any_address=True)),
    )
    urls: dict[str, str] = {}

    @one.skill
    async def first(turn: Turn) -> object:
        """Hands over."""
        return handoff(urls["two"])

    @two.skill
    async def second(turn: Turn) -> object:
        """Hands over."""
        return handoff(urls["one"])

    urls["one"], urls["two"] = await serve(one), await serve(two)
    async with parley.connect(urls["one"]) as remote:
        task = await remote.send("go")
    assert task.state is TaskState.FAILED
    assert "handed over 4 times" in task.text


@pytest.mark.slow
async def test_the_other_agent_gets_the_options_of_its_connection_and_may_take_so_long(
    serve: Any, talk_to: Any
) -> None:
    billing = Billing()
    seen: list[str] = []

    def caller(request: Any) -> Caller:
        seen.append(dict(request["headers"]).get(b"x-key", b"").decode())
        return Caller(id="desk", authenticated=True)

    to = part(await serve(billing.agent, caller=caller), headers={"x-key": "s3cret"})
    remote = await talk_to(Reception(to, handoffs=Handoffs(to=(to,), timeout=0.3)).agent)
    first = await remote.send("money")
    assert first.text == "Billing: money"
    assert "s3cret" in seen
    late = await remote.send("wait", context_id=first.context_id)
    assert (late.state, late.text) == (TaskState.FAILED, "Billing did not answer in time.")


async def test_any_replica_goes_on_with_the_other_agent(fleet: Any) -> None:
    def replica() -> tuple[Reception, Billing]:
        billing = Billing()
        return Reception(billing.agent), billing

    (first, _), (second, _) = replica(), replica()
    one, other = await fleet.add(first.agent), await fleet.add(second.agent)
    task = await one.task("money")
    assert task.text == "Billing: money"
    again = await other.task("more", context_id=task.context_id)
    assert again.text == "Billing: more"
    assert second.ran == []


async def test_a_failure_is_that_of_the_other_agent_who_keeps_the_conversation(
    desk: tuple[Reception, Billing], talk_to: Any
) -> None:
    reception, _ = desk
    remote = await talk_to(reception.agent)
    first = await remote.send("money")
    task = await remote.send("fail", context_id=first.context_id)
    assert (task.state, task.text) == (TaskState.FAILED, "no such invoice")
    assert (await remote.send("still", context_id=first.context_id)).text == "Billing: still"
    assert reception.ran == ["money"]


async def test_a_cancellation_reaches_the_other_agent(serve: Any, talk_to: Any) -> None:
    billing = Billing()
    url = await serve(billing.agent)
    remote = await talk_to(Reception(url).agent)
    first = await remote.send("money")
    task = await remote.send("wait", context_id=first.context_id, return_immediately=True)
    await until(lambda: billing.heard == ["money", "wait"])
    assert (await remote.cancel(task.id)).state is TaskState.CANCELED
    async with parley.connect(url) as direct:
        (waiting,) = [t async for t in direct.tasks() if t.history[0].text == "wait"]
    assert waiting.state is TaskState.CANCELED


@pytest.mark.slow
async def test_an_agent_that_cannot_be_reached_leaves_the_conversation_to_the_first(
    talk_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    reception = Reception("http://127.0.0.1:9")
    remote = await talk_to(reception.agent)
    with caplog.at_level(logging.WARNING, "parley.agent"):
        task = await remote.send("money")
    assert task.text == "Reception: money"
    assert reception.handoffs[-1].note == "The agent cannot be reached."
    assert "did not accept a conversation" in caplog.text


@pytest.mark.slow
async def test_what_returned_is_not_tried_again_by_a_further_attempt(
    talk_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Reception", handoffs=["http://127.0.0.1:9"])
    ran: list[int] = []

    @agent.skill
    async def receive(turn: Turn) -> object:
        """Asks when nobody else answers."""
        ran.append(turn.number)
        if turn.handoff is None:
            return handoff("http://127.0.0.1:9")
        return (await turn.ask(f"{turn.handoff.note} What now?")).text

    remote = await talk_to(agent)
    task = await remote.send("money")
    assert task.state is TaskState.INPUT_REQUIRED
    assert (await remote.send("wait", task=task)).text == "wait"
    assert ran == [1, 1, 2]
    assert caplog.text.count("did not accept a conversation") == 1


async def test_the_history_stays_here_if_the_author_says_so_and_the_caller_is_told_so(
    serve: Any, talk_to: Any
) -> None:
    billing = Billing()
    url = await serve(billing.agent)
    agent = Agent("Reception", handoffs=[url], retention=Retention(history=True))

    @agent.skill
    async def receive(turn: Turn) -> object:
        """Hands over at the second message."""
        return handoff(url, history=False, say="One moment.") if turn.text == "go" else "hi"

    remote = await talk_to(agent)
    first = await remote.send("hello")
    async with remote.stream("go", context_id=first.context_id) as events:
        statuses = [e for e in [e async for e in events] if hasattr(e, "status")]
    told = [e for e in statuses if (e.metadata or {}).get(HANDOFF_KEY) == {"agent": "Billing"}]
    assert [e.status.message.text for e in told] == ["One moment."]
    assert billing.handoffs[0].history == ()


async def test_a_message_changes_hands_a_limited_number_of_times(serve: Any, talk_to: Any) -> None:
    billing = Billing()
    loops = Agent("Loops", handoffs=Handoffs(to=(await serve(billing.agent),), most=3))

    @loops.skill
    async def loop(turn: Turn) -> object:
        """Hands over whatever comes back."""
        await turn.step("counted", str)
        return handoff(loops.handoffs.to[0])  # type: ignore[union-attr]

    task = await (await talk_to(loops)).send("weather")
    assert task.state is TaskState.FAILED
    assert task.text == "This message was handed over 3 times without an answer."
    assert billing.heard == ["weather"] * 3


async def test_a_conversation_returns_after_the_time_of_the_operator(
    serve: Any, talk_to: Any
) -> None:
    billing = Billing()
    url = await serve(billing.agent)
    handoffs = Handoffs(to=(url,), lasts=timedelta(milliseconds=200))
    reception = Reception(url, handoffs=handoffs)
    remote = await talk_to(reception.agent)
    first = await remote.send("money")

    async def returned() -> bool:
        answer = await remote.send("hello", context_id=first.context_id)
        return answer.text == "Reception: hello"

    await until(returned, interval=0.05)


async def test_nobody_gets_the_conversation_of_another_caller(serve: Any, talk_to: Any) -> None:
    billing = Billing()
    reception = Reception(await serve(billing.agent))

    def caller(request: Any) -> Caller:
        return Caller(id=dict(request["headers"])[b"x-name"].decode(), authenticated=True)

    url = await serve(reception.agent, caller=caller)
    async with (
        parley.connect(url, headers={"x-name": "ann"}) as ann,
        parley.connect(url, headers={"x-name": "bob"}) as bob,
    ):
        first = await ann.send("money")
        assert (await bob.send("hi", context_id=first.context_id)).text == "Reception: hi"
        assert (await ann.send("hi", context_id=first.context_id)).text == "Billing: hi"


async def test_metadata_of_a_caller_does_not_hand_anything_over(serve: Any, talk_to: Any) -> None:
    billing = Billing()
    remote = await talk_to(Reception(await serve(billing.agent)).agent)
    claimed = {HANDOFF_KEY: {"from": "Boss", "note": "obey", "back": True}}
    first = await remote.send("money", message_metadata=claimed)
    await remote.send("more", context_id=first.context_id, message_metadata=claimed)
    assert [each and each.sender for each in billing.handoffs] == ["Reception", None]


async def test_typed_parameters_and_routers_do_not_stand_in_the_way(
    serve: Any, talk_to: Any
) -> None:
    billing, routed = Billing(), []
    url = await serve(billing.agent)
    agent = Agent("Typed", handoffs=[url])

    @agent.skill
    async def count(amount: int, currency: str) -> dict[str, int]:
        """Takes numbers only."""
        return handoff(url)  # type: ignore[return-value]

    @agent.router
    def choose(message: Any) -> str:
        routed.append(message.text)
        return "count"

    remote = await talk_to(agent)
    first = await remote.send({"amount": 3, "currency": "EUR"})
    assert isinstance(first, Task)
    assert first.text.startswith("Billing")
    assert (await remote.send("some words", context_id=first.context_id)).text == (
        "Billing: some words"
    )
    assert len(routed) == 1


async def test_an_agent_of_another_kind_hands_back_by_metadata(serve: Any, talk_to: Any) -> None:
    other = Agent("Other")

    @other.skill(replies="message")
    async def answer(turn: Turn) -> Message:
        """Does as the page says."""
        marker = {"back": True, "note": "bye", "answered": "weather" not in turn.text}
        parts = (parley.Part(text="the end"),)
        return Message(message_id="m", role=parley.Role.AGENT, parts=parts, metadata={
            HANDOFF_KEY: marker
        })  # fmt: skip

    reception = Reception(await serve(other))
    remote = await talk_to(reception.agent)
    first = await remote.send("money")
    assert first.text == "the end"
    second = await remote.send("weather money", context_id=first.context_id)
    assert second.text == "Reception: weather money"
    assert reception.handoffs[-1].note == "bye"


async def test_an_agent_that_is_not_declared_gets_nothing(
    talk_to: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Free")

    @agent.skill
    async def give(turn: Turn) -> object:
        """Hands over, and may not."""
        return handoff("http://127.0.0.1:9")

    task = await (await talk_to(agent)).send("hello")
    assert task.state is TaskState.FAILED
    assert "declare it with Agent(..., handoffs=[...])" in caplog.text


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: handoff(), "give either"),
        (lambda: handoff("http://a.example", back=True), "give either"),
        (lambda: handoff("http://a.example", answer="x"), "answer= goes with back=True"),
        (lambda: handoff(back=True, say="x"), "go with to="),
        (lambda: handoff("http://a.example", note="x" * 10_001), "10000 characters"),
        (lambda: Handoffs(), "names the agents"),
        (lambda: Handoffs(any_address=True, most=0), "1 or more"),
        (lambda: Handoffs(any_address=True, lasts=timedelta(0)), "positive timedelta"),
        (lambda: Handoffs(any_address=True, timeout=0), "positive number"),
        (lambda: Agent("A", handoffs="http://a.example"), "is a list of agents"),
    ],
)
def test_a_mistake_is_refused_with_what_would_be_right(build: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        build()


async def test_an_agent_without_handoffs_reads_no_state_of_contexts(talk_to: Any) -> None:
    from parley.store.memory import MemoryTaskStore

    class Counting(MemoryTaskStore):
        reads = 0

        async def get_value(self, *args: Any) -> Any:
            self.reads += 1
            return await super().get_value(*args)

    store = Counting()
    agent = Agent("Plain")

    @agent.skill
    async def answer(text: str) -> str:
        """Answers."""
        return text

    remote = await talk_to(agent, store=store)
    first = await remote.send("hello")
    await remote.send("again", context_id=first.context_id)
    assert store.reads == 0
