"""Calls to agents from a registry, calls that another replica resumes, calls next to a sleep."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

import parley
from parley import Agent, CallContext, Execution, Task, TaskState, Turn, testing
from parley.client.errors import AddressNotAllowed
from parley.engine.turn.waits import SETTLE_ROUNDS
from parley.extensions import CallChain, Chain
from parley.model.extensions import CALL_CHAIN
from parley.model.struct import Timestamp
from parley.registry.catalog.reading import read_entry
from parley.registry.catalog.searching import SearchRequest, SearchResponse, SearchResult
from parley.registry.client.found import FoundAgent
from parley.server.run import serving
from tests.agent.remote.test_cancel import state_of
from tests.engine.fleet import Fleet, until_state, where
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


def entry(url: str) -> dict[str, Any]:
    return {
        "identifier": "urn:air:agent.localhost:agent:money",
        "displayName": "Money",
        "type": "application/a2a-agent-card+json",
        "url": f"{url}/.well-known/agent-card.json",
        "registry": {"marks": ["roles"]},
    }


class Directory:
    """A registry that records its queries."""

    def __init__(self, *urls: str) -> None:
        self.urls = list(urls)
        self.asked: list[str] = []

    async def search(self, request: SearchRequest) -> SearchResponse:
        self.asked.append(request.query.text)
        results = [SearchResult(entry=entry(url), score=9, source="test") for url in self.urls]
        self.urls.reverse()
        return SearchResponse(results=tuple(results))


async def test_a_search_as_a_step_is_made_once_and_its_agent_is_called(
    serve: Any, talk_to: Any
) -> None:
    money = Agent("Money", description="Changes money")

    @money.skill
    async def change(turn: Turn) -> str:
        """Changes money."""
        return f"changed {turn.text}"

    directory = Directory(await serve(money))
    planner = Agent("Planner", description="Plans")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Plans."""
        [found] = await turn.step("find", parley.find, "change money", registry=directory)
        amount = await turn.ask("How much?")
        answer = await turn.delegate(found, amount.text)
        assert isinstance(found, FoundAgent)
        return f"{found.name} {found.marks} {answer.text}"

    async with await talk_to(planner, allow_private_agents=True) as remote:
        asked = await remote.send("plan")
        answer = await remote.send("5 EUR", task_id=asked.id)
    assert answer.text == "Money ('roles',) changed 5 EUR"
    assert directory.asked == ["change money"]


async def test_an_address_that_a_registry_elsewhere_names_is_guarded(
    serve: Any, talk_to: Any
) -> None:
    money = Agent("Money", description="Changes money")

    @money.skill
    async def change(turn: Turn) -> str:
        """Changes money."""
        return "never"

    url = await serve(money)
    found = FoundAgent(entry=read_entry(entry(url)))  # ``is_near`` is not set
    errors: list[str] = []
    planner = Agent("Planner", description="Plans")

    @planner.skill
    async def plan(turn: Turn) -> str:
        """Plans."""
        for attempt in (
            turn.delegate(found, "x"),
            turn.connect(found),
            turn.connect(found, egress=None),
        ):
            try:
                await attempt
            except AddressNotAllowed as error:
                errors.append(str(error))
        return "done"

    async with await talk_to(planner, allow_private_agents=True) as remote:
        await remote.send("plan")
    assert len(errors) == 3


# -- calls whose task resumes at another replica ---------------------------------------------------


