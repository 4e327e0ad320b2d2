"""Calls with a single response: requests and responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parley.client.errors import AuthenticationRequired, Disconnected, UnexpectedStatus
from parley.client.message import to_message
from parley.model.errors import InvalidAgentResponseError
from parley.model.operations import TaskPushNotificationConfig
from parley.model.parts import Part
from parley.model.tasks import Task, TaskState, TaskStatus
from tests.kit.scripted_server import HI, Agent, error, hang_up, status, talk

pytestmark = pytest.mark.anyio


async def test_an_api_key_in_the_query_is_never_shown() -> None:
    scheme = {"s": {"apiKeySecurityScheme": {"location": "query", "name": "key"}}}
    agent = Agent(HI, hang_up, securitySchemes=scheme)
    async with talk(agent, api_key="sec&ret") as (remote, server):
        await remote.send("hello")
        assert server.exchanges[-1].target == "/rpc?key=sec%26ret"
        with pytest.raises(Disconnected) as caught:
            await remote.get("t-1")
        assert "sec" not in str(caught.value)
        assert "sec" not in repr(remote.interface)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (status(200, b"<html>hello</html>"), InvalidAgentResponseError, "answered with text/html"),
        (status(200, b""), InvalidAgentResponseError, "answered with text/html"),
        (status(500), UnexpectedStatus, "answered 500"),
        (status(404), UnexpectedStatus, "answered 404"),
        (status(302, location="https://new/rpc"), UnexpectedStatus, "points to https://new/rpc"),
        (status(401, www_authenticate="Bearer"), AuthenticationRequired, "wants credentials"),
        (status(403, b'{"detail": "no"}'), AuthenticationRequired, "rejects these credentials"),
        (error(-32000, "no token", 401), AuthenticationRequired, "wants credentials"),
    ],
)
async def test_answers_that_are_not_the_agents_are_called_what_they_are(
    answer, kind, words
) -> None:
    async with talk(Agent(answer), retries=0) as (remote, server):
        for call in (remote.get("t-1"), anext(remote.stream("go"))):
            with pytest.raises(kind, match=words):
                await call
        assert len(server.exchanges) == 3  # a redirect of a POST is not followed


async def test_a_message_can_bring_its_webhook() -> None:
    hook = TaskPushNotificationConfig(url="https://hooks.example/2", token="t")
    async with talk(Agent(HI, capabilities=PUSH)) as (remote, server):
        for push, sent in (
            ("https://hooks.example/1", {"url": "https://hooks.example/1"}),
            (hook, {"url": "https://hooks.example/2", "token": "t"}),
        ):
            await remote.send("hi", push=push)
            await anext(remote.stream("hi", push=push))
            for exchange in server.exchanges[-2:]:
                configuration = exchange.params["configuration"]
                assert configuration == {"taskPushNotificationConfig": sent}


PUSH = {"streaming": True, "pushNotifications": True}


async def test_webhooks_are_created_shown_and_deleted() -> None:
    kept = {"id": "p-1", "taskId": "t-1", "url": "https://hooks.example/1"}
    async with talk(Agent(kept, kept, {}, capabilities=PUSH)) as (remote, server):
        made = await remote.push.create("t-1", "https://hooks.example/1")
        assert (made.id, made.task_id, made.url) == ("p-1", "t-1", "https://hooks.example/1")
        assert await remote.push.get("t-1", "p-1") == made
        assert await remote.push.delete("t-1", "p-1") is None
        assert [exchange.params for exchange in server.exchanges[1:]] == [
            {"taskId": "t-1", "url": "https://hooks.example/1"},
            {"taskId": "t-1", "id": "p-1"},
            {"taskId": "t-1", "id": "p-1"},
        ]


async def test_webhooks_are_listed_page_after_page() -> None:
    def page(token: str, *ids: str) -> dict[str, Any]:
        configs = [{"id": id, "taskId": "t-1", "url": "https://hooks.example"} for id in ids]
        return {"configs": configs, "nextPageToken": token}

    agent = Agent(page("two", "a", "b"), page("", "c"), capabilities=PUSH)
    async with talk(agent) as (remote, server):
        assert [config.id async for config in remote.push.list("t-1", page_size=2)] == list("abc")
        assert [exchange.params for exchange in server.exchanges[1:]] == [
            {"taskId": "t-1", "pageSize": 2},
            {"taskId": "t-1", "pageSize": 2, "pageToken": "two"},
        ]
        agent.answers = [page("same", "a")]
        assert len([config async for config in remote.push.list("t-1")]) == 2


# -- from the caller's values to a message ---------------------------------------------------------


def task_in(state: TaskState) -> Task:
    return Task(id="t-1", context_id="c-1", status=TaskStatus(state=state))


def test_everything_becomes_the_part_that_it_is_in_order(tmp_path: Path) -> None:
    picture = tmp_path / "boat.png"
    picture.write_bytes(b"\x89PNG")
    strange = tmp_path / "boat.unknown-suffix"
    strange.write_bytes(b"?")
    message = to_message(
        ["look", picture, b"raw", {"a": None}, Part(url="https://x/y")],
        files=[str(picture), strange, b"more"],
        data=[1, 2],
    )
    png = Part(raw=b"\x89PNG", filename="boat.png", media_type="image/png")
    raw = {"media_type": "application/octet-stream"}
    assert message.parts == (
        Part(text="look"),
        png,
        Part(raw=b"raw", **raw),
        Part(data={"a": None}),
        Part(url="https://x/y"),
        png,
        Part(raw=b"?", filename="boat.unknown-suffix", **raw),
        Part(raw=b"more", **raw),
        Part(data=[1, 2]),
    )


def test_a_running_task_is_continued_and_an_ended_one_is_referred_to() -> None:
    message = to_message("Paris", task=task_in(TaskState.INPUT_REQUIRED))
    assert (message.task_id, message.context_id) == ("t-1", "c-1")
    assert message.reference_task_ids == ()
    message = to_message("make it red", task=task_in(TaskState.COMPLETED), references=["t-0"])
    assert (message.task_id, message.context_id) == ("", "c-1")
    assert message.reference_task_ids == ("t-1", "t-0")
    message = to_message("see", references=[task_in(TaskState.WORKING), "t-2"])
    assert message.reference_task_ids == ("t-1", "t-2")
