"""A receiver must confirm that it wants notifications before it gets any."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from parley import Agent
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.operations import AuthenticationInfo
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
    """Answer challenges as a receiver that expects a token."""

    def take(told: Told) -> Any:
        if CHALLENGE not in told.headers:
            return 200
        challenge = told.json["challenge"]
        return web.json_response({"response": response_to(challenge, token)})

    return take


def challenges(hook: Webhook) -> list[Told]:
    return [told for told in hook.told if CHALLENGE in told.headers]


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
        assert hook.told == challenges(hook), "challenges only"
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
