"""How much of a task's history the stream of a message shows."""

from __future__ import annotations

from typing import Any

import pytest

from parley import Agent, Turn
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import GetTaskRequest
from parley.model.service import CallContext
from tests.engine.fleet import collect

pytestmark = pytest.mark.anyio


async def test_every_task_in_the_stream_of_a_message_has_the_history_asked_for(talk: Any) -> None:
    agent = Agent("Curious")

    @agent.skill
    async def wonder(turn: Turn) -> str:
        for n in range(4):
            await turn.ask(f"What, {n}?")
        return "Ah."

    asked = CallContext(extensions=frozenset({IDEMPOTENT_SEND}))
    async with talk(agent) as caller:
        task = await caller.task("go", message_id="m1", context=asked)
        for length in (99, 0, 1, 3):
            get = GetTaskRequest(id=task.id)
            whole = (await caller.service.get_task(get, caller.context)).history
            items = await collect(caller.stream("so", task_id=task.id, history_length=length))
            assert items[0].event.history == whole[max(len(whole) - length, 0) :]
            assert len(items) > 1
        # One that was answered before is streamed again from its beginning.
        for id, options, shown in (("m1", {}, 1), ("m2", {"history_length": 0}, 0)):
            options = {"message_id": id, "context": asked, **options}
            await caller.task("go", **options)
            items = await collect(caller.stream("go", **options))
            assert [len(item.event.history) for item in items if item.seq == 1] == [shown]
