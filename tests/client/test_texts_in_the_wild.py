"""Answers as textbooks and older documents print them, and agents that were written after those.

Each case says where such a text is found. An answer is never lost for its form, after the agent
has run. The words are ours.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from parley import Agent, Retention, asgi
from parley.client import RemoteAgent, connect
from parley.client.errors import AuthenticationRequired, CardInvalid, CardNotFound
from parley.model.parts import Message
from parley.model.tasks import Task, TaskState, TaskStatusUpdateEvent
from parley.server.run import serving
from tests.kit.scripted_server import Exchange, card, scripted

pytestmark = pytest.mark.anyio

OLD, NEW = "0.3", "1.0"
DONE = {"0.3": "completed", "1.0": "TASK_STATE_COMPLETED"}
AT_WORK = {"0.3": "working", "1.0": "TASK_STATE_WORKING"}
AGENT = {"0.3": "agent", "1.0": "ROLE_AGENT"}
WAYS = [(version, binding) for version in (OLD, NEW) for binding in ("JSONRPC", "HTTP+JSON")]
TEXT = {"text": "Hello"}
TYPED = {"type": "text", "text": "Hello"}


class Answering:
    """An agent that answers every call with what it was told to, in its binding's envelope."""

    def __init__(self, version: str, binding: str) -> None:
        self.version, self.binding = version, binding
        self.answer: Any = None
        self.events: list[Any] = []

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path.endswith(".json"):
            interface = {"protocolBinding": self.binding, "protocolVersion": self.version}
            url = f"http://{exchange.headers['host']}/agent"
            await exchange.json(card(url, supportedInterfaces=[{"url": url, **interface}]))
        elif not self.events:
            await exchange.json(self._enveloped(exchange, self.answer))
        else:
            frames = [json.dumps(self._enveloped(exchange, event)) for event in self.events]
            await exchange.stream("".join(f"data: {frame}\n\n" for frame in frames).encode())

    def _enveloped(self, exchange: Exchange, value: Any) -> Any:
        if self.binding != "JSONRPC":
            return value
        return {"jsonrpc": "2.0", "id": exchange.call["id"], "result": value}


@asynccontextmanager
async def agent_of(version: str, binding: str) -> AsyncIterator[tuple[RemoteAgent, Answering]]:
    answering = Answering(version, binding)
    async with (
        scripted(answering) as server,
        connect(server.url, version=version, binding=binding, retries=0) as agent,
    ):
        yield agent, answering


class Printed(NamedTuple):
    """An answer; ``found`` says where it is printed, ``task`` whether it is one."""

    found: str
    answer: Mapping[str, Any]
    task: bool = True


def answers(version: str) -> dict[str, Printed]:
    done = {"state": DONE[version]}
    parts = [TEXT]
    return {
        "a message in a wrapper": Printed(
            "the specification of 1.0, and answers of 0.3 that were written after it",
            {"message": {"messageId": "m", "role": AGENT[version], "parts": parts}},
            task=False,
        ),
        "a message in a wrapper, without id and role": Printed(
            "shortened examples", {"message": {"parts": parts}}, task=False
        ),
        "a bare message": Printed(
            "the specification of 0.3, without its kind", {"role": "agent", "parts": [TYPED]}, False
        ),
        "a bare task": Printed(
            "tutorials, and the specification of 0.1",
            {"id": "t", "status": done, "artifacts": [{"artifactId": "a", "parts": parts}]},
        ),
        "a task in a wrapper": Printed(
            "the specification of 1.0",
            {
                "task": {
                    "id": "t",
                    "status": done,
                    "artifacts": [{"artifactId": "a", "parts": parts}],
                }
            },
        ),
        "artifacts that are counted": Printed(
            "the specification of 0.1",
            {
                "id": "t",
                "sessionId": "s",
                "status": done,
                "artifacts": [{"index": 0, "parts": parts}],
            },
        ),
        "artifacts with neither": Printed(
            "the same, where the number was optional",
            {"id": "t", "contextId": "s", "status": done, "artifacts": [{"parts": [TYPED]}]},
        ),
        "a final task": Printed(
            "manuals that show the answer and the last event as one",
            {
                "id": "t",
                "contextId": "s",
                "final": True,
                "status": {**done, "message": {"role": "agent", "parts": [TYPED]}},
            },
        ),
        "states of 0.3": Printed(
            "mixtures of both versions",
            {"id": "t", "status": {"state": "completed"}, "artifacts": [{"parts": [TYPED]}]},
        ),
        "states of 1.0": Printed(
            "mixtures of both versions",
            {
                "id": "t",
                "status": {"state": "TASK_STATE_COMPLETED"},
                "artifacts": [{"parts": [TEXT]}],
            },
        ),
        "a task of 0.3": Printed(
            "the specification of 0.3",
            {
                "kind": "task",
                "id": "t",
                "contextId": "s",
                "status": {"state": "completed"},
                "artifacts": [{"artifactId": "a", "parts": [{"kind": "text", "text": "Hello"}]}],
                "history": [
                    {"kind": "message", "role": "user", "parts": [TYPED], "messageId": "u"}
                ],
            },
        ),
    }


