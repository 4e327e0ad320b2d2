"""``turn.caller`` is the caller of the turn's message, in every attempt and after every restart."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parley import Agent, CallContext, Caller, Execution, Message, Retention, Task, TaskState, Turn
from parley.engine.caller import CLAIM_BYTES, caller_in, kept
from parley.model.errors import TaskNotFoundError
from parley.model.operations import GetTaskRequest
from parley.model.parts import Part, Role
from parley.model.struct import Timestamp
from parley.model.tasks import TaskStatus
from parley.store.events import (
    CancelRequested,
    MessageReceived,
    RecordKind,
    Scope,
    StoredCaller,
    TurnStarted,
    logged,
)
from parley.store.protocols.task_log import Append
from parley.store.sqlite.store import SqliteTaskStore
from tests.engine.fleet import Fleet, until_state

pytestmark = pytest.mark.anyio

BOB = Caller(
    id="bob",
    issuer="https://login.example",
    authenticated=True,
    claims={"email": "bob@example.com", "groups": ("a", "b"), "access_token": "hunter2"},
)
KEPT = {"email": "bob@example.com", "groups": ["a", "b"]}
KNOWN = CallContext(caller=BOB)


def asking(seen: list[Caller]) -> Agent:
    """An agent that asks two questions and records its callers."""
    agent = Agent("Asking", retention=Retention(claims=["email", "groups"]))

    @agent.skill
    async def ask(turn: Turn) -> str:
        seen.append(turn.caller)
        first = await turn.ask("One?")
        second = await turn.ask("Two?")
        return f"{first.text} {second.text}"

    @agent.skill(replies="message")
    async def direct(turn: Turn) -> str:
        seen.append(turn.caller)
        return "hello"

    return agent


async def test_a_turn_that_runs_again_knows_the_caller_of_its_message(
    talk: Any, tmp_path: Path
) -> None:
    """The host stops once in the first turn and once in a later turn."""
    seen: list[tuple[int, int, Caller]] = []
    begun = asyncio.Event()
    agent = Agent(
        "Slow", retention=Retention(claims=["email"]), execution=Execution(cancel_grace=0.1)
    )

    @agent.skill(replies="task")
    async def slow(turn: Turn) -> str:
        seen.append((turn.number, turn.attempt, turn.caller))
        if turn.attempt == 1:
            begun.set()
            await asyncio.Event().wait()
        await turn.ask("More?")
        return "done"

    other = msgspec.structs.replace(BOB, claims={"email": "second@example.com"})
    path = tmp_path / "again.db"
    async with talk(agent, SqliteTaskStore(path)) as caller:
        task = await caller.task("go", context=KNOWN, return_immediately=True)
        await asyncio.wait_for(begun.wait(), 20)
    begun.clear()
    async with talk(agent, SqliteTaskStore(path)) as caller:
        caller.context = KNOWN
        await until_state(caller, task.id, TaskState.INPUT_REQUIRED)
        context = CallContext(caller=other)
        sent = caller.task("a", task_id=task.id, context=context, return_immediately=True)
        await asyncio.gather(sent, asyncio.wait_for(begun.wait(), 20))
    async with talk(agent, SqliteTaskStore(path)) as caller:
        caller.context = KNOWN
        await until_state(caller, task.id, TaskState.COMPLETED)
    assert [(number, attempt) for number, attempt, _ in seen] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    emails = [each.claims["email"] for *_, each in seen]
    assert emails == ["bob@example.com"] * 2 + ["second@example.com"] * 2
    assert {each.owner for *_, each in seen} == {BOB.owner}


async def test_another_replica_knows_the_caller(fleet: Fleet) -> None:
    """An API replica accepts each message, and a worker runs its turn."""
    seen: list[Caller] = []
    agent = asking(seen)
    front = await fleet.add(agent, role="api")
    await fleet.add(agent, role="worker")
    task = await asyncio.wait_for(front.task("go", context=KNOWN), 20)
    task = await asyncio.wait_for(front.task("a", task_id=task.id, context=KNOWN), 20)
    task = await asyncio.wait_for(front.task("b", task_id=task.id, context=KNOWN), 20)
    assert task.state is TaskState.COMPLETED
    assert [(each.owner, each.claims) for each in seen] == [(BOB.owner, KEPT)] * 3


# -- records of earlier versions -----------------------------------------------------------------


async def begun_before(store: SqliteTaskStore, owner: str) -> str:
    """Write a task that waits as it was written when no caller was kept."""
    await store.open(lambda records: None)
    message = Message(
        message_id="m", role=Role.USER, parts=(Part(text="go"),), task_id="old", context_id="c"
    )
    status = TaskStatus(state=TaskState.SUBMITTED, timestamp=Timestamp.now())
    task = Task(id="old", context_id="c", status=status, history=(message,))
    append = Append(
        task_id="old",
        events=(task,),
        expected_seq=0,
        turn=1,
        scope=Scope("asking", "", owner),
        context_id="c",
        turn_open=True,
        release=True,
    )
    await store.append(append)
    await store.close()
    return "old"


@pytest.mark.parametrize("owner", ["", "bob"])
async def test_a_task_of_before_belongs_to_its_id(talk: Any, tmp_path: Path, owner: str) -> None:
    seen: list[Caller] = []
    path = tmp_path / "old.db"
    task_id = await begun_before(SqliteTaskStore(path), owner)
    mine = CallContext(caller=Caller(id=owner, authenticated=bool(owner)))
    async with talk(asking(seen), SqliteTaskStore(path)) as caller:
        caller.context = mine
        await until_state(caller, task_id, TaskState.INPUT_REQUIRED)
        others = [KNOWN, CallContext(caller=Caller(id="bob")), CallContext()]
        for stranger in others[:2] if not owner else others:
            with pytest.raises(TaskNotFoundError):
                await caller.service.get_task(GetTaskRequest(id=task_id), stranger)
        await caller.task("a", task_id=task_id)
    assert seen == [mine.caller] * 2


def test_records_of_before_are_read_as_they_were() -> None:
    received = logged(
        "t", 1, 1, 1, RecordKind("received"), 0,
        b'{"entry":"e","message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"a"}]}}',
    )  # fmt: skip
    assert isinstance(received.event, MessageReceived)
    assert received.event.caller is None
    turn = logged("t", 1, 1, 1, RecordKind("turn"), 0, b'{"turn":1,"skill":"ask"}')
    assert turn.event == TurnStarted(turn=1, skill="ask")
    assert logged("t", 1, 1, 1, RecordKind("cancel"), 0, b"{}").event == CancelRequested()


def test_whose_tasks_were_given_an_issuer_since_has_it() -> None:
    before = StoredCaller(id="bob", authenticated=True, claims={"email": "b"})
    owner = Caller(id="bob", issuer="a", authenticated=True)
    assert caller_in(before, owner.owner) == msgspec.structs.replace(owner, claims={"email": "b"})
    assert caller_in(None, owner.owner) == owner
    someone = StoredCaller(id="eve", authenticated=True)
    assert caller_in(someone, owner.owner) == Caller(id="eve", authenticated=True)


# -- claims --------------------------------------------------------------------------------------


def test_claims_that_cannot_be_kept_are_left_out_and_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    claims = {
        "big": "hunter2" * CLAIM_BYTES,
        "odd": object(),
        "half": "\ud800",
        "fits": "x" * (CLAIM_BYTES - 100),
        "too": "hunter3" * 100,
        "small": [1, 2.5, None, {"a": True}],
        "other": "not named",
    }
    caller = Caller(id="bob", claims=claims)
    with caplog.at_level(logging.WARNING, "parley.engine"):
        found = kept(caller, ["big", "odd", "half", "fits", "too", "small", "missing"])
    assert list(found.claims) == ["fits", "small"]
    assert found.claims["small"] == claims["small"]
    said = [record.getMessage() for record in caplog.records]
    assert [words.split("'")[1] for words in said] == ["big", "odd", "half", "too"]
    assert "hunter" not in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        *("access_token", "id_token", "refresh_token", "token", "authorization", "password"),
        *("secret", "client_secret", "Access-Token", "https://example.com/id_token", "cookie"),
        *("apiKey", "user_password", "jwt"),
    ],
)
def test_credentials_are_not_kept(name: str) -> None:
    with pytest.raises(ValueError, match=r"Retention\.claims names .* a credential"):
        Agent("Asking", retention=Retention(claims=["email", name]))


def test_claims_to_keep_are_a_list_of_names() -> None:
    with pytest.raises(TypeError, match=r"\['email'\]"):
        Agent("Asking", retention=Retention(claims="email"))
    for wrong in ("", 7, None):
        with pytest.raises(ValueError, match="names of claims"):
            Agent("Asking", retention=Retention(claims=[wrong]))  # type: ignore[list-item]
    names = ["email", "sub", "groups", "https://example.com/roles", "token_use", "secretary"]
    assert Retention(claims=names).claims == tuple(names)