class Slow:
    """An agent that answers when it is let go, and counts its runs and the chains it got."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.chains: list[Any] = []
        self.go = asyncio.Event()
        self.agent = Agent("Slow", execution=Execution(cancel_grace=0.2))

        @self.agent.skill
        async def work(turn: Turn) -> str:
            """Waits."""
            self.runs.append(turn.text)
            self.chains.append(turn.metadata[CALL_CHAIN])
            await turn.working("at it")
            await self.go.wait()
            return f"did {turn.text}"


async def test_another_replica_asks_for_the_answers_of_a_dead_one(serve: Any, fleet: Fleet) -> None:
    slow = Slow()
    agent = planner(await serve(slow.agent))
    first = await fleet.add(agent)
    task = await first.send("go", return_immediately=True)
    assert task.id
    await until(lambda: len(slow.runs) == 2)
    await fleet.stop(first)
    second = await fleet.add(agent)
    slow.go.set()
    done = await until_state(second, task.id, TaskState.COMPLETED)
    assert done.text == "did one; did two"
    assert sorted(slow.runs) == ["one", "two"]


async def test_another_replica_cancels_what_a_dead_one_began(
    serve: Any, mortal_fleet: Fleet
) -> None:
    slow = Slow()
    url = await serve(slow.agent)
    agent = planner(url)
    first = await mortal_fleet.add(agent)
    task = await first.send("go", return_immediately=True)
    assert task.id
    await until(lambda: len(slow.runs) == 2)
    await mortal_fleet.kill(first)
    mortal_fleet.replicas.remove(first)
    second = await mortal_fleet.add(agent, role="both")
    await second.executor.cancel(task.id)
    await until_state(second, task.id, TaskState.CANCELED)
    assert [await state_of(url, text) for text in ("one", "two")] == [TaskState.CANCELED] * 2
    assert sorted(slow.runs) == ["one", "two"]
    await first.host._disconnect()  # a process that is killed leaves that to the system


async def test_all_replicas_have_one_id_in_chains(serve: Any, fleet: Fleet) -> None:
    slow = Slow()
    slow.go.set()
    agent = planner(await serve(slow.agent))
    for replica in (await fleet.add(agent), await fleet.add(agent)):
        assert isinstance(await replica.send("go"), Task)
    assert len({tuple(chain["path"]) for chain in slow.chains}) == 1


async def test_the_deadline_of_a_caller_holds_at_another_replica_too(fleet: Fleet) -> None:
    agent = Agent("Waits", execution=Execution(cancel_grace=0.1))
    began: list[str] = []

    @agent.skill(replies="task")
    async def work(turn: Turn) -> str:
        """Waits for ever."""
        began.append(where(turn))
        await asyncio.Event().wait()
        return "never"

    first = await fleet.add(agent)
    deadline = Timestamp.from_milliseconds(first.store.now() + 1500)
    task = await first.send(
        "go",
        return_immediately=True,
        request_metadata=CallChain.says(Chain(deadline=deadline)),
        context=CallContext(extensions=frozenset({CALL_CHAIN})),
    )
    assert task.id
    await until(lambda: began)
    await fleet.stop(first)
    second = await fleet.add(agent)
    failed = await until_state(second, task.id, TaskState.FAILED)
    assert "deadline of its caller" in failed.text


def planner(url: str) -> Agent:
    agent = Agent("Planner", execution=Execution(cancel_grace=0.2))

    @agent.skill(replies="task")
    async def plan(turn: Turn) -> str:
        """Calls two at once."""
        await turn.working(where(turn))
        answers = await asyncio.gather(turn.delegate(url, "one"), turn.delegate(url, "two"))
        return "; ".join(answer.text for answer in answers)

    return agent


# -- a turn that sleeps in one branch and calls another agent in the other -------------------------


PEER = "https://peer.example"


async def test_what_the_agent_asks_does_not_wait_until_the_sleep_is_over() -> None:
    peer, planner = Agent("Peer"), Agent("Planner")

    @peer.skill(replies="task")
    async def work(turn: Turn) -> str:
        await asyncio.sleep(60)
        return (await turn.ask("Which day?")).text

    @planner.skill(replies="task")
    async def plan(turn: Turn) -> str:
        _, answer = await asyncio.gather(turn.sleep(timedelta(hours=1)), turn.delegate(PEER, "go"))
        return answer.text

    async with testing.client(planner, remotes={PEER: peer}) as remote:
        task = await remote.send("go", return_immediately=True)
        await remote.advance(60)
        assert await remote.get(task.id) == testing.input_required("Which day?")
        assert (await remote.cancel(task.id)).state is TaskState.CANCELED


def slowly(agent: Agent) -> ASGIApp:
    """An app that lets many rounds of the event loop pass before each request."""
    app = parley.asgi(agent)

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for _ in range(10 * SETTLE_ROUNDS):
                await asyncio.sleep(0)
        await app(scope, receive, send)

    return slow


async def test_a_sleep_holds_up_neither_the_message_nor_the_answer_to_a_question() -> None:
    """Not even while they connect, or ask whether the caller has authorised it out of band."""
    peer, planner = Agent("Peer"), Agent("Planner")
    answers: list[str] = []

    @peer.skill(replies="task")
    async def work(turn: Turn) -> str:
        answers.append((await turn.require_auth("Sign in.")).text)
        return "done"

    async with serving(slowly(peer)) as url:

        @planner.skill(replies="task")
        async def plan(turn: Turn) -> str:
            sleep = turn.sleep(timedelta(hours=1))
            _, answer = await asyncio.gather(sleep, turn.delegate(url, "go"))
            return answer.text

        async with parley.connect(planner) as remote:
            task = await remote.send("go", timeout=10)
            assert task == testing.auth_required("Sign in.")
            await remote.send("code 1234", task=task, return_immediately=True)
            await until(lambda: answers == ["code 1234"])


async def test_a_stream_begins_before_the_turn_falls_asleep() -> None:
    """Else the message would be sent again by the run after the sleep."""
    peer, planner = Agent("Peer"), Agent("Planner")
    seen: list[object] = []

    @peer.skill(replies="task")
    async def work(turn: Turn) -> str:
        return (await turn.ask("Which day?")).text

    async with serving(slowly(peer)) as url:

        @planner.skill(replies="task")
        async def plan(turn: Turn) -> str:
            async def follow() -> None:
                async with turn.connect(url) as remote:
                    seen.append(await anext(aiter(remote.stream("go"))))

            await asyncio.gather(turn.sleep(timedelta(hours=1)), follow())
            return "done"

        async with parley.connect(planner) as remote:
            await remote.send("go", return_immediately=True)
            await until(lambda: bool(seen), 10)
