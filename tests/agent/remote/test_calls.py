"""Calls to other agents: each is made once per task; questions, progress and errors pass back."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

import parley
from parley import (
    Agent,
    BlockingTurn,
    CardDetails,
    Message,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
    Turn,
)
from parley.client.errors import Timeout
from parley.server.run import serving
from parley.testing import completed, input_required
from tests.kit.waiting import let_time_pass, until

pytestmark = pytest.mark.anyio


class Counted:
    """An agent that counts its runs; it asks if the message says so, and quotes the answer."""

    def __init__(self, name: str, *, streaming: bool = True) -> None:
        self.runs: list[str] = []
        self.contexts: list[str] = []
        self.turns: list[str] = []
        self.agent = Agent(name, card=CardDetails(streaming=streaming))

        @self.agent.skill
        async def work(turn: Turn) -> str:
            """Does what its text says."""
            self.turns.append(turn.text)
            if turn.number == 1:
                self.runs.append(turn.text)
                self.contexts.append(turn.context_id)
            match turn.text.split():
                case ["ask", question]:
                    return f"{name} was told {(await turn.ask(question)).text}"
                case ["authorise", what]:
                    return f"{name} got {(await turn.require_auth(what)).text}"
                case ["fail", why]:
                    turn.fail(why)
                case ["wait"]:
                    await turn.working("waiting")
                    await asyncio.Event().wait()
            return f"{name} did {turn.text}"


async def test_authorisation_is_passed_up_and_a_message_goes_down(serve: Any, talk_to: Any) -> None:
    bank = Counted("Bank")
    url = await serve(bank.agent)
    planner = Agent("Planner")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Pays."""
        return (await turn.delegate(url, "authorise payment")).text

    remote = await talk_to(planner)
    task = await remote.send("go")
    assert task.state is TaskState.AUTH_REQUIRED
    assert task.status.message.text == "payment"
    task = await remote.send("code 1234", task=task)
    assert task.text == "Bank got code 1234"


async def test_authorisation_out_of_band_needs_no_message_to_the_remote_agent(
    serve: Any, talk_to: Any
) -> None:
    allowed = asyncio.Event()
    bank, planner = Agent("Bank"), Agent("Planner")

    @bank.skill
    async def pay(turn: Turn) -> str:
        """Waits for authorisation."""
        await turn.require_auth("Open https://bank.example", until=allowed.wait())
        return "paid"

    url = await serve(bank)

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Pays."""
        return (await turn.delegate(url, "pay")).text

    remote = await talk_to(planner)
    task = await remote.send("go")
    assert task.state is TaskState.AUTH_REQUIRED
    allowed.set()
    task = await remote.send("done", task=task)
    assert (task.state, task.text) == (TaskState.COMPLETED, "paid")


async def test_a_question_waits_until_the_task_of_a_message_that_is_being_sent_is_known(
    talk_to: Any,
) -> None:
    """The other agent does not detect repeated messages, so the next run has to find its task."""
    runs: list[str] = []
    calls: list[asyncio.Future[Any]] = []
    other, planner = Agent("Other", card=CardDetails(default_extensions=False)), Agent("Planner")

    @other.skill(replies="task")
    async def work(turn: Turn) -> str:
        """Counts."""
        runs.append(turn.text)
        return "done"

    app = parley.asgi(other)
    posted = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "POST":
            posted.set()
            await let_time_pass(0.05)
        await app(scope, receive, send)

    async with serving(slow) as url:

        @planner.skill(replies="task")
        async def plan(turn: Turn) -> str:
            """Asks while a message is on its way."""
            call = asyncio.ensure_future(turn.delegate(url, "pay"))
            calls.append(call)
            await posted.wait()
            answer = await turn.ask("Sure?")
            return f"{answer.text} {(await call).text}"

        remote = await talk_to(planner)
        task = await remote.send("go")
        assert task == input_required("Sure?")
        assert await remote.send("yes", task=task) == completed("yes done")
        assert runs == ["pay"]
        # The first run's call ends with its turn: its future is canceled, or ends without an error.
        assert calls[0].cancelled() or calls[0].exception() is None


async def test_progress_and_artifacts_are_passed_on_as_they_come(serve: Any, talk_to: Any) -> None:
    writer, planner = Agent("Writer"), Agent("Planner")

    @writer.skill
    async def write(turn: Turn) -> AsyncIterator[str]:
        """Streams."""
        await turn.working("thinking")
        yield "once "
        await let_time_pass(0.01)
        yield "upon"

    url = await serve(writer)

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Passes all on."""
        await turn.delegate(url, "write", progress=True, artifacts=True)
        return "done"

    remote = await talk_to(planner)
    events = [event async for event in remote.stream("go")]
    said = [e.status.message for e in events if isinstance(e, TaskStatusUpdateEvent)]
    assert [message.text for message in said if message] == ["thinking"]
    chunks = [e for e in events if isinstance(e, TaskArtifactUpdateEvent)]
    assert "".join(chunk.artifact.text for chunk in chunks) == "once upondone"
    assert len({chunk.artifact.artifact_id for chunk in chunks}) == 2
    task = await remote.get(events[0].id)
    assert task.artifacts[0].text == "once upon"


