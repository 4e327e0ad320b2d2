"""Behaviour of combinators next to their guarantees: choices, agreement, order, limits, nesting."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from parley import Agent, Execution, Task, TaskState, Turn
from parley.compose import (
    Composition,
    PartFailure,
    broadcast,
    fallback,
    handoff,
    map_reduce,
    may_pass,
    parallel,
    part,
    quorum,
    retry,
    route,
    sequence,
)
from parley.compose import concurrent as combinators
from parley.compose.concurrent import Votes
from parley.compose.sequential import _waits
from parley.testing import ScriptedAgent, client
from tests.kit.servers import served
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

FAR = "https://far.example"
"""An agent in another process: a crash of the composition's process does not affect it."""


def says(name: str, text: object = "") -> Agent:
    """Return an agent that always answers ``text``, or else repeats its message."""
    agent = Agent(name)

    @agent.skill
    async def say(turn: Turn) -> object:
        """Says it."""
        return text or turn.text

    return agent


async def answer(composition: Composition, text: str = "go") -> Task:
    async with client(composition) as remote:
        task = await remote.send(text)
    assert task.id
    return task


# -- route -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choose", "got"),
    [
        (lambda text: "billing", "B"),
        (lambda text: None, "S"),
        (lambda text: "", "S"),
        (says("Chooser", " Billing.\n"), "B"),
        (says("Chooser", {"intent": "billing", "sure": 0.9}), "B"),
    ],
)
async def test_a_function_or_an_agent_chooses_a_part_by_its_name(choose: Any, got: str) -> None:
    parts = [says("Billing", "B"), says("Support", "S")]
    assert (await answer(route(choose, *parts, default="support"))).text == got


async def test_a_choice_that_is_no_part_fails_and_says_what_there_is() -> None:
    parts = [says("Billing"), says("Support")]
    task = await answer(route(lambda text: "Sales", *parts, default="Support"))
    assert task.state is TaskState.FAILED
    assert "chose 'Sales', and the parts are Billing, Support" in task.text
    task = await answer(route(lambda text: None, *parts))
    assert "there is no default" in task.text


async def test_another_form_of_choice_is_read_by_a_function() -> None:
    chooser = says("Chooser", {"scores": {"Billing": 0.1, "Support": 0.8}})

    def best(outcome: Any) -> str:
        return max(outcome.data["scores"], key=outcome.data["scores"].get)

    routed = route(chooser, says("Billing", "B"), says("Support", "S"), read=best)
    assert (await answer(routed)).text == "S"


@pytest.mark.slow
async def test_a_crash_after_the_choice_chooses_no_second_time() -> None:
    chosen: list[str] = []

    def choose(text: str) -> str:
        chosen.append(text)
        return "hotels" if len(chosen) == 1 else "flights"

    hotels = ScriptedAgent("Hotels").on().takes(timedelta(hours=1)).replies("Room 7")
    made = route(choose, part(FAR, name="Hotels"), says("Flights"))
    async with client(made, remotes={FAR: hotels}) as remote:
        task = await remote.send("go", return_immediately=True)
        await until(lambda: hotels.texts)
        await remote.crash()
        await remote.advance(timedelta(hours=2))
        assert (await remote.wait(task.id)).text == "Room 7"
    assert chosen == ["go"]
    assert hotels.texts == ["go"]


# -- quorum ------------------------------------------------------------------------------------


