"""A receiver passes on typed events: each once, in the order of their task, quickly."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import parley
from parley import Agent, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent, Turn
from parley.push import PushNotification, ReceiverLimits, receiver, verify_hmac, verify_token
from parley.push.receiving import HandledIds, SeenAnswer
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.errors import StoreUnavailable
from parley.store.tables import TableRows
from tests.kit.waiting import until
from tests.push.receiving.delivering import SECRET, Handled, deliver, hmac_headers, update

pytestmark = pytest.mark.anyio

T = TypeVar("T")


def named(id: str) -> dict[str, str]:
    return {"webhook-id": id}


async def test_events_of_both_versions_are_typed() -> None:
    handled = Handled()
    artifact = {
        "artifactUpdate": {
            "taskId": "t1",
            "contextId": "c1",
            "artifact": {"artifactId": "a", "parts": [{"text": "x"}]},
        }
    }
    message = {"message": {"messageId": "m1", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}}
    task = {"task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_SUBMITTED"}}}
    old = {"kind": "task", "id": "t2", "contextId": "c", "status": {"state": "completed"}}
    async with receiver(handled, verify=False, acknowledge="after") as app:
        for n, body in enumerate((task, json.loads(update()), artifact, message)):
            answer = await deliver(app, json.dumps(body).encode(), named(f"t1/p/{n}"))
            assert answer.status == 200
        body = json.dumps(old).encode()
        await deliver(app, body, named("t2/p/1"), content_type="application/json")
    kinds = [Task, TaskStatusUpdateEvent, TaskArtifactUpdateEvent, Message, Task]
    assert [type(each.event) for each in handled.got] == kinds
    assert [each.version for each in handled.got] == ["1.0"] * 4 + ["0.3"]
    assert [each.task_id for each in handled.got] == ["t1", "t1", "t1", "", "t2"]
    assert [each.number for each in handled.got] == [0, 1, 2, 3, 1]
    assert [each.is_final for each in handled.got] == [False] * 4 + [True]


async def test_after_the_handler_it_answers_what_came_of_it() -> None:
    handled = Handled()
    handled.errors = [RuntimeError("the database is away")]
    async with receiver(handled, verify=False, acknowledge="after") as app:
        answer = await deliver(app, update(), named("t1/p/1"))
        assert answer.status == 500
        assert b"database" not in answer.body
        assert (await deliver(app, update(), named("t1/p/1"))).status == 200
        assert (await deliver(app, update(), named("t1/p/1"))).status == 200
    assert handled.ids == ["t1/p/1"]
    assert len(handled.begun) == 2


async def test_a_replay_is_answered_and_not_handled() -> None:
    handled = Handled()
    body = update()
    headers = hmac_headers(body)
    async with receiver(handled, verify=verify_hmac(SECRET)) as app:
        statuses = [(await deliver(app, body, headers)).status for _ in range(2)]
        await until(lambda: len(handled.got) == 1)
        statuses += [(await deliver(app, body, headers)).status for _ in range(3)]
    assert statuses[0] == 202
    assert statuses[2:] == [200] * 3
    assert handled.ids == ["t1/default/1"]


async def test_one_that_comes_again_while_it_is_handled_waits_for_the_same_end() -> None:
    handled = Handled()
    handled.gate.clear()
    async with receiver(handled, verify=False, acknowledge="after") as app:
        sent = [asyncio.create_task(deliver(app, update(), named("t1/p/1"))) for _ in range(5)]
        await until(lambda: handled.begun)
        handled.gate.set()
        assert {(await each).status for each in sent} == {200}
    assert handled.ids == ["t1/p/1"]


async def test_those_that_wait_together_are_ordered_by_number() -> None:
    handled = Handled()
    handled.gate.clear()
    async with receiver(handled, verify=False) as app:
        for n in (1, 5, 3, 2, 4):
            await deliver(app, update(), named(f"t1/p/{n}"))
        handled.gate.set()
        await until(lambda: len(handled.got) == 5)
    assert [each.number for each in handled.got] == [1, 2, 3, 4, 5]


async def test_the_queue_is_bounded() -> None:
    handled = Handled()
    handled.gate.clear()
    limits = ReceiverLimits(queue=3)
    async with receiver(handled, verify=False, limits=limits) as app:
        answers = [await deliver(app, update(), named(f"t1/p/{n}")) for n in range(5)]
        assert [each.status for each in answers] == [202, 202, 202, 503, 503]
        assert int(answers[-1].headers["retry-after"]) > 0
        handled.gate.set()
        await until(lambda: len(handled.got) == 3)
        assert (await deliver(app, update(), named("t1/p/3"))).status == 202
    assert [each.number for each in handled.got] == [0, 1, 2, 3]


async def test_the_bytes_that_wait_are_bounded() -> None:
    handled = Handled()
    handled.gate.clear()
    size = len(update())
    limits = ReceiverLimits(max_bytes=size, queue_bytes=3 * size)
    async with receiver(handled, verify=False, limits=limits) as app:
        statuses = [(await deliver(app, update(), named(f"t1/p/{n}"))).status for n in range(5)]
        assert statuses == [202, 202, 202, 503, 503]
        assert (await deliver(app, update() + b" ", named("x"))).status == 413
        handled.gate.set()
        await until(lambda: len(handled.got) == 3)
        assert app._reads.bytes == 0
        assert (await deliver(app, update(), named("t1/p/3"))).status == 202


class Slow(MemoryTaskStore):
    """A store that waits before each change while its gate is shut, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gate = asyncio.Event(), asyncio.Event()
        self.is_away = False

    async def change_rows(self, work: Callable[[TableRows], T]) -> T:
        self.asked.set()
        if self.is_away:
            raise StoreUnavailable("away")
        await self.gate.wait()
        return await super().change_rows(work)


