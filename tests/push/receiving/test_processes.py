"""Receivers that are killed, share a store, and receive from Parley's sender."""

from __future__ import annotations

import asyncio
import base64
import itertools
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from parley import Task
from parley.push import (
    PushNotification,
    receiver,
    verify_api_key,
    verify_basic,
    verify_bearer,
    verify_hmac,
    verify_jwt,
    verify_token,
)
from parley.security.signing.keys import SigningKeys
from parley.server.run import serving
from tests.kit.processes import free_port
from tests.kit.waiting import let_time_pass, until
from tests.kit.webhooks import Webhook, webhook
from tests.push.proofs.receiving import asking
from tests.push.pushing import PATIENT, of_version, pushing, writer
from tests.push.receiving.delivering import SECRET, Handled, hmac_headers, update
from tests.security.signing.key_sets import key_set, private_jwk

pytestmark = pytest.mark.anyio


class Process:
    """A receiver in its own process, at a fixed port."""

    def __init__(self, seen: str, file: Path, *, acknowledge: str, seconds: float) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/"
        self._arguments = [str(self.port), seen, acknowledge, str(file), str(seconds)]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.push.receiving.serving", *self._arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait()

    async def ready(self) -> None:
        async with aiohttp.ClientSession() as session:

            async def answers() -> bool:
                try:
                    async with session.get(self.url) as response:
                        return response.status == 405
                except aiohttp.ClientError:
                    return False

            await until(answers, 30)


@contextmanager
def processes(count: int, *given: Any, **options: Any) -> Iterator[list[Process]]:
    all_of_them = [Process(*given, **options) for _ in range(count)]
    try:
        for each in all_of_them:
            each.start()
        yield all_of_them
    finally:
        for each in all_of_them:
            if each.process is not None and each.process.poll() is None:
                each.kill()


class Sender:
    """Sends a task's events as Parley does: in order, each until it is accepted."""

    def __init__(self, session: aiohttp.ClientSession, receivers: list[Process]) -> None:
        self.session = session
        self.receivers = receivers
        self.attempts = Counter[str]()

    async def attempt(self, receiver: Process, id: str, task: str) -> int:
        body = update(task, text=id)
        self.attempts[id] += 1
        headers = hmac_headers(body, id) | {"Content-Type": "application/a2a+json"}
        try:
            async with self.session.post(receiver.url, data=body, headers=headers) as response:
                return response.status
        except (aiohttp.ClientError, OSError):
            return 0

    async def send(self, task: str, events: int, *, copies: int = 1) -> None:
        for n in range(events):
            id = f"{task}/default/{n}"
            while True:
                chosen = [random.choice(self.receivers) for _ in range(copies)]
                statuses = await asyncio.gather(*[self.attempt(p, id, task) for p in chosen])
                assert set(statuses) <= {0, 200, 202, 503}, statuses
                if any(200 <= status < 300 for status in statuses):
                    break
                await let_time_pass(0.02)


def read(file: Path) -> tuple[Counter[str], Counter[str], dict[str, list[int]]]:
    """Return the starts and ends of each notification, and the order within each task."""
    begun, done, order = Counter[str](), Counter[str](), dict[str, list[int]]()
    for line in file.read_text().splitlines():
        word, id = line.split(" ")
        if word == "begin":
            begun[id] += 1
        else:
            done[id] += 1
            task, _, number = id.split("/")
            order.setdefault(task, []).append(int(number))
    return begun, done, order


@pytest.mark.slow
async def test_a_receiver_that_is_killed_loses_nothing_and_repeats_what_it_was_handling(
    tmp_path: Path,
) -> None:
    file, kills = tmp_path / "handled", 4
    seen = f"sqlite:///{tmp_path}/seen.db"
    with processes(1, seen, file, acknowledge="after", seconds=0.002) as [receiver]:
        await receiver.ready()
        async with aiohttp.ClientSession() as session:
            sender = Sender(session, [receiver])
            sending = [asyncio.create_task(sender.send(f"t{n}", 60)) for n in range(3)]
            for _ in range(kills):
                await let_time_pass(0.2 + random.random() * 0.3)
                receiver.kill()
                receiver.start()
                await receiver.ready()
            await asyncio.gather(*sending)
    begun, done, order = read(file)
    assert len(done) == 180
    # The receiver handles three tasks at once: each kill may repeat one notification of each task.
    assert sum(begun.values()) - 180 <= 3 * kills
    assert sum(done.values()) - 180 <= 3 * kills
    for task, numbers in order.items():
        assert sorted(numbers) == numbers, task
        assert set(numbers) == set(range(60)), task


