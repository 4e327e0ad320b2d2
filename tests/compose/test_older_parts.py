"""Parts that speak version 0.3 of A2A behave like other parts."""

from __future__ import annotations

from typing import Any

import pytest

from parley import TaskState
from parley.compose import parallel, part, sequence
from tests.compose.parts import Worker
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def older(address: str, **options: Any) -> Any:
    return part(address, binding="JSONRPC", version="0.3", **options)


async def test_answers_questions_and_failures_of_an_older_part(serve: Any, talk_to: Any) -> None:
    asker, last = Worker("Asker", does="ask", tokens=7), Worker("Last")
    made = sequence(
        older(await serve(asker.agent), name="Asker"), older(await serve(last.agent), name="Last")
    )
    remote = await talk_to(made)
    task = await remote.send("go")
    assert task.state is TaskState.INPUT_REQUIRED
    assert task.status.message.text == "Asker: Which day?"
    task = await remote.send("Monday", task=task)
    assert (task.state, task.text) == (TaskState.COMPLETED, "Last(Asker(go Monday))")
    assert asker.began == ["go"]
    assert last.began == ["Asker(go Monday)"]


@pytest.mark.slow
async def test_an_older_part_is_canceled_when_it_is_late_or_another_fails(
    serve: Any, talk_to: Any
) -> None:
    slow, bad = Worker("Slow", does="wait"), Worker("Bad", does="fail")
    address = await serve(slow.agent)
    late = await talk_to(sequence(older(address, name="Slow", timeout=0.5)))
    assert (await late.send("go")).text == "Slow: it did not answer within 0.5 s"
    await until(lambda: slow.ended == ["cancelled"])
    both = await talk_to(parallel(older(address, name="Slow"), bad.agent, name="Both"))
    assert (await both.send("go")).text == "Bad: no luck"
    await until(lambda: slow.ended == ["cancelled"] * len(slow.began))