@pytest.mark.parametrize(("version", "binding"), WAYS)
@pytest.mark.parametrize("what", answers(OLD))
async def test_an_answer_as_texts_print_it_is_read(version: str, binding: str, what: str) -> None:
    printed = answers(version)[what]
    async with agent_of(version, binding) as (agent, answering):
        answering.answer = printed.answer
        reply = await agent.send("Hi")
    assert isinstance(reply, Task if printed.task else Message)
    assert reply.text == "Hello"
    if isinstance(reply, Task):
        assert (reply.id, reply.state) == ("t", TaskState.COMPLETED)
        given = printed.answer.get("sessionId") or printed.answer.get("contextId") or ""
        assert reply.context_id == given


@pytest.mark.parametrize(("version", "binding"), WAYS)
async def test_a_task_is_read_bare_and_in_a_wrapper_wherever_one_is_asked_for(
    version: str, binding: str
) -> None:
    """Gateways wrap the answer to GetTask as that to SendMessage."""
    status = {"state": DONE[version]}
    task = {
        "id": "t",
        "status": status,
        "artifacts": [{"index": 3, "parts": [TEXT]}, {"parts": []}],
    }
    async with agent_of(version, binding) as (agent, answering):
        for answering.answer in (task, {"task": task}):
            got = await agent.get("t")
            assert (got.state, got.text.strip()) == (TaskState.COMPLETED, "Hello")
            assert [each.artifact_id for each in got.artifacts] == ["3", "1"]


@pytest.mark.parametrize(("version", "binding"), WAYS)
async def test_cancelled_is_canceled(version: str, binding: str) -> None:
    async with agent_of(version, binding) as (agent, answering):
        for state in ("cancelled", "canceled", "TASK_STATE_CANCELLED", "TASK_STATE_CANCELED"):
            answering.answer = {"id": "t", "status": {"state": state}}
            assert (await agent.get("t")).state is TaskState.CANCELED


@pytest.mark.parametrize(("version", "binding"), WAYS)
async def test_files_of_one_version_are_read_in_another(version: str, binding: str) -> None:
    async with agent_of(version, binding) as (agent, answering):
        for part in (
            {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "text/x", "name": "a.x"}},
            {"raw": "aGk=", "mediaType": "text/x", "filename": "a.x"},
        ):
            artifact = {"artifactId": "a", "parts": [part]}
            task = {"id": "t", "status": {"state": DONE[version]}, "artifacts": [artifact]}
            answering.answer = {"kind": "task", **task}
            reply = await agent.send("Hi")
            assert isinstance(reply, Task)
            [file] = reply.artifacts[0].parts
            assert (file.raw, file.media_type, file.filename) == (b"hi", "text/x", "a.x")


