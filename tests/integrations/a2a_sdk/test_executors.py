"""Executors of the official SDK run unchanged, each version in its own environment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import RemoteAgent, Task, TaskArtifactUpdateEvent, TaskState
from parley import TaskStatusUpdateEvent as Status
from parley.model.errors import A2AError, UnauthenticatedError, UnsupportedOperationError
from tests.faults.conftest import Served
from tests.kit.waiting import until

from .conftest import VERSIONS, serving

pytestmark = pytest.mark.anyio


class House:
    """A process that serves the executors, and clients of its agents."""

    def __init__(self, served: Served, place: Path) -> None:
        self.served = served
        self.url = served.url
        self.place = place

    def agent(self, name: str, **options: Any) -> Any:
        return parley.connect(f"{self.url}/{name}", **options)


@pytest.fixture(scope="module", params=VERSIONS)
async def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[House]:
    place = tmp_path_factory.mktemp("sdk")
    async with serving(request.param, place / "tasks.db") as served:
        yield House(served, place)


def said(task: Task) -> str:
    return task.status.message.text if task.status.message is not None else ""


def addresses(card: parley.AgentCard) -> list[tuple[str, str, str]]:
    return [(i.url, i.protocol_binding, i.protocol_version[:3]) for i in card.supported_interfaces]


async def task_of(remote: RemoteAgent, text: str, **options: Any) -> Task:
    task = await remote.send(text, **options)
    assert task.id, task
    return task


async def test_a_message_is_answered_with_a_message(house: House) -> None:
    async with house.agent("hello") as hello:
        reply = await hello.send("Ada", context_id="c-1")
        assert reply.task is None
        assert (reply.text, reply.context_id) == ("Hello Ada", "c-1")
        async with aclosing(hello.stream("Ada")) as stream:
            assert [event.text async for event in stream] == ["Hello Ada"]


async def test_the_card_is_taken_over_but_for_its_addresses(house: House) -> None:
    async with house.agent("hello") as hello:
        card = hello.card
    assert (card.name, card.description, card.version) == ("Hello", "The agent Hello", "2.1")
    assert card.documentation_url == "https://example.com/docs"
    assert card.provider is not None
    assert card.provider.organization == "Example"
    assert all(house.url in each.url for each in card.supported_interfaces)
    assert (card.capabilities.streaming, card.capabilities.push_notifications) == (True, False)
    assert "https://example.com/ext/v1" in [each.uri for each in card.capabilities.extensions]
    assert card.default_input_modes == ("text", "application/json")
    first, second = card.skills
    assert (first.id, first.name, first.tags) == ("main", "Main", ("a", "b"))
    assert (first.examples, first.input_modes) == (("Do it",), ("text/plain",))
    assert (second.id, second.description) == ("other", "The rest")


async def test_details_take_precedence_over_the_card(house: House) -> None:
    async with house.agent("detailed") as detailed:
        card = detailed.card
        assert (await detailed.send("Ada")).text == "Hello Ada"
    assert (card.capabilities.streaming, card.capabilities.push_notifications) == (False, False)
    assert [each.uri for each in card.capabilities.extensions] == ["https://example.com/ext/v1"]
    assert (card.icon_url, card.documentation_url) == (
        "https://example.com/i",
        "https://example.com/docs",
    )


async def test_what_a_long_task_says_is_streamed_and_kept(house: House) -> None:
    async with house.agent("report") as report:
        async with aclosing(report.stream("go")) as stream:
            events = [event async for event in stream]
        task = await report.get(events[0].id)
    statuses = [event for event in events if isinstance(event, Status)]
    texts = [event.status.message.text for event in statuses if event.status.message is not None]
    assert texts == ["reading", "writing", "done"]
    assert [event.metadata for event in statuses if event.metadata] == [{"percent": 50}]
    chunks = [event for event in events if isinstance(event, TaskArtifactUpdateEvent)]
    grown = [c for c in chunks if c.artifact.artifact_id == "text"]
    assert [(c.append, c.last_chunk) for c in grown[:3]] == [
        (False, False), (True, False), (True, True),
    ]  # fmt: skip
    text, facts = task.artifacts
    assert (text.name, text.text) == ("report", "chunk 0. chunk 1. chunk 2. after the last.")
    assert (facts.name, facts.metadata, facts.parts[0].data) == (
        "facts", {"kind": "x"}, {"chunks": 3},
    )  # fmt: skip
    assert task.state is TaskState.COMPLETED
    # An executor may clean up after the end of its task.
    await until((house.place / "tidied").exists, 10)


async def test_a_question_is_answered_in_the_same_task(house: House) -> None:
    async with house.agent("currency") as currency:
        asked = await task_of(currency, "100 dollars")
        assert (asked.state, said(asked)) == (TaskState.INPUT_REQUIRED, "In which currency?")
        done = await task_of(currency, "yen", task=asked)
    assert (done.id, done.state) == (asked.id, TaskState.COMPLETED)
    # The executor saw the input-required state, and the history with the reply.
    assert done.artifacts[0].text == "100 dollars in yen, after 3 messages, at no bank"


async def test_a_running_executor_is_canceled_and_told(house: House) -> None:
    async with house.agent("endless") as endless:
        task = await task_of(endless, "go", return_immediately=True)

        async def works() -> bool:
            return (await endless.get(task.id)).state is TaskState.WORKING

        await until(works, 10)
        canceled = await endless.cancel(task.id)
        assert canceled.state is TaskState.CANCELED
        assert said(canceled).lower() in ("stopped in working", "stopped in task_state_working")


async def test_an_executor_is_told_when_a_waiting_task_is_canceled(house: House) -> None:
    async with house.agent("currency") as currency:
        asked = await task_of(currency, "5")
        canceled = await currency.cancel(asked.id)
    assert (canceled.state, said(canceled)) == (TaskState.CANCELED, "as you like")


async def test_errors_are_those_of_the_specification_and_tell_no_secrets(house: House) -> None:
    async with house.agent("failing") as failing:
        with pytest.raises(UnsupportedOperationError, match="not this one"):
            await failing.send("unsupported")
        with pytest.raises(A2AError, match="without an event"):
            await failing.send("silent")
        raised = await task_of(failing, "raise")
        assert raised.state is TaskState.FAILED
        assert "secret" not in said(raised)
        assert "Reference" in said(raised)
        foreign = await task_of(failing, "foreign")
        assert foreign.state is TaskState.FAILED
        failed = await task_of(failing, "fail")
        assert (failed.state, said(failed)) == (TaskState.FAILED, "it did not work")
        refused = await task_of(failing, "reject")
        assert (refused.state, said(refused)) == (TaskState.REJECTED, "it did not work")
        returned = await task_of(failing, "return")
        assert returned.state is TaskState.COMPLETED


async def test_a_login_happens_elsewhere_or_in_the_next_message(house: House) -> None:
    async with house.agent("auth") as auth:
        asked = await task_of(auth, "here")
        assert (asked.state, said(asked)) == (TaskState.AUTH_REQUIRED, "log in, please")
        done = await task_of(auth, "my password", task=asked)
        assert (done.state, said(done)) == (TaskState.COMPLETED, "logged in")
        waiting = await task_of(auth, "elsewhere")
        assert waiting.state is TaskState.AUTH_REQUIRED
        (house.place / "logged-in").touch()

        async def goes_on() -> bool:
            return (await auth.get(waiting.id)).state is TaskState.COMPLETED

        await until(goes_on, 10)


async def test_the_executor_gets_the_context_of_its_request(house: House) -> None:
    uri = "https://example.com/ext/v1"
    async with house.agent("context", extensions=[uri]) as context:
        told = await context.send(
            "tell",
            metadata={"a": 1},
            message_metadata={"b": "2"},
            accepted_output_modes=["text/plain", "application/json"],
        )
    assert told.task is None
    data = told.parts[0].data
    assert (data["user"], data["authenticated"]) == ("ada", True)
    assert uri in data["extensions"]
    assert (data["metadata"], data["message_metadata"]["b"]) == ({"a": 1}, "2")
    assert data["modes"] == ["text/plain", "application/json"]
    assert (data["current"], data["ids"]) == (False, [True, True])


async def test_a_whole_task_is_taken_over(house: House) -> None:
    async with house.agent("whole") as whole:
        task = await task_of(whole, "go")
        after = await task_of(whole, "go", references=[task])
    assert task.state is TaskState.COMPLETED
    assert [(a.name, a.text) for a in task.artifacts] == [("result", "all of it, after []")]
    assert [message.text for message in task.history] == ["go", "on the way"]
    assert after.artifacts[0].text == "all of it, after ['result']"


async def test_a_killed_executor_is_run_again_and_replaces_what_it_left(house: House) -> None:
    served = house.served
    async with house.agent("killed") as killed:
        task = await task_of(killed, "the question", return_immediately=True)

        async def is_half_done() -> bool:
            return len((await killed.get(task.id)).artifacts) == 2

        await until(is_half_done, 10)
    async with house.agent("currency") as currency:
        asked = await task_of(currency, "7")
        bank = {"metadata": {"bank": "Nordic"}}
        await task_of(currency, "slow", task=asked, return_immediately=True, **bank)
        await until((house.place / "slow").exists, 10)
    await served.end()
    await served.start()
    async with house.agent("killed") as killed:

        async def is_done() -> bool:
            return (await killed.get(task.id)).state.is_terminal

        await until(is_done, 20)
        done = await killed.get(task.id)
    assert done.state is TaskState.COMPLETED
    assert said(done).lower().removeprefix("task_state_") == (
        "working with 2 artifacts: the question"
    )
    assert [(a.name, a.text) for a in done.artifacts] == [("one", "first "), ("two", "half")]
    async with house.agent("currency") as currency:

        async def is_answered() -> bool:
            return (await currency.get(asked.id)).state.is_terminal

        await until(is_answered, 20)
        answered = await currency.get(asked.id)
    # After the crash, the run saw the input-required state, the reply once, and its metadata.
    [artifact] = answered.artifacts
    assert artifact.text == "7 in slow, after 3 messages, at Nordic"


async def test_a_task_can_be_durable_before_its_executor_runs(house: House) -> None:
    async with house.agent("durable") as durable:
        task = await task_of(durable, "Ada")
    assert (task.state, said(task)) == (TaskState.COMPLETED, "Hello Ada")


async def test_a_card_that_requires_credentials_needs_who_verifies_them(house: House) -> None:
    async with house.agent("secured", api_key="anything") as secured:
        assert list(secured.card.security_schemes) == ["key"]
        assert [list(each.schemes) for each in secured.card.security_requirements] == [["key"]]
        assert "security=" in secured.card.description
        assert (await secured.send("Ada")).text == "Hello Ada"


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_extended_card_is_of_this_server_and_for_those_who_have_credentials(
    house: House, version: str
) -> None:
    async with house.agent("extended", version=version) as stranger:
        public = stranger.card
        with pytest.raises((UnauthenticatedError, parley.ClientError)):
            await stranger.extended_card()
    async with house.agent("extended", version=version, api_key="anything") as friend:
        card = await friend.extended_card()
        assert (await friend.send("Ada", skill="cellar")).text == "Hello Ada"
    assert (card.name, card.description) == ("More for friends", "The agent More for friends")
    assert [skill.id for skill in card.skills] == ["main", "other", "cellar"]
    assert "cellar" not in [skill.id for skill in public.skills]
    # This server decides the agent's addresses, its capabilities and the required credentials.
    assert addresses(card) == [
        each for each in addresses(public) if version == "1.0" or each[2] == "0.3"
    ]
    assert all(house.url in url for url, _, _ in addresses(card))
    assert card.capabilities == public.capabilities
    assert card.security_schemes == public.security_schemes
    assert card.security_requirements == public.security_requirements