async def test_what_a_receiver_was_about_to_take_when_it_stops_is_for_another() -> None:
    store, handled = Slow(), Handled()
    await store.open(lambda records: None)
    app = receiver(handled, verify=False, seen=store, limits=ReceiverLimits(drain=0))
    sending = asyncio.create_task(deliver(app, update(), named("t1/default/1")))
    await store.asked.wait()
    closing = asyncio.create_task(app.aclose())
    await until(lambda: app._handling._is_stopped)
    store.gate.set()
    await closing
    assert (await sending).status == 503, "the sender is asked to retry"
    assert await store.tables("parley_receiver").scan("lanes") == []
    assert not handled.got


async def test_what_was_dropped_is_handled_when_the_receiver_runs_again() -> None:
    handled = Handled()
    handled.gate.clear()
    app = receiver(handled, verify=False, limits=ReceiverLimits(drain=0))
    async with app:
        assert (await deliver(app, update(), named("t1/default/1"))).status == 202
        await until(lambda: bool(handled.begun))
    handled.gate.set()
    async with app:
        assert (await deliver(app, update(), named("t1/default/1"))).status == 202
        await until(lambda: handled.ids == ["t1/default/1"])


async def test_slow_senders_of_large_bodies_keep_out_nobody_else() -> None:
    handled, body = Handled(), update()
    size = 2 * len(body)
    limits = ReceiverLimits(max_bytes=size, queue_bytes=4 * size)
    async with receiver(handled, verify=verify_hmac(SECRET), limits=limits) as app:

        async def trickle() -> int:
            """Send all of a body but the last byte, and wait."""
            sent: list[Any] = []
            pieces = [{"type": "http.request", "body": b"x" * (size - 1), "more_body": True}]

            async def receive() -> Any:
                return pieces.pop() if pieces else await asyncio.Event().wait()

            async def send(message: Any) -> None:
                sent.append(message)

            kind = (b"content-type", b"application/json")
            scope = {"type": "http", "method": "POST", "path": "/", "headers": [kind]}
            await app(scope, receive, send)
            return int(sent[0]["status"])

        slow = [asyncio.create_task(trickle()) for _ in range(5)]
        await until(lambda: app._reads.bytes == 4 * (size - 1))
        for n in range(1, 4):
            headers = hmac_headers(body, f"t1/default/{n}")
            assert (await deliver(app, body, headers)).status == 202
        await until(lambda: len(handled.got) == 3)
        await until(lambda: sum(each.done() for each in slow) >= 2)
        assert {each.result() for each in slow if each.done()} == {503}
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        assert app._reads.bytes == 0


async def test_what_is_no_notification_is_refused() -> None:
    handled = Handled()
    async with receiver(handled, verify=False) as app:
        assert (await deliver(app, b"", method="GET")).status == 405
        assert (await deliver(app, b"x=1", content_type="text/plain")).status == 415
        gzip = {"content-encoding": "gzip"}
        assert (await deliver(app, update(), gzip)).status == 415
        for body in (b"", b"[]", b"{}", b"null", b"\xff", b'{"task": 1}', b"[" * 100_000):
            assert (await deliver(app, body)).status == 400, body[:20]
        big = {"content-length": str(10**12)}
        assert (await deliver(app, update(), big)).status == 413
        assert (await deliver(app, update(), named("x" * 3000))).status == 400
        assert (await deliver(app, update(), {"webhook-timestamp": "x"})).status == 400
    assert handled.got == []