def streams(version: str) -> dict[str, tuple[str, list[Any]]]:
    at_work, done = {"state": AT_WORK[version]}, {"state": DONE[version]}
    chunk, rest = [{"text": "Hel"}], [{"text": "lo"}]
    begun = {"kind": "task", "id": "t", "contextId": "c", "status": at_work}
    if version == NEW:
        begun = {"task": {"id": "t", "contextId": "c", "status": at_work}}
    return {
        "without kinds": (
            "answers that follow the tables of 0.3 and leave out what is the same in each",
            [
                {"id": "t", "contextId": "c", "status": at_work},
                {"taskId": "t", "contextId": "c", "artifact": {"artifactId": "a", "parts": chunk}},
                {"taskId": "t", "artifact": {"artifactId": "a", "parts": rest}, "append": True},
                {"taskId": "t", "contextId": "c", "status": done, "final": True},
            ],
        ),
        "without the task": (
            "shortened examples of events, which begin after the task",
            [
                begun,
                {"artifact": {"artifactId": "a", "parts": chunk}},
                {"artifact": {"artifactId": "a", "parts": rest}, "append": True},
                {"status": done, "final": True},
            ],
        ),
        "in wrappers without the task": (
            "the same in 1.0",
            [
                begun,
                {"artifactUpdate": {"artifact": {"artifactId": "a", "parts": chunk}}},
                {
                    "artifactUpdate": {
                        "artifact": {"artifactId": "a", "parts": rest},
                        "append": True,
                    }
                },
                {"statusUpdate": {"status": done, "final": True}},
            ],
        ),
        "with kinds and without the task": (
            "the same in 0.3",
            [
                begun,
                {"kind": "artifact-update", "artifact": {"artifactId": "a", "parts": chunk}},
                {
                    "kind": "artifact-update",
                    "artifact": {"artifactId": "a", "parts": rest},
                    "append": True,
                },
                {"kind": "status-update", "status": done, "final": True},
            ],
        ),
        "of the first specification": (
            "the specification of 0.1: an id, a number, and the chunk says that it is one",
            [
                {"id": "t", "status": {"state": "working"}, "final": False},
                {"id": "t", "artifact": {"index": 0, "parts": chunk, "append": False}},
                {"id": "t", "artifact": {"index": 0, "parts": rest, "append": True}},
                {"id": "t", "status": {"state": "completed"}, "final": True},
            ],
        ),
    }


@pytest.mark.parametrize(("version", "binding"), WAYS)
@pytest.mark.parametrize("what", streams(OLD))
async def test_a_stream_as_texts_print_it_is_read_to_its_end(
    version: str, binding: str, what: str
) -> None:
    async with agent_of(version, binding) as (agent, answering):
        _, answering.events = streams(version)[what]
        async with agent.stream("Hi") as stream:
            events = [event async for event in stream]
        assert (stream.task_id, stream.state) == ("t", TaskState.COMPLETED)
    ids = [event.id if isinstance(event, Task) else event.task_id for event in events]
    assert ids == ["t"] * 4
    assert isinstance(events[-1], TaskStatusUpdateEvent)
    first, second = events[1], events[2]
    assert first.artifact.artifact_id == second.artifact.artifact_id
    assert (first.append, second.append) == (False, True)
    assert first.artifact.parts[0].text + second.artifact.parts[0].text == "Hello"


# Addresses: texts give that of a host, and the agent is below it; or that of an agent below a host,
# whose card is the host's


def speaker(name: str) -> Agent:
    agent = Agent(name, retention=Retention(tasks=None))

    @agent.skill
    def speak() -> str:
        return f"I am {name}"

    return agent


async def test_one_agent_below_a_host_is_found_from_the_host() -> None:
    app = asgi({"/agents/time": speaker("Time")}, store="memory:")
    async with serving(app) as url:
        for reference in (url, f"{url}/", url.removeprefix("http://")):
            async with connect(reference, retries=0) as agent:
                assert (agent.card.name, (await agent.send("Hi")).text) == ("Time", "I am Time")


async def test_of_several_agents_below_a_host_the_names_and_addresses_are_told() -> None:
    app = asgi({"/time": speaker("Time"), "/echo": speaker("Echo")}, store="memory:")
    async with serving(app) as url:
        with pytest.raises(CardNotFound) as refusal:
            await connect(url, retries=0)
        words = str(refusal.value)
        assert "has 2 agents; connect to one of them" in words
        assert f"Time at {url}/time" in words
        assert f"Echo at {url}/echo" in words
        async with connect(f"{url}/echo", retries=0) as agent:
            assert (await agent.send("Hi")).text == "I am Echo"


async def test_an_agent_that_is_not_there_is_not_another_one() -> None:
    for agents in ({"/time": speaker("Time")}, {"/": speaker("Time")}):
        async with serving(asgi(agents, store="memory:")) as url:
            with pytest.raises(CardNotFound, match=r"Time|/time"):
                await connect(f"{url}/tiem", retries=0)