class Hanging:
    """An agent that never answers, and records the end of its turn."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.canceled = asyncio.Event()
        self.agent = Agent("Slow", execution=Execution(cancel_grace=0.2))

        @self.agent.skill(replies="task")
        async def hang(turn: Turn) -> None:
            """Hangs."""
            self.heard.append(turn.text)
            try:
                await asyncio.Event().wait()
            finally:
                self.canceled.set()


async def test_the_first_enough_that_agree_decide_and_the_others_are_canceled() -> None:
    slow = Hanging()
    voters = [says("A", "Yes!"), slow.agent, says("B", "no"), says("C", " yes")]
    task = await answer(quorum(*voters, need=2))
    assert (task.state, task.text) == (TaskState.COMPLETED, "Yes!")
    assert slow.heard == ["go"]
    assert slow.canceled.is_set()


async def test_a_quorum_that_cannot_be_reached_fails_before_the_last_part_answers() -> None:
    slow = Hanging()
    task = await answer(quorum(says("A", "1"), says("B", "2"), slow.agent, need=3))
    assert slow.canceled.is_set()
    assert task.state is TaskState.FAILED
    assert "3 of 3 had to agree: A / B answered differently" in task.text


async def test_what_counts_as_the_same_is_for_the_author_to_say() -> None:
    voters = [says(name, {"verdict": "ham", "by": name}) for name in "ABC"]
    assert (await answer(quorum(*voters))).state is TaskState.FAILED
    agreed = await answer(quorum(*voters, agree=lambda outcome: outcome.data["verdict"]))
    assert agreed.state is TaskState.COMPLETED


async def test_a_decision_stands_after_a_crash() -> None:
    heard: list[str] = []

    def voter(name: str, text: str) -> Agent:
        agent = Agent(name)

        @agent.skill
        async def vote(turn: Turn) -> str:
            heard.append(name)
            return text

        return agent

    last = ScriptedAgent("Last").on().takes(timedelta(hours=1)).replies("late")
    decided = quorum(voter("A", "yes"), voter("B", "yes"), voter("C", "no"))
    async with client(sequence(decided, FAR), remotes={FAR: last}) as remote:
        task = await remote.send("go", return_immediately=True)
        await until(lambda: last.texts)
        await remote.crash()
        await remote.advance(timedelta(hours=2))
        assert (await remote.wait(task.id)).text == "late"
    assert last.texts == ["yes"]
    assert sorted(heard) in (["A", "B"], ["A", "B", "C"])


async def test_a_crash_after_the_decision_leaves_no_part_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, canceling = Hanging(), asyncio.Event()
    cancel_parts = combinators.cancel_parts

    async def dies(*given: Any) -> None:
        if canceling.is_set():
            await cancel_parts(*given)
        else:
            canceling.set()
            await asyncio.Event().wait()

    monkeypatch.setattr(combinators, "cancel_parts", dies)
    async with client(
        quorum(says("A", "1"), says("B", "1"), FAR), remotes={FAR: slow.agent}
    ) as remote:
        task = await remote.send("go", return_immediately=True)
        await until(canceling.is_set)
        await remote.crash()
        assert (await remote.wait(task.id)).text == "1"
        await until(slow.canceled.is_set)
    assert slow.heard == ["go"]


# -- retry -------------------------------------------------------------------------------------


class Busy:
    """An agent that fails a number of times, and then answers."""

    def __init__(self, failures: int) -> None:
        self.heard: list[str] = []
        self.contexts: set[str] = set()
        self.agent = Agent("Busy")

        @self.agent.skill
        async def work(turn: Turn) -> str:
            """Fails, and then answers."""
            self.heard.append(turn.text)
            self.contexts.add(turn.context_id)
            if len(self.heard) <= failures:
                turn.fail("too much to do")
            return "done"


def has_failed(failure: PartFailure) -> bool:
    return failure.reason == "failed"


async def test_waits_double_and_neither_they_nor_the_attempts_begin_again_after_a_crash() -> None:
    busy = Busy(2)
    made = retry(busy.agent, backoff=timedelta(minutes=20), when=has_failed)
    async with client(made) as remote:
        task = await remote.send("go", return_immediately=True)
        for calls, minutes in ((1, 20), (2, 40)):
            await until(lambda calls=calls: len(busy.heard) == calls)
            await remote.settle()
            await remote.crash()
            await remote.advance(timedelta(minutes=minutes, seconds=-60))
            assert len(busy.heard) == calls
            await remote.advance(timedelta(seconds=61))
        assert (await remote.wait(task.id)).text == "done"
    assert busy.heard == ["go"] * 3
    assert len(busy.contexts) == 1


async def test_attempts_are_limited() -> None:
    busy = Busy(9)
    task = await answer(retry(busy.agent, attempts=4, backoff=[0, 0], when=has_failed))
    assert (task.state, len(busy.heard)) == (TaskState.FAILED, 4)
    assert task.text == "Busy: too much to do"


@pytest.mark.parametrize(
    ("reason", "code", "passes"),
    [
        ("unreachable", "", True),
        ("timeout", "", True),
        ("refused", "OVERLOADED", True),
        ("refused", "TOO_MANY_REQUESTS", True),
        ("refused", "PERMISSION_DENIED", False),
        ("failed", "", False),
        ("rejected", "", False),
        ("canceled", "", False),
        ("asks", "", False),
        ("budget", "", False),
    ],
)
def test_a_failure_may_pass_that_is_no_answer(reason: Any, code: str, passes: bool) -> None:
    assert may_pass(PartFailure(part="A", reason=reason, code=code)) is passes


@pytest.mark.slow
async def test_an_agent_that_cannot_be_reached_is_tried_again() -> None:
    made = fallback(retry("http://127.0.0.1:9", attempts=2, backoff=0), says("Other", "instead"))

    async with served(made, drain=0.2) as remote:
        assert (await remote.send("go")).text == "instead"


# -- map_reduce --------------------------------------------------------------------------------


class Counting:
    """An agent that counts its simultaneous turns."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.agent = Agent("Counting")

        @self.agent.skill
        async def double(turn: Turn) -> dict[str, int]:
            """Doubles a number, the small ones last."""
            self.now += 1
            self.most = max(self.most, self.now)
            value = turn.data
            await asyncio.sleep(0.002 * (5 - value % 5))
            self.now -= 1
            return {"value": value * 2}


