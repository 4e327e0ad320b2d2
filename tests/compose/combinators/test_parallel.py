"""``parallel``: all parts get the message at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from parley import TaskState
from parley.compose import Outcome, parallel
from parley.testing import client
from tests.compose.parts import Worker

pytestmark = pytest.mark.anyio


def summed(outcomes: Sequence[Outcome]) -> str:
    return " + ".join(each.text if each.ok else f"[{each.failure}]" for each in outcomes)


async def test_an_agent_combines_with_every_answer_under_its_name() -> None:
    one, two, writer = Worker("One"), Worker("Two"), Worker("Writer")
    async with client(parallel(one.agent, two.agent, combine=writer.agent)) as remote:
        done = await remote.send("go")
        assert done.text == "Writer(One: One(go)\nTwo: Two(go)\n)"
    async with client(parallel(one.agent, two.agent)) as remote:
        assert (await remote.send("go")).text == "One: One(go)\nTwo: Two(go)\n"


async def test_the_first_failure_ends_it_and_cancels_the_others() -> None:
    slow, broken = Worker("Slow", does="wait"), Worker("Broken", does="fail")
    async with client(parallel(slow.agent, broken.agent)) as remote:
        done = await remote.send("go")
        assert (done.state, done.text) == (TaskState.FAILED, "Broken: no luck")
        await remote.settle()
    assert slow.ended == ["cancelled"]


async def test_at_most_limit_parts_work_at_a_time() -> None:
    workers = [Worker(f"Worker {n}", does="wait") for n in range(3)]
    agent = parallel(*[each.agent for each in workers], combine=summed, limit=2)
    async with client(agent) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.settle()
        assert [len(each.began) for each in workers] == [1, 1, 0]
        workers[1].go.set()
        await remote.settle()
        assert [len(each.began) for each in workers] == [1, 1, 1]
        for each in workers:
            each.go.set()
        done = await remote.wait(task.id)
        assert done.id
        assert done.text == "Worker 0(go) + Worker 1(go) + Worker 2(go)"


async def test_a_crash_among_them_repeats_nothing_that_was_answered_or_failed() -> None:
    one, broken = Worker("One"), Worker("Broken", does="fail")
    slow = Worker("Slow", does="wait")
    agent = parallel(
        one.agent, broken.agent, slow.agent, combine=summed, failures="partial", name="All"
    )
    async with client(agent) as remote:
        task = await remote.send("go", return_immediately=True)
        for _ in range(3):
            await remote.settle()
            await remote.crash()
        await remote.settle()
        slow.go.set()
        assert (await remote.wait(task.id)).text == "One(go) + [Broken: no luck] + Slow(go)"
    assert [each.began for each in (one, broken, slow)] == [["go"]] * 3


def test_options_that_say_nothing_are_refused() -> None:
    one = Worker("One").agent
    with pytest.raises(ValueError, match="failures is 'fail' or 'partial'"):
        parallel(one, failures="some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limit is 1 or more"):
        parallel(one, limit=0)
    with pytest.raises(ValueError, match="at_least is between 1 and"):
        parallel(one, at_least=2)
