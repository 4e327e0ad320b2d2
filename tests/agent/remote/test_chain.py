"""A call carries hops, path, deadline and trace, and never the caller."""

from __future__ import annotations

from typing import Any

import pytest

import parley
from parley import Agent, Caller, Retention, TaskState, Turn
from parley.engine.caller import chain_id
from parley.extensions import CallChain, Chain
from parley.model.errors import UnsupportedOperationError
from parley.model.extensions import CALL_CHAIN
from parley.model.operations import AuthenticationInfo, ListTasksRequest, TaskPushNotificationConfig
from parley.store.events import RecordKind
from parley.store.memory import MemoryTaskStore

pytestmark = pytest.mark.anyio

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def passing_on(name: str, to: list[str], seen: list[Any] | None = None, **options: Any) -> Agent:
    """Return an agent that calls the next agent; it adds chain, trace and caller to ``seen``."""
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
