"""E6: no agent blocks the event loop unnoticed; plain functions run in threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

import parley
from parley import Agent, CallContext, Caller, Message, Turn
from parley.engine.routing import RoutedMessage
from parley.extensions import Extension
from parley.model.extensions import method
from parley.model.operations import GetExtendedAgentCardRequest, GetTaskRequest, SendMessageRequest
from parley.model.tasks import Task, TaskState
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.engine.talk import Talk
from tests.kit.waiting import until, wait_until

pytestmark = [pytest.mark.anyio, pytest.mark.E6]

URI = "https://example.com/ext/slow/v1"
WHO: ContextVar[str] = ContextVar("WHO", default="nobody")


class Blocking:
    """A call that blocks until the event loop releases it. A call on the loop itself would never
    return."""

    def __init__(self) -> None:
        self.loop = threading.get_ident()
        self.began = threading.Event()
        self.gate = threading.Event()
        self.seen: list[str] = []

    def __call__(self, *arguments: Any) -> None:
        assert threading.get_ident() != self.loop, "the call runs on the event loop"
        self.seen.append(WHO.get())
        self.began.set()
        assert self.gate.wait(20), "the event loop was blocked"

    async def released(self) -> None:
        """Release the call after it begins."""
        async with asyncio.timeout(20):
            await until(lambda: self.began.is_set())
        self.gate.set()

    async def during(self, work: Any) -> Any:
        """Return the result of ``work``, which makes the call."""
        asked = asyncio.ensure_future(work)
        await self.released()
        return await asyncio.wait_for(asked, 20)


@pytest.fixture
def blocking(anyio_backend: Any) -> Iterator[Blocking]:
    blocks = Blocking()
    yield blocks
    blocks.gate.set()


def echo(**options: Any) -> Agent:
    agent = Agent("Echo", **options)

    @agent.skill(replies="task")
    async def say(turn: Turn) -> str:
        return turn.text

    return agent


async def test_e6_a_plain_skill_runs_in_a_thread(talk: Callable[..., Any], blocking: Any) -> None:
    agent = Agent("Plain")

    @agent.skill(replies="task")
    def plain(text: str) -> str:
        blocking()
        return text

    async with talk(agent) as caller:
        assert (await blocking.during(caller.task("hi"))).state is TaskState.COMPLETED


async def test_e6_a_plain_generator_runs_in_a_thread(
    talk: Callable[..., Any], blocking: Any
) -> None:
    agent = Agent("Plain")

    @agent.skill
    def plain(text: str) -> Iterator[str]:
        yield "first"
        blocking()
        yield "last"

    async with talk(agent) as caller:
        task = await blocking.during(caller.task("hi"))
    assert "".join(part.text for part in task.artifacts[0].parts) == "firstlast"


async def test_e6_a_plain_step_runs_in_a_thread(talk: Callable[..., Any], blocking: Any) -> None:
    agent = Agent("Stepping")

    @agent.skill(replies="task")
    async def steps(turn: Turn) -> str:
        await turn.step("slow", blocking)
        return "done"

    async with talk(agent) as caller:
        assert (await blocking.during(caller.task("hi"))).state is TaskState.COMPLETED


async def test_e6_a_plain_router_runs_in_a_thread(talk: Callable[..., Any], blocking: Any) -> None:
    agent = echo()

    @agent.skill(replies="task")
    async def other(turn: Turn) -> str:
        return "the other"

    @agent.router
    def choose(message: RoutedMessage) -> str:
        blocking()
        return "other"

    async with talk(agent) as caller:
        task = await blocking.during(caller.task("hi"))
    assert task.artifacts[0].parts[0].text == "the other"


async def test_e6_a_plain_extended_card_runs_in_a_thread(
    talk: Callable[..., Any], blocking: Any
) -> None:
    agent = echo()

    @agent.extended_card
    def more(caller: Caller) -> dict[str, Any]:
        blocking()
        return {"description": "for you"}

    async with talk(agent) as caller:
        asked = caller.service.get_extended_agent_card(
            GetExtendedAgentCardRequest(), CallContext(caller=Caller(id="a", authenticated=True))
        )
        assert (await blocking.during(asked)).description == "for you"


async def test_e6_a_plain_receive_of_an_extension_runs_in_a_thread(
    talk: Callable[..., Any], blocking: Any
) -> None:
    class Slow(Extension):
        uri = URI

        def receive(self, request: SendMessageRequest, context: CallContext) -> SendMessageRequest:
            blocking()
            return request

    async with talk(echo(extensions=[Slow()])) as caller:
        context = CallContext(extensions=frozenset([URI]))
        task = await blocking.during(caller.task("hi", context=context))
        assert task.state is TaskState.COMPLETED


async def test_e6_plain_functions_that_choose_a_task_run_in_threads(
    talk: Callable[..., Any],
) -> None:
    agent, where, describe = Agent("Choosing"), Blocking(), Blocking()

    def is_meant(task: Task) -> bool:
        where()
        return True

    def named(task: Task) -> str:
        describe()
        return task.id

    @agent.skill(replies="task")
    async def choose(turn: Turn) -> str:
        if turn.text == "which?":
            await turn.reference(where=is_meant, describe=named)
        return "done"

    async with talk(agent) as caller:
        first = await caller.task("one")
        await caller.task("two", context_id=first.context_id)
        asked = asyncio.ensure_future(caller.task("which?", context_id=first.context_id))
        await where.released()
        await describe.released()
        assert (await asked).state is TaskState.INPUT_REQUIRED


@pytest.mark.parametrize("binding", ["JSONRPC", "GRPC"])
async def test_e6_a_plain_caller_hook_runs_in_a_thread(binding: str, blocking: Any) -> None:
    def who(scope: Any) -> Caller:
        blocking()
        return Caller(id="ada", authenticated=True)

    agent = Agent("Who")

    @agent.skill
    async def say(turn: Turn) -> str:
        return turn.caller.id

    async with (
        serving(parley.asgi(agent, caller=who), grpc=GrpcOptions(port=0)) as url,
        parley.connect(url, binding=binding) as remote,
    ):
        assert str(await blocking.during(remote.send("hi"))) == "ada"


async def test_e6_threads_see_the_context_variables_of_those_who_ask(
    talk: Callable[..., Any], blocking: Any
) -> None:
    agent = echo()

    @agent.router
    def choose(message: RoutedMessage) -> str:
        blocking()
        return "say"

    async with talk(agent) as caller:
        WHO.set("ada")
        await blocking.during(caller.task("hi"))
    assert blocking.seen == ["ada"]


@pytest.mark.slow
async def test_e6_a_hook_that_blocks_the_loop_is_named_in_the_log(
    talk: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    class Sluggish(Extension):
        uri = URI

        def send(self, event: Any) -> Any:
            wait_until(lambda: "blocked" in caplog.text, 20)
            return event

    agent = Agent("Hooked", extensions=[Sluggish()])

    @agent.skill
    async def say(text: str) -> str:
        return text

    async with talk(agent) as caller:
        reply = await caller.send("hi", context=CallContext(extensions=frozenset([URI])))
        assert isinstance(reply, Message)
    assert "the event loop has been blocked" in caplog.text
    assert "`send` and `ask` of an extension must return at once" in caplog.text
    assert "in send\n" in caplog.text


@pytest.mark.parametrize("hook", ["send", "ask"])
def test_e6_a_hook_that_nobody_can_await_is_refused_when_it_is_registered(hook: str) -> None:
    async def later(self: Any, said: Any) -> Any:
        return said

    slow = type("Slow", (Extension,), {"uri": URI, hook: later})()
    with pytest.raises(TypeError, match=f"{hook} of Slow.* must be a plain def"):
        Agent("Slow", extensions=[slow])
    with pytest.raises(TypeError, match=f"{hook} of Slow.* must be a plain def"):
        parley.connect("http://localhost:1", extensions=[slow])


def test_e6_a_plain_method_of_an_extension_is_refused_when_it_is_registered() -> None:
    def handle(service: Any, request: Any, context: Any) -> Any:
        return None

    with pytest.raises(TypeError, match="things/get needs an async def"):
        method(URI, "things/get", GetTaskRequest, Task, handle, path="/things")


def test_e6_a_router_that_yields_is_refused_when_it_is_registered() -> None:
    def choose(message: RoutedMessage) -> Iterator[str]:
        yield "say"

    with pytest.raises(TypeError, match="a function that returns a skill's id"):
        echo().router(choose)


async def test_e6_a_choice_that_nobody_can_await_is_refused(talk: Callable[..., Any]) -> None:
    agent = Agent("Choosing")

    async def later(task: Task) -> bool:
        return True

    @agent.skill(replies="task")
    async def choose(turn: Turn) -> str:
        with pytest.raises(TypeError, match="plain functions of a task"):
            await turn.reference(where=later)  # type: ignore[arg-type]
        return "refused"

    async with talk(agent) as caller:
        assert isinstance(caller, Talk)
        task = await caller.task("hi")
    assert task.artifacts[0].parts[0].text == "refused"