@pytest.mark.slow
@pytest.mark.service
async def test_replicas_handle_each_notification_once_and_tasks_in_order(
    postgres_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "handled"
    with processes(2, postgres_url, file, acknowledge="after", seconds=0.002) as receivers:
        await asyncio.gather(*[each.ready() for each in receivers])
        async with aiohttp.ClientSession() as session:
            sender = Sender(session, receivers)
            # Each notification is sent three times at once, to any replica.
            await asyncio.gather(*[sender.send(f"t{n}", 40, copies=3) for n in range(5)])
    begun, done, order = read(file)
    assert sum(sender.attempts.values()) >= 3 * 200
    assert set(begun.values()) == set(done.values()) == {1}
    assert len(done) == 200
    assert all(numbers == list(range(40)) for numbers in order.values())


@pytest.mark.slow
@pytest.mark.service
async def test_a_replica_that_is_killed_is_followed_by_the_other(
    postgres_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "handled"
    with processes(2, postgres_url, file, acknowledge="after", seconds=0.005) as receivers:
        await asyncio.gather(*[each.ready() for each in receivers])
        async with aiohttp.ClientSession() as session:
            sender = Sender(session, receivers)
            sending = [asyncio.create_task(sender.send(f"t{n}", 60)) for n in range(4)]
            await let_time_pass(0.4)
            receivers[0].kill()
            await asyncio.gather(*sending)
    begun, done, order = read(file)
    assert len(done) == 240
    assert sum(begun.values()) - 240 <= 4
    assert all(sorted(numbers) == numbers for numbers in order.values())


# -- Parley's receiver verifies deliveries of Parley's sender: each scheme and version -------------


KEYS = SigningKeys.parse(key_set(private_jwk(kid="one")))


def jwt(url: str, issuer: str) -> Any:
    return verify_jwt(issuer=issuer, audience=url)


SCHEMES: list[tuple[str, str, Callable[[str, str], Any], str]] = [
    ("HMAC-SHA256", SECRET, lambda url, issuer: verify_hmac(SECRET), "HMAC-SHA256"),
    ("Bearer", "t0ken", lambda url, issuer: verify_bearer("t0ken"), "Bearer"),
    ("Basic", "ada:s:crt", lambda url, issuer: verify_basic("ada", "s:crt"), "Basic"),
    ("ApiKey", "X-Key: k 1", lambda url, issuer: verify_api_key("X-Key", "k 1"), "ApiKey"),
    ("JWT", "", jwt, "JWT"),
]


def publishing(keys: Webhook, signing: SigningKeys) -> str:
    """Make a server publish keys; return its address."""
    keys.answer = lambda told: web.json_response(signing.published)
    return keys.url.removesuffix("/hook")


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize(("scheme", "credentials", "verify", "by"), SCHEMES)
async def test_what_is_delivered_is_verified_and_typed(
    scheme: str, credentials: str, verify: Any, by: str, version: str
) -> None:
    handled, apps = Handled(), list[Any]()
    async with webhook() as keys, serving(late_app(apps)) as url:
        hook = url.rstrip("/") + "/hook"
        issuer = publishing(keys, KEYS)
        apps.append(receiver(handled, verify=[verify(hook, issuer), verify_token("t")]))
        options = {"signing_keys": KEYS, "url": issuer} if scheme == "JWT" else {}
        async with apps[0], pushing(writer(3), retry_policy=PATIENT, **options) as caller:
            asked = asking(hook, scheme, credentials, id="hook", token="t")
            task = await caller.task("go", asked, context=of_version(caller.context, version))
            await until(lambda: handled.got and handled.got[-1].is_final)
        assert {each.verified_by for each in handled.got} == {f"{by} + token"}
        assert {each.version for each in handled.got} == {version}
        numbers = [each.number for each in handled.got]
        assert numbers == sorted(set(numbers))  # type: ignore[type-var]
        assert {each.task_id for each in handled.got} == {task.id}
        if version == "0.3":
            assert {type(each.event) for each in handled.got} == {Task}


def late_app(apps: list[Any]) -> Any:
    """Return an app that is set after its address is known."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await apps[0](scope, receive, send)

    return app


async def test_a_sender_comes_again_until_the_handler_has_done_it() -> None:
    failures = itertools.chain(
        [RuntimeError("one"), None, RuntimeError("two")], itertools.repeat(None)
    )
    got: list[PushNotification] = []

    async def handle(notification: PushNotification) -> None:
        if (failure := next(failures)) is not None:
            raise failure
        got.append(notification)

    app = receiver(handle, verify=verify_hmac(SECRET), acknowledge="after")
    async with serving(app) as url, pushing(writer(5), retry_policy=PATIENT) as caller:
        await caller.task("go", asking(url, "HMAC-SHA256", SECRET, id="hook"))
        await until(lambda: got and got[-1].is_final)
    assert [each.number for each in got] == list(range(1, len(got) + 1))


def test_the_secret_of_these_tests_is_standard() -> None:
    assert base64.b64decode(SECRET.removeprefix("whsec_")) == b"0123456789abcdef0123456789abcdef"
