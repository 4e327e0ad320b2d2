"""What travels with a call: hops, path, deadline and trace; and what does not: the caller."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Execution, Retention, Task, TaskState, Turn
from parley.engine.caller import chain_id
from parley.extensions import CallChain, Chain
from parley.model.errors import InvalidParamsError, UnsupportedOperationError
from parley.model.extensions import CALL_CHAIN
from parley.model.operations import AuthenticationInfo, ListTasksRequest, TaskPushNotificationConfig
from parley.model.struct import Timestamp
from parley.store.events import RecordKind
from parley.store.memory import MemoryTaskStore

pytestmark = pytest.mark.anyio

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def in_ms(milliseconds: int) -> Timestamp:
    return Timestamp.from_milliseconds(Timestamp.now().milliseconds + milliseconds)


def passing_on(name: str, to: list[str], seen: list[Any] | None = None, **options: Any) -> Agent:
    """Return an agent that calls the next one, and tells what came with its message."""
    agent = Agent(name, **options)

    @agent.skill
    async def work(turn: Turn) -> str:
        """Calls on."""
        if seen is not None:
            seen.append((turn.metadata.get(CALL_CHAIN), turn.trace, turn.caller))
        if not to:
            return "end"
        async with turn.connect(to[0]) as remote:
            try:
                return (await turn.delegate(remote, "go")).text
            except UnsupportedOperationError as error:
                turn.fail(f"{error.metadata['problem']}: {error.message}")

    return agent


async def send(url: str, chain: Chain | None = None, **options: Any) -> Any:
    metadata = None if chain is None else CallChain.says(chain)
    async with parley.connect(url, extensions=[CallChain()], **options) as remote:
        return await remote.send("go", metadata=metadata)


async def test_hops_and_path_grow_and_tell_no_names(serve: Any) -> None:
    seen: list[Any] = []
    last = await serve(passing_on("Last secret name", [], seen))
    middle = await serve(passing_on("Middle", [last], seen))
    first = await serve(passing_on("First", [middle], seen))
    assert (await send(first)).text == "end"
    (none, _, _), (one, _, _), (two, _, _) = seen
    assert none is None
    assert one["hops"] == 1
    assert two["hops"] == 2
    assert two["path"][0] == one["path"][0]
    assert all(len(each) == 32 and each.isalnum() for each in two["path"])


async def test_a_chain_that_comes_back_is_refused_before_there_is_a_task(serve: Any) -> None:
    store = MemoryTaskStore()
    to: list[str] = []
    first = await serve(passing_on("First", to), store=store)
    to.append(await serve(passing_on("Second", [first])))
    task = await send(first)
    assert task.state is TaskState.FAILED
    async with parley.connect(first) as remote:
        page = await remote.service.list_tasks(ListTasksRequest(), remote.context)
    assert [task.id for task in page.tasks] == [task.id]
    with pytest.raises(UnsupportedOperationError, match="wait for itself") as caught:
        await send(first, Chain(hops=3, path=("other", await chain_id(store, "first"))))
    assert caught.value.metadata["problem"] == "loop"
    assert caught.value.metadata["extension"] == CALL_CHAIN


async def test_too_many_hops_are_refused_before_there_is_a_task(serve: Any) -> None:
    url = await serve(passing_on("Last", [], execution=Execution(max_hops=2)))
    assert (await send(url, Chain(hops=2))).text == "end"
    with pytest.raises(UnsupportedOperationError, match="at most 2") as caught:
        await send(url, Chain(hops=3))
    assert caught.value.metadata["problem"] == "hops"
    with pytest.raises(ValueError, match="max_hops is 1 or more"):
        Agent("None", execution=Execution(max_hops=0))


@pytest.mark.parametrize(
    "value",
    [
        "three",
        {"hops": -1},
        {"hops": True},
        {"hops": 1.5},
        {"deadline": "tomorrow"},
        {"deadline": 3},
        {"path": "me"},
        {"path": [""]},
        {"path": ["x" * 129]},
        {"path": ["x"] * 65},
    ],
)
async def test_something_else_than_a_chain_is_refused(serve: Any, value: Any) -> None:
    url = await serve(passing_on("Last", []))
    async with parley.connect(url, extensions=[CallChain()]) as remote:
        with pytest.raises(InvalidParamsError, match=CALL_CHAIN):
            await remote.send("go", metadata={CALL_CHAIN: value})


async def test_without_the_extension_its_data_means_nothing(serve: Any) -> None:
    url = await serve(passing_on("Last", []))
    async with parley.connect(url) as remote:
        answer = await remote.send("go", metadata={CALL_CHAIN: {"hops": 1000}})
    assert answer.text == "end"


async def test_a_deadline_that_has_passed_is_refused(serve: Any) -> None:
    url = await serve(passing_on("Last", []))
    with pytest.raises(UnsupportedOperationError, match="has passed") as caught:
        await send(url, Chain(deadline=in_ms(-1000)))
    assert caught.value.metadata["problem"] == "deadline"


async def test_the_earliest_deadline_travels(serve: Any) -> None:
    seen: list[Any] = []
    last = await serve(passing_on("Last", [], seen))
    quick = await serve(
        passing_on(
            "Quick",
            [last],
            execution=Execution(turn_timeout=timedelta(hours=2), task_timeout=timedelta(days=1)),
        )
    )
    given = in_ms(3_600_000)
    await send(quick)
    await send(quick, Chain(deadline=given))
    await send(quick, Chain(deadline=in_ms(10 * 3_600_000)))
    of_turn, of_caller, later = (Timestamp.parse(chain["deadline"]) for chain, _, _ in seen)
    assert of_caller == given
    for each in (of_turn, later):
        assert timedelta(hours=1.9) < each - Timestamp.now() <= timedelta(hours=2)


async def test_the_deadline_of_a_caller_bounds_the_turn_of_its_message_and_no_other(
    serve: Any,
) -> None:
    agent = Agent("Slow", execution=Execution(cancel_grace=0.1))

    @agent.skill
    async def work(turn: Turn) -> str:
        """Asks, and then waits for ever."""
        await turn.ask("Go on?")
        if turn.latest.text == "wait":
            await asyncio.Event().wait()
        await turn.ask("Again?")
        return "done"

    url = await serve(agent)
    task = await send(url, Chain(deadline=in_ms(60_000)))
    async with parley.connect(url, extensions=[CallChain()]) as remote:
        soon = CallChain.says(Chain(deadline=in_ms(400)))
        task = await remote.send("wait", task=task, metadata=soon)
    assert isinstance(task, Task)
    assert task.state is TaskState.FAILED
    assert "deadline of its caller" in task.text


async def test_a_turn_belongs_to_the_trace_of_its_message_and_its_calls_too(serve: Any) -> None:
    seen: list[Any] = []
    last = await serve(passing_on("Last", [], seen))
    first = await serve(passing_on("First", [last], seen))
    headers = {"traceparent": TRACE, "tracestate": "vendor=1"}
    await send(first, headers=headers)
    (_, inbound, _), (_, outbound, _) = seen
    assert inbound.traceparent == TRACE
    version, trace_id, span_id, flags = outbound.traceparent.split("-")
    assert (version, trace_id, flags) == ("00", inbound.trace_id, "01")
    assert span_id not in TRACE
    assert outbound.tracestate == "vendor=1"
    seen.clear()
    await send(first)
    assert [bool(trace) for _, trace, _ in seen] == [False, False]


async def test_the_caller_of_the_turn_is_not_passed_on(serve: Any) -> None:
    headers: list[dict[str, str]] = []

    def who(scope: Any) -> Caller:
        given = {name.decode(): value.decode() for name, value in scope["headers"]}
        headers.append(given)
        user = given.get("authorization", "").removeprefix("Bearer ")
        return Caller(user, bool(user), {"email": "bob@example.com"})

    seen: list[Any] = []
    last = await serve(passing_on("Last", [], seen), caller=who)
    first = await serve(
        passing_on("First", [last], seen, retention=Retention(claims=["email"])), caller=who
    )
    await send(first, bearer="bob")
    (_, _, caller), (_, _, passed) = seen
    assert caller.id == "bob"
    assert passed.id == ""
    assert not any("bob" in str(each) for each in headers if "authorization" not in each)


async def test_credentials_of_the_connection_go_out_and_are_not_logged(serve: Any) -> None:
    seen: list[Any] = []
    store = MemoryTaskStore()

    def who(scope: Any) -> Caller:
        given = dict(scope["headers"])
        return Caller(given.get(b"authorization", b"").decode(), True)

    last = await serve(passing_on("Last", [], seen), caller=who, allow_private_webhooks=True)
    first = Agent("First")

    @first.skill
    async def work(turn: Turn) -> str:
        """Calls with a token, and with a password in the address."""
        address = last.replace("http://", "http://me:hunter2@")
        async with turn.connect(last, bearer="hunter3") as remote:
            await turn.delegate(remote, "go")
        hook = TaskPushNotificationConfig(
            url="http://127.0.0.1:9/hook",
            token="hunter4",
            authentication=AuthenticationInfo(scheme="Bearer", credentials="hunter5"),
        )
        await turn.delegate(address, "go", push=hook)
        return turn.task_id

    task = await send(await serve(first, store=store))
    assert [caller.id.split()[0] for _, _, caller in seen] == ["Bearer", "Basic"]
    records = await store.private_records(task.text, list(RecordKind))
    events = await store.events(task.text, 0, 100)
    log = b"".join(record.payload for record in (*records, *events))
    assert b"call:" in log
    assert b"hunter" not in log