@pytest.mark.slow
async def test_a_call_that_is_not_answered_in_time_says_so(serve: Any, talk_to: Any) -> None:
    other = Counted("Other")
    url = await serve(other.agent)
    planner = Agent("Planner")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Waits a little."""
        try:
            await turn.delegate(url, "wait", timeout=0.2)
        except Timeout as error:
            return "late" if error.task_id else "lost"
        return "early"

    remote = await talk_to(planner)
    assert (await remote.send("go")).text == "late"


async def test_the_time_limit_of_a_call_includes_the_connection(talk_to: Any) -> None:
    """The address accepts a connection and never answers."""
    planner = Agent("Planner")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Waits a little."""
        with pytest.raises(Timeout, match=r"within 0.2 s"):
            await turn.delegate(turn.text, "go", timeout=0.2)
        return "late"

    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        remote = await talk_to(planner)
        answer = await remote.send(f"http://{host}:{port}", timeout=5)
    assert answer.text == "late"


async def test_a_connection_that_was_given_back_is_not_kept_until_the_turn_ends(
    serve: Any, talk_to: Any
) -> None:
    url = await serve(Counted("Other").agent)
    planner = Agent("Planner")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Connects, and looks for what is left of the connection."""
        async with turn.connect(url) as remote:
            await turn.delegate(remote, "go")
            given_back = weakref.ref(remote)
        del remote
        gc.collect()
        return str(given_back())

    assert (await (await talk_to(planner)).send("go")).text == "None"


async def test_return_immediately_gives_the_task_that_goes_on(serve: Any, talk_to: Any) -> None:
    other = Counted("Other")
    url = await serve(other.agent)
    planner = Agent("Planner")
    seen: list[Any] = []

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Begins something, and waits for it later."""
        async with turn.connect(url) as remote:
            begun = await remote.send("ask What?", return_immediately=True)
            assert begun.id
            seen.append(begun.id)
            await turn.ask("And?")
            return str((await remote.wait(begun.id)).state)

    remote = await talk_to(planner)
    task = await remote.send("go")
    task = await remote.send("done", task=task)
    assert task.text == str(TaskState.INPUT_REQUIRED)
    assert seen[0] == seen[1]
    assert len(other.runs) == 1


async def test_wrong_uses_are_refused_with_what_would_be_right(serve: Any, talk_to: Any) -> None:
    other = Counted("Other")
    url = await serve(other.agent)
    planner = Agent("Planner")
    errors: list[str] = []

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Makes mistakes."""
        async with turn.connect(url) as remote:
            await remote.send("one", key="k")
            for wrong in (
                {"key": "k"},
                {"key": ""},
                {"pass_questions": True, "return_immediately": True},
            ):
                with pytest.raises(ValueError) as caught:
                    await remote.send("two", **wrong)  # type: ignore[arg-type]
                errors.append(str(caught.value))
        return "done"

    remote = await talk_to(planner)
    assert (await remote.send("go")).text == "done"
    assert "used twice" in errors[0]
    assert "leave it out" in errors[1]
    assert "give either" in errors[2]
    assert other.runs == ["one"]


async def test_a_skill_without_a_task_is_told_that_calls_need_one(serve: Any, talk_to: Any) -> None:
    url = await serve(Counted("Other").agent)
    planner = Agent("Planner")
    seen: list[str] = []

    @planner.skill(replies="message")
    async def plan(turn: Turn) -> str:
        """Has no log."""
        try:
            await turn.delegate(url, "go")
        except RuntimeError as error:
            seen.append(str(error))
        return "done"

    assert (await (await talk_to(planner)).send("go")).task is None
    assert "replies='task'" in seen[0]


async def test_a_plain_function_calls_in_its_thread(serve: Any, talk_to: Any) -> None:
    other = Counted("Other")
    url = await serve(other.agent)
    planner = Agent("Planner")

    @planner.skill
    def plan(turn: BlockingTurn) -> str:
        """Calls in each of its ways."""
        with turn.connect(url) as remote:
            answers = [remote.send("one").text, turn.delegate(remote, "two").text]
            with remote.stream("three") as events:
                answers += [event.text for event in events if isinstance(event, Message)]
        return "; ".join([*answers, turn.delegate(url, "ask Four?").text])

    remote = await talk_to(planner)
    task = await remote.send("go")
    assert task.status.message.text == "Four?"
    task = await remote.send("4", task=task)
    assert task.text == "Other did one; Other did two; Other did three; Other was told 4"
    assert other.runs == ["one", "two", "three", "ask Four?"]


async def test_turns_share_one_connection_and_the_card_is_fetched_once(
    serve: Any, talk_to: Any
) -> None:
    fetched: list[str] = []

    def count(scope: Any) -> parley.Caller:
        fetched.append(scope["path"])
        return parley.Caller()

    other = Counted("Other")
    url = await serve(other.agent, caller=count)
    planner = Agent("Planner")
    opened: list[Any] = []

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Calls, and leaves the connection open."""
        remote = await turn.connect(url)
        opened.append(remote)
        return (await remote.send("one")).text

    remote = await talk_to(planner)
    for _ in range(3):
        assert (await remote.send("go")).text == "Other did one"
    assert len({id(each._interfaces) for each in opened}) == 1
    await until(lambda: all(each._shared is None for each in opened))
    with pytest.raises(parley.ClientError, match=r"call turn.connect again"):
        await opened[0].send("late", key="late")
    assert len(other.runs) == 3
