"""Callers, tenants and traces: callers see only their own data, over every binding and store."""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import msgspec
import pytest

import parley
from parley import Agent, Message, Part, Role, TaskPushNotificationConfig, TaskState, Turn
from parley.client.errors import NoCommonVersion
from parley.extensions import SEARCH, SearchTasksRequest, TaskSearch
from parley.model.errors import TaskNotFoundError, UnauthenticatedError
from parley.model.ids import LONGEST_ID
from parley.model.operations import GetTaskRequest
from parley.model.service import TraceContext
from tests.contract.agents import contract, plain, private
from tests.contract.conftest import Serve, Speech, connect, reach
from tests.contract.test_errors import refused

pytestmark = pytest.mark.anyio


BOBS = {
    "of one issuer": {"x-user": "bob", "x-issuer": "https://one.example"},
    "of another issuer": {"x-user": "bob", "x-issuer": "https://two.example"},
    "of no issuer": {"x-user": "bob"},
    "an application": {"x-user": "bob", "x-client": "bob", "x-issuer": "https://one.example"},
    "an application of no issuer": {"x-user": "bob", "x-client": "bob"},
    "unauthenticated": {"x-user": "bob?"},
    "unauthenticated, with an issuer": {"x-user": "bob?", "x-issuer": "https://one.example"},
}
HOOK = TaskPushNotificationConfig(id="hook", url="https://hooks.example.com/a2a")


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, private))


@pytest.fixture
async def bobs(addresses: Sequence[str], speech: Speech) -> AsyncIterator[list[Any]]:
    """A client of the agent for each Bob."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                reach(
                    addresses, speech, headers=headers, idempotent=True, extensions=[TaskSearch()]
                )
            )
            for headers in BOBS.values()
        ]


def secret(n: int, message_id: str = "", context_id: str = "") -> Message:
    return Message(
        message_id=message_id or secrets.token_hex(8),
        context_id=context_id,
        role=Role.USER,
        parts=(Part(text=f"secret{n}"),),
    )


@pytest.mark.slow
async def test_nobody_reaches_the_task_of_a_namesake(bobs: list[Any], speech: Speech) -> None:
    tasks = [await bob.send(secret(n)) for n, bob in enumerate(bobs)]
    for bob, own in zip(bobs, tasks, strict=True):
        await bob.push.create(own.id, HOOK)
        for task in tasks:
            if task is own:
                continue
            asked = [
                bob.get(task.id),
                bob.cancel(task.id),
                bob.send("go on", task_id=task.id),
                anext(bob.subscribe(task.id)),
                bob.push.create(task.id, HOOK),
                bob.push.get(task.id, "hook"),
                bob.push.page(task.id),
                bob.push.delete(task.id, "hook"),
            ]
            for each in asked:
                with pytest.raises(TaskNotFoundError):
                    await each
        if not speech.is_old:
            listed = [task.id for task in (await bob.list()).tasks]
            assert own.id in listed
            assert not {task.id for task in tasks if task is not own} & {*listed}
            if speech.binding != "GRPC":
                found = await bob.call(SEARCH, SearchTasksRequest(text="secret"))
                assert [task.id for task in found.tasks] == listed[: len(found.tasks)]
                assert own.id in [task.id for task in found.tasks]
    for bob, own in zip(bobs, tasks, strict=True):
        assert (await bob.get(own.id)).state is TaskState.INPUT_REQUIRED
        assert (await bob.push.get(own.id, "hook")).url == HOOK.url
        assert (await bob.cancel(own.id)).state is TaskState.CANCELED


async def test_each_is_known_by_name_and_has_a_conversation_of_their_own(bobs: list[Any]) -> None:
    """All Bobs use the same context id. Every turn gets the claims that the store keeps."""
    context = secrets.token_hex(8)
    tasks = [await bob.send(secret(n, context_id=context)) for n, bob in enumerate(bobs)]
    for n, (bob, task, headers) in enumerate(zip(bobs, tasks, BOBS.values(), strict=True)):
        done = await bob.send("go on", task_id=task.id)
        user, issuer = headers["x-user"], headers.get("x-issuer", "")
        claims = [("email", f"{user}@{issuer}")]
        known = ["bob", issuer, str(not user.endswith("?")), str(claims)]
        # The function runs again from the top, so it remembers its text a second time.
        said = f"secret{n};"
        assert done.text.split("|") == [*known, f"secret{n}", said * 2]


async def test_a_message_is_a_repeat_only_of_their_own(bobs: list[Any]) -> None:
    message_id = secrets.token_hex(8)
    first = [await bob.send(secret(7, message_id)) for bob in bobs]
    assert len({task.id for task in first}) == len(bobs)
    again = [await bob.send(secret(7, message_id)) for bob in bobs]
    assert [task.id for task in again] == [task.id for task in first]


async def test_the_longest_names_are_kept(addresses: Sequence[str], speech: Speech) -> None:
    """Caller, issuer, context and message have random names, so that no store can compress them."""

    def name() -> str:
        return secrets.token_hex(LONGEST_ID // 2)

    headers = {"x-user": name(), "x-issuer": name()}
    async with reach(addresses, speech, headers=headers, idempotent=True) as caller:
        sent = secret(1, message_id=name(), context_id=name())
        task = await caller.send(sent)
        assert (await caller.send(sent)).id == task.id
        done = await caller.send("go on", task_id=task.id)
        assert done.text.startswith(f"{headers['x-user']}|{headers['x-issuer']}|True|")


async def test_a_name_with_a_separator_in_it_is_not_let_in(
    bobs: list[Any], addresses: Sequence[str], speech: Speech
) -> None:
    """Otherwise the name "https://one.example" + U+001F + "bob" would equal that issuer's bob."""
    task = await bobs[0].send(secret(0))
    for headers in (
        {"x-user": "https://one.example%1Fbob"},
        {"x-user": "bob", "x-issuer": "https://one.example%1F"},
        {"x-user": "%1Fbob"},
    ):
        async with reach(addresses, speech, headers=headers) as eve:
            caught = await refused(eve, "GetTask", GetTaskRequest(id=task.id))
            assert type(caught) is UnauthenticatedError


