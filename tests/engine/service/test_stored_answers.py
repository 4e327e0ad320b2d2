"""Responses from the JSON of the store, and the history that a stream shows."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from parley import Agent, Turn
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import (
    BY_NAME,
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)
from parley.model.service import CallContext
from parley.model.struct import encode
from parley.model.tasks import Task
from parley.server.http.streams import is_input_required
from parley.wire import versions
from tests.engine.fleet import collect

pytestmark = pytest.mark.anyio


CODEC = versions.dialect("1.0").jsonrpc
LENGTHS = (None, 0, 1, 2, 99)


def curious() -> Agent:
    agent = Agent("Curious")

    @agent.skill
    async def wonder(turn: Turn) -> str:
        """Asks again and again, and shows what it heard."""
        text = turn.text
        for n in range(99):
            await turn.artifact(f"{text} ☃", name=f"heard {n}")
            text = (await turn.ask("What else?")).text
        return "Ah."

    return agent


def written(operation: str, answer: Any) -> Any:
    """The value of a response as a binding of 1.0 writes it."""
    return json.loads(CODEC.write_result(BY_NAME[operation], answer))


async def test_the_answers_have_the_same_value_as_those_that_were_decoded(talk: Any) -> None:
    async with talk(curious()) as caller:
        service, in_json, context = caller.service, caller.service.in_json, caller.context
        task = await caller.task("go")
        for text in ("one", "two ☃"):
            await caller.task(text, task_id=task.id)
        for length in LENGTHS:
            get = GetTaskRequest(id=task.id, history_length=length)
            shown, raw = await service.get_task(get, context), await in_json.get_task(get, context)
            assert type(raw) is msgspec.Raw
            assert type(shown) is Task
            assert json.loads(encode(shown)) == written("GetTask", raw)
            for artifacts in (None, False, True):
                wanted = ListTasksRequest(history_length=length, include_artifacts=artifacts)
                page = await in_json.list_tasks(wanted, context)
                assert [type(each) for each in page.tasks] == [msgspec.Raw]
                plain = await service.list_tasks(wanted, context)
                assert written("ListTasks", page) == json.loads(encode(plain))
        subscribe = SubscribeToTaskRequest(id=task.id)
        items = []
        for each in (service, in_json):
            async with aclosing(each.subscribe_to_task(subscribe, context)) as stream:
                items.append(await anext(stream))
        assert items[0].seq == items[1].seq
        assert [type(item.event) for item in items] == [Task, msgspec.Raw]
        assert [is_input_required(item.event) for item in items] == [True, True]
        events = [json.loads(CODEC.write_event(item)) for item in items]
        assert events[0] == events[1]
        cancel = CancelTaskRequest(id=task.id)
        canceled = await in_json.cancel_task(cancel, context)
        assert type(canceled) is msgspec.Raw
        again = await service.cancel_task(cancel, context)
        assert written("CancelTask", canceled) == json.loads(encode(again))


async def test_replies_and_joined_streams_are_the_stored_task(talk: Any) -> None:
    asked = CallContext(extensions=frozenset({IDEMPOTENT_SEND}))
    async with talk(curious()) as caller:
        service, in_json = caller.service, caller.service.in_json
        task = await caller.task("go")
        for length in LENGTHS:
            before = await service.get_task(
                GetTaskRequest(id=task.id, history_length=length), asked
            )
            options: dict[str, Any] = {} if length is None else {"history_length": length}
            request = caller.request("more", task_id=task.id, **options)
            async with aclosing(in_json.send_streaming_message(request, asked)) as stream:
                first = await anext(stream)
                async for _ in stream:
                    pass
            assert type(first.event) is msgspec.Raw
            assert json.loads(CODEC.write_event(first)) == {"task": json.loads(encode(before))}
            request = caller.request("at once", task_id=task.id, return_immediately=True, **options)
            reply = await in_json.send_message(request, asked)
            assert len(written("SendMessage", reply)["task"].get("history", ())) <= (
                99 if length is None else length
            )
            await caller.task("and", task_id=task.id)
        # A repeated message gets the task as its turn left it.
        request = caller.request("once", message_id="m1", task_id=task.id)
        replies = [await in_json.send_message(request, asked) for _ in range(2)]
        assert type(replies[1]) is msgspec.Raw
        assert written("SendMessage", replies[0]) == written("SendMessage", replies[1])


# -- the length of the history in a message's stream -----------------------------------------------


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
        # A repeat of an answered message streams from the beginning.
        for id, options, shown in (("m1", {}, 1), ("m2", {"history_length": 0}, 0)):
            options = {"message_id": id, "context": asked, **options}
            await caller.task("go", **options)
            items = await collect(caller.stream("go", **options))
            assert [len(item.event.history) for item in items if item.seq == 1] == [shown]