@pytest.mark.service
async def test_no_id_of_a_task_breaks_a_store(postgres_url: str, tmp_path: Path) -> None:
    for seen in (postgres_url, f"sqlite:///{tmp_path}/seen.db"):
        handled = Handled()
        async with receiver(handled, verify=False, seen=seen, acknowledge="after") as app:
            for n, task_id in enumerate(("a\0b", "\ud800", "x" * 100_000)):
                body = update(task_id) if n != 1 else update("a").replace(b'"a"', b'"\\ud800"')
                answer = await deliver(app, body, named(f"{n}"))
                assert answer.status == (200 if n != 1 else 400), n
        assert len(handled.got) == 2


async def test_a_plain_function_runs_in_a_thread_and_can_fetch_the_task() -> None:
    agent = Agent("Clock")

    @agent.skill(replies="task")
    async def tell(turn: Turn) -> str:
        return "noon"

    found: list[tuple[Task, bool]] = []

    def handle(notification: PushNotification) -> None:
        is_other = threading.current_thread() is not threading.main_thread()
        found.append((notification.task_sync(), is_other))

    async with parley.connect(agent) as remote:
        task = await remote.send("now")
        assert task.id
        app = receiver(handle, verify=False, agent=remote, acknowledge="after")
        async with app:
            assert (await deliver(app, update(task.id), named("1"))).status == 200
    assert found[0][0].id == task.id
    assert found[0][0].state.is_terminal
    assert found[0][1]


async def test_without_an_agent_the_task_cannot_be_fetched() -> None:
    with pytest.raises(ValueError, match=r"agent=lambda: parley\.connect"):
        await PushNotification(event=Task(id="t", status={"state": "TASK_STATE_WORKING"})).task()  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="function that connects"):
        receiver(lambda n: None, verify=False, agent="https://agent.example")  # type: ignore[arg-type]


def test_a_handler_that_cannot_be_called_is_refused() -> None:
    async def generator(notification: object) -> Any:
        yield notification

    wrong: list[Any] = [None, "x", lambda: None, lambda a, b: None, generator]
    for handler in wrong:
        with pytest.raises(TypeError, match=r"notification|yield"):
            receiver(handler, verify=False)
    with pytest.raises(ValueError, match='"before" or "after"'):
        receiver(lambda n: None, verify=False, acknowledge="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no store of the kind"):
        receiver(lambda n: None, verify=False, seen="mysql://x:secret@y")
    with pytest.raises(ValueError, match="twice max_age"):
        ReceiverLimits(remember=10)


async def test_a_store_that_fails_lets_the_sender_come_again() -> None:
    handled, store = Handled(), Slow()
    store.gate.set()
    await store.open(lambda records: None)
    async with receiver(handled, verify=False, seen=store) as app:
        store.is_away = True
        answer = await deliver(app, update(), named("t1/p/1"))
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        store.is_away = False
        assert (await deliver(app, update(), named("t1/p/1"))).status == 202
    assert handled.ids == ["t1/p/1"]


async def test_a_function_of_the_user_says_which_id_is_new() -> None:
    handled, ids = Handled(), set[str]()

    async def first_time(id: str) -> bool:
        if len(ids) == 2:
            raise ConnectionError("away")
        is_new = id not in ids
        ids.add(id)
        return is_new

    for n, status in ((1, 202), (1, 200), (2, 202), (3, 503)):
        async with receiver(handled, verify=False, seen=first_time) as app:
            assert (await deliver(app, update(), named(f"t1/p/{n}"))).status == status
    assert handled.ids == ["t1/p/1", "t1/p/2"]
    with pytest.raises(ValueError, match='acknowledge="before"'):
        receiver(handled, verify=False, seen=first_time, acknowledge="after")
    with pytest.raises(TypeError, match="async def of an id"):
        receiver(handled, verify=False, seen=lambda id: True)  # type: ignore[arg-type,return-value]