# -- tenants, in every way that can name a tenant --------------------------------------------------


@pytest.fixture(scope="session")
async def shared(serve: Serve) -> Sequence[str]:
    """The addresses of the tenants' server, one per replica."""
    tenants = {"acme": contract, "globex": contract, "initech": plain}
    return await serve(partial(parley.asgi, tenants=tenants))


@pytest.fixture
async def cannot(shared: Sequence[str], speech: Speech) -> bool:
    """Whether this way cannot name a tenant: it has neither a field nor a path."""
    if speech.way != ("GRPC", "0.3"):
        return False
    with pytest.raises(NoCommonVersion):
        await connect(f"{shared[0]}/acme", speech)
    return True


@pytest.mark.parametrize("path", ["/{}", "/a2a/{}", "/.well-known/agent-card.json?tenant={}"])
async def test_each_tenant_is_its_own_agent(shared, speech, cannot, path):
    if cannot:
        return
    for tenant, name in (("acme", "Contract agent"), ("initech", "Plain agent")):
        async with reach(shared, speech, path=path.format(tenant)) as remote:
            assert remote.card.name == name
            assert (await remote.send("say hello")).text in ("hello", "mhm")


async def test_tenants_see_nothing_of_each_other(shared, speech, cannot):
    if cannot:
        return
    async with (
        reach(shared, speech, path="/acme") as acme,
        reach(shared, speech, path="/globex") as globex,
        reach(shared, speech, path="/a2a/acme") as acme_by_name,
    ):
        task = await acme.send("ask please", push="https://hooks.example.com/a")
        for asked in (
            globex.get(task.id),
            globex.cancel(task.id),
            globex.send("42", task_id=task.id),
            globex.push.page(task.id),
        ):
            with pytest.raises(TaskNotFoundError):
                await asked
        with pytest.raises(TaskNotFoundError):
            [event async for event in globex.subscribe(task.id)]
        assert (await acme_by_name.get(task.id)).id == task.id
        assert len((await acme.push.page(task.id)).configs) == 1
        if not speech.is_old:
            assert task.id not in [each.id for each in (await globex.list()).tasks]
            assert task.id in [each.id for each in (await acme_by_name.list()).tasks]


async def test_the_extended_card_keeps_its_reader_with_the_tenant(shared, speech, cannot):
    if cannot:
        return
    for path in ("/globex", "/a2a/globex"):
        async with reach(shared, speech, path=path) as remote:
            card = await remote.extended_card()
            assert "secret" in {skill.id for skill in card.skills}
            for each in card.supported_interfaces:
                address = each.url.removesuffix("/envelope")
                assert each.tenant == "globex" or address.endswith("/globex")


# -- a turn belongs to its message's trace, over every binding, version and store ------------------


FIRST = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECOND = "00-11111111111111111111111111111111-2222222222222222-00"

traced = Agent("Traced")


@traced.skill(replies="task", default=True)
async def asking(turn: Turn) -> str:
    """Says what trace each of its turns belongs to."""
    said = f"{turn.trace.traceparent};{turn.trace.tracestate}"
    await turn.ask(said)
    return said


@traced.skill(replies="message")
async def direct(turn: Turn) -> str:
    """Says so in a message."""
    return f"{turn.trace.traceparent};{turn.trace.tracestate}"


@pytest.fixture(scope="session")
async def traces(serve: Serve) -> Any:
    return await serve(partial(parley.asgi, traced))


async def send(traces: Any, speech: Speech, text: str, *trace: str, **options: Any) -> Any:
    """Send a message with a trace to any of the replicas."""
    parent, state = trace
    async with reach([random.choice(traces)], speech) as remote:
        remote.context = msgspec.structs.replace(
            remote.context, trace=TraceContext(traceparent=parent, tracestate=state)
        )
        return await remote.send(text, **options)


async def test_each_turn_belongs_to_the_trace_of_its_message(traces: Any, speech: Speech) -> None:
    task = await send(traces, speech, "go", FIRST, "a=1,b=2")
    assert task.status.message.text == f"{FIRST};a=1,b=2"
    done = await send(traces, speech, "go on", SECOND, "", task_id=task.id)
    assert done.text == f"{SECOND};"
    task = await send(traces, speech, "go", FIRST, "")
    done = await send(traces, speech, "go on", "", "", task_id=task.id)
    assert done.text == ";"


async def test_a_direct_reply_belongs_to_a_trace(traces: Any, speech: Speech) -> None:
    reply = await send(traces, speech, "go", FIRST, "a=1", metadata={"skill": "direct"})
    assert reply.text == f"{FIRST};a=1"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ({"traceparent": "00-1-2-01", "tracestate": "a=1"}, ";"),
        ({"tracestate": "a=1"}, ";"),
        ({"traceparent": FIRST, "tracestate": "A=1"}, f"{FIRST};"),
        ({"traceparent": FIRST, "tracestate": "a=1 , b=2"}, f"{FIRST};a=1,b=2"),
    ],
)
async def test_what_is_not_valid_is_dropped(
    traces: Any, speech: Speech, sent: dict[str, str], kept: str
) -> None:
    async with reach(traces, speech, headers=sent) as remote:
        assert (await remote.send("go", metadata={"skill": "direct"})).text == kept