async def test_an_agent_of_another_server_is_named_and_not_called() -> None:
    elsewhere = {"agents": [{"name": "Time", "url": "https://agents.example/time"}]}
    async with scripted(Host({"/": elsewhere})) as server:
        with pytest.raises(CardNotFound, match="another server") as refusal:
            await connect(server.url, retries=0)
        assert "https://agents.example/time" in str(refusal.value)


class Host:
    """Serves documents at some paths; the rest is not there."""

    def __init__(self, documents: Mapping[str, Any], status: int = 200) -> None:
        self.documents, self.status = documents, status

    async def __call__(self, exchange: Exchange) -> None:
        if exchange.path in self.documents:
            host = f"http://{exchange.headers['host']}"
            text = json.dumps(self.documents[exchange.path]).replace("http://host", host)
            await exchange.json(text.encode(), self.status)
        else:
            await exchange.json({"detail": "Not Found"}, 404)


WELL_KNOWN = "/.well-known/agent-card.json"
TIME = card("http://host/time", name="Time")
LISTS = {
    "a list in place of a card": {WELL_KNOWN: [TIME]},
    "a list of cards": {WELL_KNOWN: {"agents": [TIME]}},
    "names and cards": {"/": {"agents": [{"name": "Time", "card": TIME}]}},
    "addresses": {"/": {"agents": [{"url": "http://host/time"}]}, "/time" + WELL_KNOWN: TIME},
    "relative addresses": {"/": {"agents": ["/time"]}, "/time" + WELL_KNOWN: TIME},
    "addresses of cards": {
        "/.well-known/agent.json": {"agentCards": [{"agentCardUrl": "/cards/1"}]},
        "/cards/1": TIME,
    },
}


@pytest.mark.parametrize("what", LISTS)
async def test_a_list_of_one_agent_leads_to_it(what: str) -> None:
    async with scripted(Host(LISTS[what])) as server, connect(server.url, retries=0) as agent:
        assert agent.card.name == "Time"


@pytest.mark.parametrize("what", ["a list of cards", "addresses"])
async def test_a_list_of_more_is_told_whatever_its_form(what: str) -> None:
    documents = dict(LISTS[what])
    for path, value in documents.items():
        if "agents" in value:
            documents[path] = {"agents": [*value["agents"], {"name": "Echo", "url": "/echo"}]}
    async with scripted(Host(documents)) as server:
        with pytest.raises(CardNotFound, match="has 2 agents") as refusal:
            await connect(server.url, retries=0)
        assert f"{server.url}/time" in str(refusal.value)
        assert f"Echo at {server.url}/echo" in str(refusal.value)


@pytest.mark.parametrize("offered", ["http://host/a2a", "http://host/a2a/", "http://host/a2a/v1"])
@pytest.mark.parametrize("path", [WELL_KNOWN, "/.well-known/agent.json"])
async def test_an_address_whose_card_is_the_hosts_leads_to_it(path: str, offered: str) -> None:
    """Tutorials give the address that is called, and serve the card at the host's."""
    async with scripted(Host({path: card(offered, name="Time")})) as server:
        for given in ("/a2a", "/a2a/", "/a2a?key=1"):
            async with connect(server.url + given, retries=0) as agent:
                assert agent.card.name == "Time"


async def test_the_card_of_somebody_else_at_the_host_is_not_taken() -> None:
    async with scripted(Host({WELL_KNOWN: card("http://host/other", name="Other")})) as server:
        with pytest.raises(CardNotFound, match="is that of 'Other' at") as refusal:
            await connect(f"{server.url}/a2a", retries=0)
        assert f"{server.url}/other" in str(refusal.value)


async def test_a_list_of_nothing_and_other_json_are_no_cards() -> None:
    for value in ({"agents": []}, [], [1, None, {}], {"agents": "x"}, {"agents": [{"url": 1}]}):
        async with scripted(Host({WELL_KNOWN: value, "/": value})) as server:
            with pytest.raises(CardInvalid):
                await connect(server.url, retries=0)


async def test_who_wants_credentials_for_a_card_is_not_passed_over() -> None:
    async with scripted(Host({WELL_KNOWN: {"error": "who are you?"}}, 401)) as server:
        with pytest.raises(AuthenticationRequired):
            await connect(server.url, retries=0)
