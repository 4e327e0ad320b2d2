"""What a context remembers, changed by many turns at once: each change counts, and counts once."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from parley import (
    Agent,
    Answer,
    BlockingTurn,
    Execution,
    Message,
    Part,
    Retention,
    Role,
    TaskState,
    Turn,
)
from parley.model.operations import CancelTaskRequest
from parley.model.service import CallContext, Caller
from parley.model.struct import encode
from parley.store.events import Scope
from tests.engine.fleet import Fleet, MortalStore, until_state
from tests.engine.talk import Talk
from tests.house.documents import blocks
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

CALLS = 30


def documented() -> Agent:
    """Return an agent with the counter of the documentation."""
    agent = Agent("Documented")
    (counter,) = [
        block.text
        for block in blocks("docs/reference/turn.md")
        if "async def count(turn: Turn)" in block.text
    ]
    exec(compile(counter, "turn.md", "exec"), {"agent": agent, "Turn": Turn})
    return agent


async def many(callers: list[Talk], count: int = CALLS, **options: Any) -> list[str]:
    """Have callers send at once, and return the replies' texts."""
    options.setdefault("context_id", "c")
    sends = [callers[n % len(callers)].send("go", **options) for n in range(count)]
    return [reply.text for reply in await asyncio.gather(*sends)]


# -- all at once -------------------------------------------------------------------------------


async def test_the_counter_of_the_documentation_counts_every_call(talk: Callable[..., Any]) -> None:
    async with talk(documented()) as caller:
        said = await many([caller])
        assert sorted(said) == sorted(f"Asked {n} times." for n in range(1, CALLS + 1))
        assert (await caller.send("go", context_id="c")).text == f"Asked {CALLS + 1} times."
        assert (await caller.send("go", context_id="d")).text == "Asked 1 times."


async def test_replicas_count_every_call_together(fleet: Fleet) -> None:
    callers: list[Any] = [await fleet.add(documented()) for _ in range(2)]
    said = await many(callers)
    assert sorted(said) == sorted(f"Asked {n} times." for n in range(1, CALLS + 1))


async def test_each_caller_has_a_count_of_its_own(talk: Callable[..., Any]) -> None:
    async with talk(documented()) as caller:
        whose = [CallContext(caller=Caller(id=id)) for id in ("ann", "bob")]
        for context in whose:
            said = await many([caller], 10, context=context)
            assert "Asked 10 times." in said
            assert len(set(said)) == 10


async def test_functions_in_threads_count_too(talk: Callable[..., Any]) -> None:
    agent, threads = Agent("Threads"), set()

    @agent.skill(replies="message")
    def count(turn: BlockingTurn) -> str:
        here = threading.current_thread()

        def add(n: int) -> int:
            assert threading.current_thread() is here
            threads.add(here)
            return n + 1

        return str(turn.update("n", add, 0))

    async with talk(agent) as caller:
        assert sorted(map(int, await many([caller]))) == list(range(1, CALLS + 1))
    assert threading.main_thread() not in threads


async def test_lists_grow_by_every_call(talk: Callable[..., Any]) -> None:
    agent = Agent("List")

    @agent.skill(replies="task")
    async def note(turn: Turn) -> str:
        def add(notes: list[str]) -> list[str]:
            notes.append(turn.task_id)
            return notes

        await turn.update("notes", add, default=[])
        return "noted"

    @agent.skill(replies="message")
    async def read(turn: Turn) -> list[str]:
        return list(await turn.recall("notes"))

    async with talk(agent) as caller:
        tasks = [caller.task("go", context_id="c", metadata={"skill": "note"}) for _ in range(10)]
        done = await asyncio.gather(*tasks)
        noted = await caller.send("go", context_id="c", metadata={"skill": "read"})
        assert sorted(noted.parts[0].data) == sorted(task.id for task in done)


# -- what a function may and may not do --------------------------------------------------------


def in_turn(talk: Callable[..., Any]) -> Callable[..., Any]:
    """Return what runs a function of a turn, in a thread or not, and raises what that raises."""

    async def run(function: Any) -> None:
        agent, raised = Agent("Once"), []

        async def work(turn: Turn) -> str:
            try:
                await function(turn)
            except BaseException as error:
                raised.append(error)
            return ""

        def blocking(turn: BlockingTurn) -> str:
            try:
                function(turn)
            except BaseException as error:
                raised.append(error)
            return ""

        agent.skill(work if asyncio.iscoroutinefunction(function) else blocking)
        async with talk(agent) as caller:
            await caller.send("go")
        for error in raised:
            raise error

    return run


