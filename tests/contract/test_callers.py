"""Callers of one id: each sees what is theirs, over every binding and on every store."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

import parley
from parley import Message, Part, Role, TaskPushNotificationConfig, TaskState
from parley.extensions import SEARCH, SearchTasksRequest, TaskSearch
from parley.model.errors import TaskNotFoundError, UnauthenticatedError
from parley.model.ids import LONGEST_ID
from parley.model.operations import GetTaskRequest
from tests.contract.agents import private
from tests.contract.conftest import Serve, Speech, reach
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
    """The agent as each of them sees it."""
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
    """In a context of the same id. The claims are those that are kept, in every turn."""
    context = secrets.token_hex(8)
    tasks = [await bob.send(secret(n, context_id=context)) for n, bob in enumerate(bobs)]
    for n, (bob, task, headers) in enumerate(zip(bobs, tasks, BOBS.values(), strict=True)):
        done = await bob.send("go on", task_id=task.id)
        user, issuer = headers["x-user"], headers.get("x-issuer", "")
        claims = [("email", f"{user}@{issuer}")]
        known = ["bob", issuer, str(not user.endswith("?")), str(claims)]
        # What was remembered is remembered again, as the function runs from the top.
        said = f"secret{n};"
        assert done.text.split("|") == [*known, f"secret{n}", said * 2]


async def test_a_message_is_a_repeat_only_of_their_own(bobs: list[Any]) -> None:
    message_id = secrets.token_hex(8)
    first = [await bob.send(secret(7, message_id)) for bob in bobs]
    assert len({task.id for task in first}) == len(bobs)
    again = [await bob.send(secret(7, message_id)) for bob in bobs]
    assert [task.id for task in again] == [task.id for task in first]


async def test_the_longest_names_are_kept(addresses: Sequence[str], speech: Speech) -> None:
    """Of caller, issuer, context and message; random, so that they cannot be made shorter."""

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
    """Else "https://one.example" + U+001F + "bob" would be the bob of that issuer."""
    task = await bobs[0].send(secret(0))
    for headers in (
        {"x-user": "https://one.example%1Fbob"},
        {"x-user": "bob", "x-issuer": "https://one.example%1F"},
        {"x-user": "%1Fbob"},
    ):
        async with reach(addresses, speech, headers=headers) as eve:
            caught = await refused(eve, "GetTask", GetTaskRequest(id=task.id))
            assert type(caught) is UnauthenticatedError
