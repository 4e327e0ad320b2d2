"""``turn.authorize``: the policy decides an author's own permissions; the log stores decisions."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from msgspec.structs import replace

from parley import Agent, CallContext, Caller, NotAuthorized, Rights, RoutedMessage, TaskState, Turn
from parley.engine.turn.attempt import DECISIONS, MOST_DECISIONS, Decision
from parley.model.errors import PermissionDeniedError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import GetTaskRequest
from parley.model.struct import decode
from parley.security import Access, Bearer, anonymous
from parley.store.events import RecordKind, StepResult

pytestmark = pytest.mark.anyio

ADA = Caller(id="ada", authenticated=True, scopes=frozenset({"read"}), claims={"org": "acme"})
BOB = Caller(id="bob", authenticated=True, scopes=frozenset({"write"}), claims={"org": "acme"})


class Rules:
    """A policy that records its requests, and allows writing to callers with the scope."""

    def __init__(self) -> None:
        self.asked: list[Access] = []
        self.threads: set[int] = set()

    def __call__(self, access: Access) -> Any:
        if not access.action:
            return True
        self.asked.append(access)
        self.threads.add(threading.get_ident())
        return access.action in access.caller.scopes


def context(caller: Caller) -> CallContext:
    return CallContext(caller=caller)


async def decisions(caller: Any, task_id: str) -> list[Decision]:
    records = await caller.store.private_records(task_id, [RecordKind.REMEMBERED])
    events = [record.event for record in records]
    return [
        decode(event.value, Decision)
        for event in events
        if isinstance(event, StepResult) and event.key.startswith(DECISIONS)
    ]


async def test_the_policy_decides_with_the_callers_scopes(talk: Any) -> None:
    rules = Rules()
    agent = Agent("Files", rights=Rights(policy=rules))

    @agent.skill
    async def read(turn: Turn) -> str:
        await turn.authorize("read", "a.txt")
        return "the text"

    async with talk(agent) as caller:
        done = await caller.task("go", context=context(ADA))
        assert (done.state, done.text) == (TaskState.COMPLETED, "the text")
        assert rules.asked == [
            Access(
                caller=replace(ADA, claims={}),
                agent="files",
                skill="read",
                task_id=done.id,
                context_id=done.context_id,
                action="read",
                resource="a.txt",
            )
        ]
        [decision] = await decisions(caller, done.id)
        assert (decision.action, decision.resource, decision.allowed) == ("read", "a.txt", True)
        assert decision.caller is not None
        assert decision.caller.id == "ada"
        shown = await caller.service.get_task(GetTaskRequest(id=done.id), context(ADA))
        assert b"authorize" not in repr(shown).encode()
    assert threading.get_ident() not in rules.threads


async def test_a_refusal_can_be_caught(talk: Any) -> None:
    agent = Agent("Files", rights=Rights(policy=Rules()))

    @agent.skill
    async def write(turn: Turn) -> str:
        try:
            await turn.authorize("write", "a.txt")
        except NotAuthorized as refused:
            return f"no {refused.action} of {refused.resource}"
        return "written"

    async with talk(agent) as caller:
        assert (await caller.task("go", context=context(ADA))).text == "no write of a.txt"
        assert (await caller.task("go", context=context(BOB))).text == "written"


async def test_branches_that_ask_at_once_get_one_decision(talk: Any) -> None:
    """The first decision is logged, and applies to all branches."""
    answers = [True, False, False]
    all_asked = asyncio.Barrier(3)

    async def policy(access: Access) -> bool:
        if not access.action:
            return True
        await all_asked.wait()
        return answers.pop(0)

    agent = Agent("Files", rights=Rights(policy=policy))

    @agent.skill
    async def write(turn: Turn) -> str:
        await asyncio.gather(*(turn.authorize("write", "a.txt") for _ in range(3)))
        return "written"

    async with talk(agent) as caller:
        task = await caller.task("go", context=context(BOB))
        assert task.text == "written"
        assert len(await decisions(caller, task.id)) == 1


async def test_a_skill_that_replies_directly_asks_without_a_log(talk: Any) -> None:
    agent = Agent("Files", rights=Rights(policy=Rules()))

    @agent.skill(replies="message")
    async def write(turn: Turn) -> str:
        await turn.authorize("write", "a.txt")
        return "written"

    async with talk(agent) as caller:
        assert (await caller.send("go", context=context(BOB))).text == "written"
        with pytest.raises(PermissionDeniedError, match="policy does not allow"):
            await caller.send("go", context=context(ADA))


@pytest.mark.slow
async def test_the_records_of_a_turn_are_bounded(talk: Any, caplog: Any) -> None:
    rules = Rules()
    agent = Agent("Files", rights=Rights(policy=rules))

    @agent.skill
    async def write(turn: Turn) -> str:
        for _ in range(MOST_DECISIONS * 3):
            await turn.authorize("write", "the same")
        assert len(rules.asked) == 1
        for n in range(MOST_DECISIONS):
            await turn.authorize("write", f"{n}")
        return "written"

    async with talk(agent) as caller:
        task = await caller.task("go", context=context(BOB))
        assert task.state is TaskState.FAILED
        assert len(await decisions(caller, task.id)) == MOST_DECISIONS
    assert "authorise a common action" in caplog.text


@pytest.mark.parametrize(
    ("action", "resource", "words"),
    [
        ("", "", "empty"),
        (None, "", "is text"),
        ("read", 7, "is text"),
        ("read", "x" * 3000, "3000 characters"),
        ("read", "\ud800", "surrogate"),
    ],
)
async def test_what_cannot_be_logged_is_refused(
    talk: Any, action: Any, resource: Any, words: str
) -> None:
    agent = Agent("Files", rights=Rights(policy=Rules()))
    raised: list[Exception] = []

    @agent.skill
    async def write(turn: Turn) -> None:
        try:
            await turn.authorize(action, resource)
        except (TypeError, ValueError) as error:
            raised.append(error)

    async with talk(agent) as caller:
        await caller.send("go", context=context(BOB))
    assert words in str(raised[0])


# -- the policy itself -----------------------------------------------------------------------------


async def test_a_policy_that_blocks_holds_up_nobody_else(talk: Any) -> None:
    free = threading.Event()

    def policy(access: Access) -> bool:
        return free.wait(20) if access.caller.id == "bob" else True

    agent = Agent("Files", rights=Rights(policy=policy))

    @agent.skill
    async def write(turn: Turn) -> str:
        return "written"

    async with talk(agent) as caller:
        slow = asyncio.create_task(caller.send("go", context=context(BOB)))
        assert (await caller.send("go", context=context(ADA))).text == "written"
        assert not slow.done()
        free.set()
        assert (await slow).text == "written"


@pytest.mark.parametrize("replies", ["message", "task"])
@pytest.mark.parametrize("is_routed", [False, True])
async def test_a_repeated_message_is_asked_about_with_its_skill(
    talk: Any, replies: Any, is_routed: bool
) -> None:
    """A direct reply does not record its skill, so the message is routed again."""
    asked: list[str] = []
    routed: list[str] = []
    allowed = [True, True, False]

    async def policy(access: Access) -> bool:
        asked.append(access.skill)
        return allowed.pop(0)

    agent = Agent("Files", rights=Rights(policy=policy))

    @agent.skill(replies=replies)
    async def write(turn: Turn) -> str:
        return "written"

    @agent.skill
    async def read(turn: Turn) -> str:
        return "the text"

    if is_routed:

        @agent.router
        async def router(routing: RoutedMessage) -> str:
            routed.append(routing.text)
            return "write"

    metadata = None if is_routed else {"skill": "write"}
    sent = {"message_id": "m", "metadata": metadata}
    known = CallContext(caller=BOB, extensions=frozenset({IDEMPOTENT_SEND}))
    async with talk(agent) as caller:
        for _ in range(2):
            assert (await caller.send("go", context=known, **sent)).text == "written"
        with pytest.raises(PermissionDeniedError):
            await caller.send("go", context=known, **sent)
    assert asked == ["write"] * 3
    times = 0 if not is_routed else 3 if replies == "message" else 1
    assert routed == ["go"] * times


def test_what_sending_needs_streaming_needs_too() -> None:
    token = Bearer(lambda text: None)
    agent = Agent("Files", rights=Rights(operations={"SendMessage": token}))
    assert agent.operation_security["SendStreamingMessage"].schemes == (token,)
    operations = {"SendMessage": token, "SendStreamingMessage": anonymous}
    agent = Agent("Files", rights=Rights(operations=operations))
    assert agent.operation_security["SendStreamingMessage"].is_open