async def test_the_result_is_kept_and_none_removes_it(talk: Callable[..., Any]) -> None:
    async def both(turn: Turn) -> None:
        assert await turn.update("k", lambda value: value) is None
        assert await turn.update("k", lambda value: {"was": value}, "default") == {"was": "default"}
        assert await turn.recall("k") == {"was": "default"}
        assert await turn.update("k", lambda value: [value], "ignored") == [{"was": "default"}]
        assert await turn.update("k", lambda value: None) is None
        assert await turn.recall("k", "gone") == "gone"
        await turn.remember("k", 1)
        assert await turn.update("k", lambda value: value + 1, 100) == 2
        assert await turn.update("k", lambda value: value) == 2

    await in_turn(talk)(both)


async def test_a_function_that_raises_changes_nothing(talk: Callable[..., Any]) -> None:
    def divide(value: Any) -> Any:
        raise StopIteration("enough") if value == "stop" else ZeroDivisionError

    async def plain(turn: Turn) -> None:
        await turn.remember("k", [1])
        with pytest.raises(ZeroDivisionError):
            await turn.update("k", divide)
        assert await turn.recall("k") == [1]
        assert await turn.update("k", lambda value: [*value, 2]) == [1, 2]

    def blocking(turn: BlockingTurn) -> None:
        turn.remember("k", [1])
        with pytest.raises(ZeroDivisionError):
            turn.update("k", divide)
        with pytest.raises(RuntimeError, match="StopIteration"):
            turn.update("l", divide, "stop")
        assert turn.recall("k") == [1]
        assert turn.update("k", lambda value: [*value, 2]) == [1, 2]

    await in_turn(talk)(plain)
    await in_turn(talk)(blocking)


async def test_what_cannot_be_kept_is_refused_as_remember_refuses_it(
    talk: Callable[..., Any],
) -> None:
    async def refused(turn: Turn) -> None:
        for value in ({"a": ()}, b"x", object()):
            with pytest.raises(TypeError) as remembered:
                await turn.remember("k", value)
            with pytest.raises(TypeError) as updated:
                await turn.update("k", lambda _, value=value: value)
            assert str(updated.value) == str(remembered.value)
        with pytest.raises(TypeError, match="the default of 'k': the tuple"):
            await turn.update("k", lambda value: value, default=())
        for key in ("\x00", "k" * 10_000):
            with pytest.raises(ValueError, match="the key of a value") as named:
                await turn.remember(key, 1)
            with pytest.raises(ValueError, match="the key of a value") as given:
                await turn.update(key, lambda _: 1)
            assert str(given.value) == str(named.value)
        assert await turn.recall("k") is None

    await in_turn(talk)(refused)


async def test_a_coroutine_function_is_refused(talk: Callable[..., Any]) -> None:
    async def later(value: int) -> int:
        return value

    async def refused(turn: Turn) -> None:
        await turn.remember("k", 1)
        for function in (later, lambda value: later(value)):
            with pytest.raises(TypeError, match="the update of 'k' is a plain function"):
                await turn.update("k", function)
        assert await turn.recall("k") == 1

    await in_turn(talk)(refused)


async def test_a_value_that_was_changed_in_place_and_not_returned_is_not_removed(
    talk: Callable[..., Any],
) -> None:
    async def forgotten(turn: Turn) -> None:
        await turn.remember("k", [1])
        for key in ("k", "new"):
            with pytest.raises(TypeError, match="in place and returned None, "):
                await turn.update(key, lambda value: value.append(2), default=[])
        assert await turn.recall("k") == [1]
        assert await turn.recall("new") is None

    await in_turn(talk)(forgotten)


async def test_a_default_is_not_what_an_earlier_call_made_of_it(talk: Callable[..., Any]) -> None:
    async def twice(turn: Turn) -> None:
        default: list[int] = []

        def add(value: list[int]) -> list[int]:
            value.append(1)
            return value

        for key in ("k", "l"):
            assert await turn.update(key, add, default) == [1]
        assert default == []

    await in_turn(talk)(twice)


async def test_a_function_in_a_thread_may_use_its_turn_but_not_update_the_same(
    talk: Callable[..., Any],
) -> None:
    def nested(turn: BlockingTurn) -> None:
        def add(value: int) -> int:
            assert turn.recall("n", 0) == 0
            with pytest.raises(RuntimeError, match="that updates 'n' updates 'n': return it"):
                turn.update("n", add, 0)
            return value + 1

        assert turn.update("n", add, 0) == 1
        assert turn.update("other", lambda value: value + 1, 5) == 6

    await in_turn(talk)(nested)