async def test_a_task_is_with_one_replica_and_an_id_is_handled_once() -> None:
    store, limits = MemoryTaskStore(clock=lambda: now), ReceiverLimits(lease=10)
    now = 1_000_000
    await store.open(lambda records: None)
    one, other = HandledIds(store, limits), HandledIds(store, limits)
    assert await one.admit("a/1", "a") is SeenAnswer.NEW
    assert await other.admit("a/2", "a") is SeenAnswer.BUSY
    assert await other.admit("b/1", "b") is SeenAnswer.NEW
    await one.finish("a/1")
    assert await other.admit("a/1", "a") is SeenAnswer.HANDLED
    assert await one.admit("a/2", "a") is SeenAnswer.NEW
    await one.release("a")
    assert await other.admit("a/2", "a") is SeenAnswer.NEW
    assert await other.admit("", "a") is SeenAnswer.NEW
    # A dead receiver keeps its tasks until the lease ends; without its lease, a receiver neither
    # renews nor releases a task.
    now += 9_000
    await other.renew()
    now += 9_000
    assert await one.admit("a/3", "a") is SeenAnswer.BUSY
    now += 2_000
    assert await one.admit("a/3", "a") is SeenAnswer.NEW
    await other.renew()
    await other.release("a")
    assert await other.admit("a/4", "a") is SeenAnswer.BUSY
    await one.close()
    assert await other.admit("a/4", "a") is SeenAnswer.NEW
    now += round(limits.remember * 1000)
    assert await other.admit("a/1", "a") is SeenAnswer.NEW


async def test_a_receiver_that_stops_accepts_nothing_more_and_says_what_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handled = Handled()
    handled.gate.clear()
    app = receiver(handled, verify=False, limits=ReceiverLimits(drain=0))
    async with app:
        for n in range(3):
            await deliver(app, update(), named(f"t1/p/{n}"))
    assert "3 notifications that were not handled" in caplog.text
    assert len(handled.begun) == 1
    assert not [each for each in asyncio.all_tasks() if each.get_name().startswith("parley-push")]
    assert (await deliver(app, update(), named("t1/p/9"))).status == 503


async def test_in_starlette_it_is_a_route_or_mounted() -> None:
    handled = Handled()
    hook = receiver(handled, verify=False)
    app = Starlette(routes=[hook.route("/hook"), Mount("/below", hook)], lifespan=hook.lifespan)
    async with app.router.lifespan_context(app):
        assert (await deliver(app, update(), named("1"), path="/hook")).status == 202
        assert (await deliver(app, update(), named("2"), path="/below/any")).status == 202
        assert (await deliver(app, update(), named("3"), path="/other")).status == 404
    assert sorted(handled.ids) == ["1", "2"]


async def test_in_fastapi_it_is_a_router_with_its_lifespan() -> None:
    from fastapi import FastAPI

    handled = Handled()
    handled.gate.clear()
    hook = receiver(handled, verify=verify_token("t0ken"))
    app = FastAPI()
    app.include_router(hook.router("/hook"), prefix="/v1")
    token = {"X-A2A-Notification-Token": "t0ken"}
    async with app.router.lifespan_context(app):
        assert (await deliver(app, update(), named("1") | token, path="/v1/hook")).status == 202
        assert (await deliver(app, update(), named("2"), path="/v1/hook")).status == 401
        asyncio.get_running_loop().call_soon(handled.gate.set)
    assert handled.ids == ["1"]  # drained
    assert "/v1/hook" in app.openapi()["paths"]


CHALLENGE = "2qY0m3n5x8tQn0o7bB8d1cWc1n0rVb8uT9h2mY4kLrE"


async def test_a_challenge_is_answered_by_the_token_and_nothing_else_of_it_is_used() -> None:
    handled = Handled()
    body = json.dumps({"challenge": CHALLENGE}).encode()
    marked = {"A2A-Webhook-Challenge": "v1"}
    answers = []
    for verify in (verify_hmac(SECRET), [verify_hmac(SECRET), verify_token("t0ken")]):
        async with receiver(handled, verify=verify) as app:  # type: ignore[arg-type]
            answer = await deliver(app, body, marked, content_type="application/json")
            assert answer.status == 200
            answers.append(json.loads(answer.body)["response"])
            assert (await deliver(app, b"{}", marked)).status == 400
            assert (await deliver(app, b"x" * 5000, marked)).status == 413
            assert (await deliver(app, body, {"A2A-Webhook-Challenge": "v2"})).status == 400
    assert answers == [
        "8RQtBPJa0SQDgnN6xAzqEUemCikuetFdA943zqyzqmE",
        "3Y6m9ZSdW65nujHG6Kx1jzopH7kACXF2Kngyw_dv8nE",
    ]
    text = b"parley-webhook-challenge:v1:" + CHALLENGE.encode()
    expected = base64.urlsafe_b64encode(hmac.digest(b"", text, hashlib.sha256)).rstrip(b"=")
    assert answers[0] == expected.decode()
    assert handled.got == []