async def test_items_are_worked_on_within_a_limit_and_keep_their_order() -> None:
    counting = Counting()

    def split(text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def total(outcomes: Any) -> dict[str, Any]:
        return {"values": [outcome.data["value"] for outcome in outcomes]}

    made = map_reduce(split, counting.agent, total, limit=3)
    task = await answer(made, " ".join(map(str, range(10))))
    assert task.artifacts[0].parts[0].data == {"values": [n * 2 for n in range(10)]}
    assert counting.most == 3


@pytest.mark.slow
async def test_items_that_wait_for_their_place_cost_no_task() -> None:
    most: list[int] = []
    worker = Agent("Worker")

    @worker.skill
    async def work(turn: Turn) -> str:
        """Works."""
        most.append(len(asyncio.all_tasks()))
        return turn.text

    def split(text: str) -> list[str]:
        return text.split()

    made = map_reduce(split, worker, lambda found: str(len(found)), limit=2)
    assert (await answer(made, "item " * 30)).text == "30"
    few, _ = max(most), most.clear()
    assert (await answer(made, "item " * 600)).text == "600"
    assert max(most) <= few + 10


async def test_without_a_function_each_answer_is_a_line_and_failures_are_named() -> None:
    worker = ScriptedAgent("Worker").on("b").fails("no b").on().replies(lambda m: m.text.upper())

    def split(text: str) -> list[str]:
        return text.split()

    made = map_reduce(split, worker, failures="partial")
    assert (await answer(made, "a b c")).text == "A\nItem 2: Worker: no b\nC\n"


async def test_an_agent_splits_and_an_agent_joins() -> None:
    made = map_reduce(says("Split", ["a", {"b": 1}, "c"]), says("Each"), says("Join"))
    assert (await answer(made)).state is TaskState.COMPLETED


@pytest.mark.parametrize(
    ("split", "why"),
    [
        (lambda text: {"not": "a list"}, "it answered with a dict, not with a list"),
        (lambda text: list(range(20)), "it made 20 items, and 10 may be worked on"),
    ],
)
async def test_what_cannot_be_split_fails_before_any_item(split: Any, why: str) -> None:
    counting = Counting()
    task = await answer(map_reduce(split, counting.agent, most=10))
    assert task.state is TaskState.FAILED
    assert why in task.text
    assert counting.most == 0


async def test_a_crash_in_the_middle_asks_for_no_item_again() -> None:
    heard: list[str] = []
    hour = timedelta(hours=1)
    worker = ScriptedAgent("Worker").on("slow").takes(hour).replies("late").on().replies("quick")

    def split(text: str) -> list[str]:
        heard.append(text)
        return text.split()

    made = map_reduce(split, FAR, lambda found: " ".join(o.text for o in found))
    async with client(made, remotes={FAR: worker}) as remote:
        task = await remote.send("a slow b", return_immediately=True)
        await until(lambda: len(worker.texts) == 3)
        await remote.settle()
        await remote.crash()
        await remote.advance(2 * hour)
        assert (await remote.wait(task.id)).text == "quick late quick"
    assert sorted(worker.texts) == ["a", "b", "slow"]
    assert heard == ["a slow b"]


# -- combinations of combinators ---------------------------------------------------------------


async def test_a_function_that_is_a_part_may_hand_the_conversation_over() -> None:
    human = says("Human", "a person")

    def gate(text: str) -> object:
        return handoff(human) if "help" in text else text

    made = sequence(gate, says("Robot", "beep"), handoffs=[human])
    async with client(made) as remote:
        first = await remote.send("hello")
        assert first.text == "beep"
        assert (await remote.send("help", context_id=first.context_id)).text == "a person"
        assert (await remote.send("hello", context_id=first.context_id)).text == "a person"


async def test_a_handoff_cancels_the_parts_that_still_work() -> None:
    human, slow = says("Human", "a person"), Hanging()

    async def gate(text: str) -> object:
        await until(lambda: slow.heard)
        return handoff(human)

    async with client(parallel(slow.agent, gate, handoffs=[human])) as remote:
        assert (await remote.send("help")).text == "a person"
        assert slow.canceled.is_set()


async def test_a_part_may_be_given_twice_and_in_a_nested_composition() -> None:
    async def loud(turn: Turn) -> str:
        """Says it louder."""
        return f"{turn.text}!"

    one = says("One")
    made = sequence(parallel(loud, loud, one, one, name="Inner"), loud, sequence(one), name="Outer")
    assert (await answer(made)).text.count("go") == 4


async def _late(*given: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("build", "says_"),
    [
        (lambda a: route(a), "chooses among parts"),
        (lambda a: route(a, a, default="nobody"), "names no part"),
        (
            lambda a: route(a, part(a, name="A-B"), part(a, name="a b")),
            "distinguish 'a b' from 'A-B'",
        ),
        (lambda a: parallel(a, a, at_least=2), "goes with failures='partial'"),
        (lambda a: map_reduce(a, a, at_least=2), "goes with failures='partial'"),
        (lambda a: quorum(a), "two or more"),
        (lambda a: quorum(a, a, need=3), "between 1 and the number of parts"),
        (lambda a: quorum(a, a, timeout=0), "positive number"),
        (lambda a: retry(a, attempts=1), "2 or more"),
        (lambda a: retry(a, backoff=[]), "a duration"),
        (lambda a: retry(a, backoff=-1), "0 seconds or more"),
        (lambda a: fallback(a), "two or more"),
        (lambda a: fallback(a, a, timeout=-1), "positive number"),
        (lambda a: map_reduce(a, a, limit=0), "1 or more"),
        (lambda a: map_reduce(a, a, failures="ignore"), "'fail' or 'partial'"),
        (lambda a: map_reduce(a, a, at_least=-1), "0 or more"),
        (lambda a: retry(a, when=_late), "plain function"),
        (lambda a: quorum(a, a, agree="text"), "plain function"),
        (lambda a: route(a, a, read=_late), "plain function"),
        (lambda a: fallback(a, a, when=_late), "plain function"),
        (lambda a: broadcast(a, 7), "a part of a composition is"),
        (lambda a: broadcast(a, budget=3), "is a Budget"),
    ],
)
def test_a_mistake_is_refused_with_what_would_be_right(build: Any, says_: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says_):
        build(says("A"))


# -- further rules -----------------------------------------------------------------------------


def test_a_part_keeps_its_options_and_is_named_by_its_target() -> None:
    far = part(part(part(FAR, timeout=0.5, bearer="x"), name=" Far "), timeout=5)
    assert (far.name, far.timeout, far.connection) == ("Far", 5, {"bearer": "x"})
    targets = [lambda turn: turn, "https://a.test/box/", "https://a.test"]
    assert [part(each).name for each in targets] == ["Function", "box", "a.test"]


def test_a_composition_accepts_and_gives_the_modes_of_its_parts() -> None:
    picture = Agent("Picture")
    picture.skill(lambda turn: None, id="draw", input_modes=["a/b"], output_modes=["c/d"])
    for parts, takes, gives in (
        ((picture, FAR), ("a/b",), ("text/plain", "*/*")),
        ((says("Text"), picture), (), ("text/plain", "c/d")),
    ):
        made = sequence(*parts)
        assert (made.input_modes, made.output_modes) == (takes, gives)


def test_the_smallest_limits_are_accepted_and_waits_end_with_the_last_of_a_list() -> None:
    one = says("One")
    assert parallel(one, limit=1).parts
    assert map_reduce(one, one, limit=1, most=1).parts
    assert _waits([1, 2], 3) == [1, 2, 2]


def test_votes_that_cannot_agree_any_more_are_impossible() -> None:
    votes = Votes(1, 1, str)
    assert votes.is_possible
    votes.lose()
    assert not votes.is_possible


async def test_the_most_items_are_worked_on_and_none_reach_a_joining_agent() -> None:
    made = map_reduce(
        lambda text: text.split(), says("Each"), lambda found: str(len(found)), most=2
    )
    assert (await answer(made, "a b")).text == "2"
    joined = Agent("Join")

    @joined.skill
    async def join(turn: Turn) -> str:
        """Joins."""
        return repr(turn.data)

    assert (await answer(map_reduce(lambda text: [], says("Each"), joined))).text == "[]"


async def test_the_reason_of_a_failure_and_the_metadata_of_a_message_are_passed_on() -> None:
    failures: list[Any] = []
    heard: list[Turn] = []
    last = Agent("Last")

    @last.skill(replies="task")
    async def hear(turn: Turn) -> str:
        """Hears."""
        heard.append(turn)
        return "heard"

    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    def note(failure: PartFailure) -> bool:
        failures.append((failure.reason, failure.spent.calls))
        return True

    twice = sequence(last, last, str.upper, name="Twice")
    gone = part("http://127.0.0.1:9", retries=0)
    made = fallback(gone, add, lambda text: 1 / 0, twice, when=note)
    async with served(made, drain=0.2) as remote:
        done = await remote.send("go", message_metadata={"skill": made.key, "own": 1})
        await remote.send("go", references=[done])
    assert failures[:3] == [("unreachable", 1), ("refused", 1), ("failed", 0)]
    assert "skill" not in heard[0].metadata
    assert heard[0].metadata["own"] == 1
    first, second = (turn.task_id for turn in heard[:2])
    references = [turn.message.reference_task_ids for turn in heard]
    assert references[1:3] == [(first,), (first, second)]