async def test_updates_inside_updates_do_not_wait_for_each_other(talk: Callable[..., Any]) -> None:
    agent, both = Agent("Crossed"), threading.Barrier(2)

    @agent.skill(replies="message")
    def crossed(turn: BlockingTurn) -> str:
        outer, inner = turn.text.split()

        def add(value: int) -> int:
            both.wait(10)
            turn.update(inner, lambda value: value + 1, 0)
            return value + 1

        try:
            return str(turn.update(outer, add, 0))
        except RuntimeError as error:
            return str(error)

    async with talk(agent) as caller, asyncio.timeout(20):
        sends = [caller.send(text, context_id="c") for text in ("a b", "b a")]
        replies = [reply.text for reply in await asyncio.gather(*sends)]
    assert replies == [
        "the function that updates 'a' updates 'b': do one after the other",
        "the function that updates 'b' updates 'a': do one after the other",
    ]


async def test_a_turn_that_is_canceled_in_an_update_holds_up_no_other(
    talk: Callable[..., Any],
) -> None:
    agent = Agent("Canceled", execution=Execution(cancel_grace=0.1))
    inside, go_on = threading.Event(), threading.Event()

    @agent.skill(replies="task")
    def slow(turn: BlockingTurn) -> str:
        def wait(value: int) -> int:
            inside.set()
            go_on.wait(10)
            return value + 100

        return str(turn.update("n", wait, 0))

    @agent.skill(replies="message")
    async def quick(turn: Turn) -> str:
        return str(await turn.update("n", lambda n: n + 1, 0))

    async with talk(agent) as caller:
        options = {"context_id": "c", "metadata": {"skill": "slow"}, "return_immediately": True}
        task = await caller.task("go", **options)
        await until(inside.is_set)
        canceled = await caller.service.cancel_task(CancelTaskRequest(id=task.id), caller.context)
        assert canceled.state is TaskState.CANCELED
        reply = await caller.send("go", context_id="c", metadata={"skill": "quick"})
        assert reply.text == "1"
        go_on.set()


class Raced(MortalStore):
    """A store in which somebody else sets the value just before it is compared, so many times."""

    def __init__(self, times: int, **options: Any) -> None:
        super().__init__(**options)
        self.times = times

    async def compare_and_set(self, scope: Scope, context_id: str, key: str, *values: Any) -> bool:
        if self.times:
            self.times -= 1
            found = await self.get_value(scope, context_id, key)
            await self.set_value(scope, context_id, key, str(int(found or 0) + 10).encode())
        return await super().compare_and_set(scope, context_id, key, *values)


async def test_a_function_is_called_again_with_what_another_replica_has_set(
    talk: Callable[..., Any],
) -> None:
    agent, given = Agent("Raced"), []

    @agent.skill(replies="message")
    async def count(turn: Turn) -> str:
        def add(n: int) -> int:
            given.append(n)
            return n + 1

        return str(await turn.update("n", add, 0))

    async with talk(agent, store=Raced(3)) as caller:
        assert (await caller.send("go")).text == "31"
    assert given == [0, 10, 20, 30]


# -- runs that come after others ---------------------------------------------------------------


async def test_a_step_that_updates_counts_once_in_the_life_of_a_task(
    talk: Callable[..., Any],
) -> None:
    agent = Agent("Orders")

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        number = await turn.step("number", turn.update, "orders", lambda n: n + 1, default=0)
        runs = await turn.update("runs", lambda n: n + 1, default=0)
        size = await turn.ask("Large or small?")
        return f"{number} {runs} {size.text}"

    async with talk(agent) as caller:
        task = await caller.task("go", context_id="c")
        done = await caller.task("small", task_id=task.id)
        assert done.text == "1 2 small"
        task = await caller.task("go", context_id="c")
        assert (await caller.task("large", task_id=task.id)).text == "2 4 large"


async def test_a_step_that_updates_counts_once_for_a_plain_function_too(
    talk: Callable[..., Any],
) -> None:
    agent = Agent("Orders")

    @agent.skill(replies="task")
    def order(turn: BlockingTurn) -> str:
        number = turn.step("number", turn.update, "orders", lambda n: n + 1, default=0)
        return f"{number} {turn.ask('Large or small?').text}"

    async with talk(agent) as caller:
        for n in (1, 2):
            task = await caller.task("go", context_id="c")
            done = await caller.task("small", task_id=task.id)
            assert done.text == f"{n} small"


