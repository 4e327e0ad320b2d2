"""A receiver confirms that it wants notifications before it is sent any."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from parley import Agent, Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.operations import AuthenticationInfo
from parley.model.service import Caller
from parley.push.http_sender import LONGEST_RESPONSE, response_to
from parley.security.egress import Egress
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.webhooks import PushState
from parley.store.task_store import TaskStore
from tests.kit.webhooks import Told, Webhook, webhook
from tests.push.pushing import PATIENT, QUICK, Pushed, config, of_version, writer

pytestmark = pytest.mark.anyio

CHALLENGE = "a2a-webhook-challenge"


@asynccontextmanager
async def challenging(
    agent: Agent, store: TaskStore | None = None, policy: Any = PATIENT
) -> AsyncIterator[Pushed]:
    host = Host(
        placed(agent),
        store or MemoryTaskStore(),
        ServerOptions(drain=0.0, egress=Egress.allowing(True), webhook_challenge=True),
        retry_policy=policy,
    )
    await host.start()
    try:
        yield Pushed(host)
    finally:
        await host.stop()


def confirming(
    token: str = "", answer: Callable[[str], Any] | None = None
) -> Callable[[Told], Any]:
    """Answer challenges as a receiver that expects a token does."""

    def take(told: Told) -> Any:
        if CHALLENGE not in told.headers:
            return 200
        challenge = told.json["challenge"]
        return web.json_response({"response": response_to(challenge, token)})

    return take


def challenges(hook: Webhook) -> list[Told]:
    return [told for told in hook.told if CHALLENGE in told.headers]


def test_the_page_says_what_a_response_is() -> None:
    challenge = "2qY0m3n5x8tQn0o7bB8d1cWc1n0rVb8uT9h2mY4kLrE"
    assert response_to(challenge, "") == "8RQtBPJa0SQDgnN6xAzqEUemCikuetFdA943zqyzqmE"
    assert response_to(challenge, "t0ken") == "3Y6m9ZSdW65nujHG6Kx1jzopH7kACXF2Kngyw_dv8nE"


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_nothing_is_sent_before_the_receiver_confirms(version: str) -> None:
    async with webhook() as hook, challenging(writer(3)) as pushed:
        hook.answer = confirming("s3cret")
        secrets = config(
            hook.url,
            token="s3cret",
            authentication=AuthenticationInfo(scheme="Bearer", credentials="hidden"),
        )
        context = of_version(pushed.context, version)
        task = await pushed.task("go", secrets, context=context)
        await hook.until_over()
        first = hook.told[0]
        assert first.headers[CHALLENGE] == "v1"
        assert first.headers["content-type"] == "application/json"
        assert list(first.json) == ["challenge"]
        said = json.dumps(first.headers) + first.body.decode()
        for secret in ("s3cret", "hidden", task.id):
            assert secret not in said
        assert len(challenges(hook)) == 1
        [*_, oldest] = await pushed.store.push_attempts(task.id, "default")
        assert (oldest.error, oldest.delivery_id, oldest.status) == ("", "", 200)


async def test_one_confirmation_is_for_an_owners_webhooks_at_a_url() -> None:
    async with webhook() as hook, challenging(writer(1)) as pushed:
        hook.answer = confirming()
        for _ in range(3):
            task = await pushed.task("go", hook.url)
            await pushed.settled(task.id, PushState.DONE)
        assert len(challenges(hook)) == 1
        grace = replace(pushed.context, caller=Caller(id="grace"))
        task = await pushed.task("go", hook.url, context=grace)
        await pushed.settled(task.id, PushState.DONE)
        assert len(challenges(hook)) == 2


async def test_who_confirms_does_not_confirm_for_others_at_the_same_host() -> None:
    async with webhook() as hook, challenging(writer(1)) as pushed:
        agrees = confirming()
        hook.answer = lambda told: agrees(told) if told.path.endswith("/mallory") else 404
        task = await pushed.task("go", f"{hook.url}/mallory")
        await pushed.settled(task.id, PushState.DONE)
        before = len(hook.told)
        await pushed.task("go", f"{hook.url}/victim")
        await hook.until(lambda told: len(told) >= before + 2)
        assert hook.told[before:] == challenges(hook)[1:]
        # Nor does a configuration that is confirmed confirm for another URL that it gets.
        task = await pushed.task("go", config(f"{hook.url}/mallory", id="a"))
        await pushed.settled(task.id, PushState.DONE, "a")
        await pushed.create(task.id, f"{hook.url}/victim", id="a")
        [moved] = await pushed.store.pushes(task.id)
        assert not moved.confirmed


def echo(told: Told) -> Any:
    return web.Response(body=told.body, content_type="application/json")


def too_long(told: Told) -> Any:
    response = response_to(told.json["challenge"], "")
    return web.json_response({"pad": "x" * LONGEST_RESPONSE, "response": response})


def redirect(told: Told) -> Any:
    return web.Response(status=302, headers={"Location": "/hook"})


WRONG: dict[str, Callable[[Told], Any]] = {
    "silence": lambda told: 200,
    "an echo": echo,
    "another token's": confirming("other"),
    "too long": too_long,
    "a redirect": redirect,
    "a list": lambda told: web.json_response([]),
    "a number": lambda told: web.json_response({"response": 7}),
    "lone surrogate": lambda told: web.Response(body=b'{"response": "\\ud800"}'),
    "deep": lambda told: web.Response(body=b"[" * 4000),
    "not found": lambda told: 404,
    "unable": lambda told: 500,
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG)
async def test_any_other_answer_confirms_nothing_and_suspends_in_the_end(
    answer: Callable[[Told], Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with webhook() as hook, challenging(writer(1), policy=QUICK) as pushed:
        hook.answer = answer
        task = await pushed.task("go", config(hook.url, token="t0ken"))
        push = await pushed.settled(task.id, PushState.SUSPENDED)
        assert push.note.startswith("challenge not answered: ")
        assert hook.told == challenges(hook), "nothing but challenges"
        assert len({told.json["challenge"] for told in hook.told}) == len(hook.told)
        history = await pushed.store.push_attempts(task.id, "default")
        assert all(each.error.startswith("challenge not answered") for each in history)
        assert history[0].next_at == 0
        assert "t0ken" not in caplog.text


async def test_a_later_confirmation_is_enough() -> None:
    async with webhook() as hook, challenging(writer(1)) as pushed:
        hook.answer = lambda told: 404
        task = await pushed.task("go", hook.url)
        await hook.until(lambda told: len(told) >= 2)
        hook.answer = confirming()
        await pushed.settled(task.id, PushState.DONE)


async def test_a_confirmation_outlives_the_process(new_store: Callable[[], TaskStore]) -> None:
    store = new_store()
    agent, gate = Agent("Gated"), asyncio.Event()

    @agent.skill(replies="task")
    async def wait(turn: Turn) -> str:
        await turn.working("waiting")
        await gate.wait()
        return "done"

    async with webhook() as hook:
        hook.answer = confirming()
        async with challenging(agent, store) as pushed:
            task = await pushed.task("go", hook.url, return_immediately=True)
            await hook.until(lambda told: len(told) >= 3)
        gate.set()
        async with challenging(agent, store) as pushed:
            await pushed.settled(task.id, PushState.DONE)
        assert len(challenges(hook)) == 1


async def test_direct_replies_need_it_too() -> None:
    agent = Agent("Direct")

    @agent.skill
    async def say(text: str) -> str:
        return text

    async with webhook() as hook, challenging(agent) as pushed:
        hook.answer = lambda told: 404
        await pushed.send("one", hook.url)
        await hook.until(lambda told: len(told) >= 2)
        assert hook.told == challenges(hook)
        hook.answer = confirming()
        await hook.until(lambda told: CHALLENGE not in told[-1].headers)
        assert hook.told[-1].json["message"]["parts"] == [{"text": "one"}]