async def test_an_answer_says_whether_it_is_new(talk: Callable[..., Any]) -> None:
    agent = Agent("Asks")
    seen: list[list[Any]] = []

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        run: list[Any] = []
        seen.append(run)
        for key in ("one", "two"):
            answer = await turn.ask(f"{key}?", key=key)
            assert isinstance(answer, Answer)
            run.append((answer.text, answer.replayed))
        allowed = await turn.require_auth("May I?")
        run.append((allowed.text, allowed.replayed))
        return "done"

    async with talk(agent) as caller:
        task = await caller.task("go")
        for text in ("1", "2", "yes"):
            task = await caller.task(text, task_id=task.id)
        assert task.state is TaskState.COMPLETED
    assert seen == [
        [],
        [("1", False)],
        [("1", True), ("2", False)],
        [("1", True), ("2", True), ("yes", False)],
    ]


async def test_a_plain_function_is_told_whether_an_answer_is_new(talk: Callable[..., Any]) -> None:
    agent, seen = Agent("Asks"), []

    @agent.skill(replies="task")
    def ask(turn: BlockingTurn) -> str:
        seen.extend([turn.ask(question).replayed for question in ("One?", "Two?")])
        return "done"

    async with talk(agent) as caller:
        task = await caller.task("go")
        for text in ("1", "2"):
            task = await caller.task(text, task_id=task.id)
    assert seen == [True, False]


async def test_an_answer_is_not_new_to_a_replica_that_takes_over(mortal_fleet: Fleet) -> None:
    agent, seen, go_on = Agent("Asks"), [], asyncio.Event()

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        answer = await turn.ask("Sure?")
        seen.append((turn.attempt, answer.replayed))
        await go_on.wait()
        return answer.text

    one, two = await mortal_fleet.add(agent), await mortal_fleet.add(agent)
    task = await one.task("go")
    await one.task("yes", task_id=task.id, return_immediately=True)
    await until(lambda: bool(seen))
    running = one if one.executor.running else two
    other = two if running is one else one
    await mortal_fleet.kill(running)
    await until(lambda: len(seen) == 2)
    go_on.set()
    await until_state(other, task.id, TaskState.COMPLETED)
    assert seen == [(1, False), (2, True)]


async def test_an_answer_is_not_new_after_a_deployment(fleet: Fleet) -> None:
    agent, seen, go_on = Agent("Asks"), [], asyncio.Event()

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        answer = await turn.ask("Sure?")
        seen.append((turn.attempt, answer.replayed))
        await go_on.wait()
        return answer.text

    one = await fleet.add(agent)
    task = await one.task("go")
    await one.task("yes", task_id=task.id, return_immediately=True)
    await until(lambda: bool(seen))
    two = await fleet.add(agent)
    await one.host.stop()
    await until(lambda: len(seen) == 2)
    go_on.set()
    await until_state(two, task.id, TaskState.COMPLETED)
    assert [replayed for _, replayed in seen] == [False, True]


async def test_an_answer_is_the_message_that_it_is_and_is_written_as_that(
    talk: Callable[..., Any],
) -> None:
    message = Message(message_id="m", role=Role.USER, parts=(Part(text="yes"),))
    for replayed in (True, False):
        answer = Answer.of(message, replayed=replayed)
        assert answer == message
        assert message == answer
        assert answer == Answer.of(message, replayed=not replayed)
        assert answer != msgspec.structs.replace(message, message_id="n")
        assert answer != "yes"
        assert hash(answer) == hash(message)
        assert encode(answer) == encode(message)
        for again in (copy.copy(answer), copy.deepcopy(answer), pickle.loads(pickle.dumps(answer))):
            assert (again, again.replayed) == (answer, replayed)
        with pytest.raises(AttributeError):
            answer.replayed = True  # type: ignore[misc]

    agent = Agent("Echo", retention=Retention(history=True))

    @agent.skill(replies="task")
    async def echo(turn: Turn) -> Message:
        answer = await turn.ask("What?")
        assert answer == turn.latest
        await turn.working(answer)
        return answer

    async with talk(agent) as caller:
        task = await caller.task("go")
        done = await caller.task("this", task_id=task.id)
        assert done.state is TaskState.COMPLETED, done.status
        assert done.text == "this"
        assert b"replayed" not in encode(done)
