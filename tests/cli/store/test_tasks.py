"""``parley task list --all`` and ``task show``: the operator's view of a store in use."""

from __future__ import annotations

import asyncio
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import parley as library
from parley import Task
from parley.client.auth import Bearer
from parley.model.tasks import TaskState
from parley.store.admin.admin import TaskFilter
from parley.store.admin.sqlite import SqliteAdmin
from parley.store.events import Scope
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.processes import Running
from tests.kit.records import addition, creation, status
from tests.kit.webhooks import webhook

AGENT = '''
import asyncio
import os
from pathlib import Path

from parley import Agent, Turn
from parley.model.service import Caller
from parley.security import Bearer

other = Agent("Other")


@other.skill
async def answer(turn: Turn) -> str:
    """Answers."""
    return "42"


tokens = {"token-of-ada": Caller(id="ada"), "token-of-bob": Caller(id="bob")}
agent = Agent("Shop", uses=[other], security=Bearer(tokens.get))


@agent.skill
async def order(turn: Turn) -> str:
    """Charges, asks, calls and streams."""
    await turn.step("charge", charge)
    await turn.ask("Which boat?", key="boat")
    async with turn.connect(other) as remote:
        await remote.send("hi", key="help")
    async with turn.stream("report") as stream:
        for _ in range(30):
            await stream.write("0123456789")
    return "done"


async def charge() -> dict[str, str]:
    return {"key": "sk-planted-result"}


@agent.skill
async def breaks(turn: Turn) -> None:
    """Fails."""
    await turn.working("soon")
    raise RuntimeError("boom")


@agent.skill
async def stuck(turn: Turn) -> str:
    """Hangs in the first attempt, and ends in the second."""
    await turn.working("soon")
    await turn.step("begun", charge)  # durable, and the status before it
    if not Path("once").exists():
        Path("once").touch()
        print("attempt", flush=True)
        await asyncio.Event().wait()
    return "done"
'''


VARYING = ("webhook.delivered", "call.accepted")
SECRETS = ("sk-planted-result", "Which boat?", "the secret red", "sk-planted-url", "token-of-ada")


class Counting(SqliteAdmin):
    """Counts the steps of SQLite for each query, in hundreds."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.costs: list[int] = []

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with super()._reading() as connection:
            self.costs.append(0)

            def count() -> None:
                self.costs[-1] += 1

            connection.set_progress_handler(count, 10)
            yield connection


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(AGENT)
    if request.param == "sqlite":
        return "sqlite:///shop.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


def serving(url: str, folder: Path) -> Running:
    words = ["serve", "shop.py:agent", "--port", "0", "--store", url, "--allow-private-webhooks"]
    lease = ["--lease", "1s"] if url.startswith("postgresql") else []
    return Running([*words, *lease], folder)


def address(server: Running) -> str:
    found = re.search(r"address +(\S+)", server.until("Ctrl-C stops the server"))
    assert found
    return found[1]


async def talk(url: str) -> tuple[Task, Task, str]:
    """Order as ada, with a webhook and an answer; fail as bob. Return the tasks and a reference."""
    async with webhook() as hook, library.connect(url, auth=Bearer("token-of-ada")) as agent:
        task = await agent.send("a boat", skill="order", push=f"{hook.url}?key=sk-planted-url")
        assert task.id
        ordered = await agent.send("the secret red one", task=task)
        assert ordered.id
        await hook.until_over()
    async with library.connect(url, auth=Bearer("token-of-bob")) as agent:
        failed = await agent.send("x", skill="breaks")
        assert failed.id
        assert failed.status.message is not None
        return ordered, failed, failed.status.message.text.rpartition(" ")[2]


def events(document: Any) -> list[str]:
    return [each["event"] for each in document["timeline"]]


@pytest.mark.slow
def test_an_operator_sees_the_tasks_of_all_callers_while_they_are_served(
    parley: Any, url: str, tmp_path: Path
) -> None:
    with serving(url, tmp_path) as server:
        ordered, failed, reference = asyncio.run(talk(address(server)))
        words = ("task", "list", "--all", "--store", url)
        ran = parley(*words, "-o", "json")
        assert (ran.status, ran.stderr) == (0, "")
        assert [
            (each["taskId"], each["caller"], each["skill"], each["state"], each["attempt"])
            for each in ran.document["tasks"]
            if each["agent"] == "shop"  # the other agent may have made a task too
        ] == [
            (failed.id, "bob", "breaks", "TASK_STATE_FAILED", 1),
            (ordered.id, "ada", "order", "TASK_STATE_COMPLETED", 1),
        ]
        for chosen, task in (
            (("--caller", "ada"), ordered),
            (("--state", "failed"), failed),
            (("--context-id", ordered.context_id), ordered),
            (("--caller", "bob", "--context-id", failed.context_id), failed),
        ):
            found = parley(*words, *chosen, "-o", "json").document["tasks"]
            assert [each["taskId"] for each in found if each["agent"] == "shop"] == [task.id]
        lines = parley(*words).stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert re.fullmatch(rf"{failed.id[:16]} \d+s +failed +breaks +bob +1", lines[1])
        page = parley(*words, "--page-size", "1")
        token = page.stderr.split()[-1]
        rest = parley(*words, "--page-token", token)
        shown = [*page.stdout.splitlines()[1:], *rest.stdout.splitlines()[1:]]
        assert [line.split()[0] for line in shown] == [line.split()[0] for line in lines[1:]]
        assert rest.stderr == ""

        shown = parley("task", "show", reference, "--store", url, "-o", "json").document
        assert (shown["taskId"], shown["reference"]) == (failed.id, reference)
        assert events(shown) == ["task.created", "turn.started", "task.working", "task.failed"]
        ran = parley("task", "show", ordered.id[:16], "--store", url, "-o", "json")
        assert [each for each in events(ran.document) if each not in VARYING] == [
            "task.created", "turn.started", "step.finished", "task.input_required",
            "message.received", "task.answered", "call.sent", "call.answered", "artifact",
            "artifact", "task.completed",
        ]  # fmt: skip
        assert "webhook.delivered" in events(ran.document)
        found = {each["event"]: each for each in ran.document["timeline"]}
        assert found["task.created"]["caller"] == found["task.answered"]["caller"] == "ada"
        assert found["task.input_required"]["question"] == "boat"
        assert found["call.answered"]["call"] == "help"
        streamed = next(each for each in ran.document["timeline"] if each["event"] == "artifact")
        assert (streamed["name"], streamed["chunks"], streamed["size"]) == ("report", 30, 300)
        for words in ((), ("-o", "json")):
            shown = parley("task", "show", ordered.id, "--store", url, *words).stdout
            assert not [each for each in SECRETS if each in shown]
        contents = parley("task", "show", ordered.id, "--store", url, "--contents").stdout
        folded = " ".join(contents.split())
        assert [each for each in SECRETS if each in folded] == list(SECRETS[:3])
        for line in contents.splitlines():
            assert len(line) <= 80, line
        assert server.end(signal.SIGTERM) == 0


@pytest.mark.slow
def test_a_killed_server_leaves_two_attempts_in_the_timeline(
    parley: Any, url: str, tmp_path: Path
) -> None:
    with serving(url, tmp_path) as server:
        at = address(server)

        async def begin() -> Task:
            async with library.connect(at, auth=Bearer("token-of-ada")) as agent:
                task = await agent.send("x", skill="stuck", return_immediately=True)
                assert task.id
                return task

        task = asyncio.run(begin())
        server.until("attempt")
        shown = parley("task", "show", task.id, "--store", url, "-o", "json").document
        assert (shown["state"], shown["attempt"]) == ("TASK_STATE_WORKING", 1)
        assert shown["leaseOwner"]
        server.end(signal.SIGKILL)
    with serving(url, tmp_path) as server:
        server.until('"event":"completed"')
        assert '"event":"began again"' in server.stderr
        ran = parley("task", "show", task.id, "--store", url)
        assert ran.field("Attempt") == "2 of turn 1"
        assert re.search(r"turn.retried +turn 1, attempt 2\n", ran.stdout)
        shown = parley("task", "show", task.id, "--store", url, "-o", "json").document
        assert (shown["state"], shown["leaseOwner"]) == ("TASK_STATE_COMPLETED", "")
        assert server.end(signal.SIGTERM) == 0


# -- errors, and growth ----------------------------------------------------------------------------


async def fill(store: SqliteTaskStore, tasks: int) -> None:
    """Store ended tasks of ten callers."""
    await store.open(lambda records: None)
    for n in range(tasks):
        task_id, scope = f"task-{n:09}", Scope("shop", owner=f"caller-{n % 10}")
        await store.append(creation(task_id, scope=scope))
        ended = status(task_id, TaskState.COMPLETED)
        await store.append(addition(task_id, 1, ended, turn_open=False))
    await store.close()


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("list", "--all", "-a", "http://x"), 2, "calls no agent: leave out -a"),
        (("list", "http://x", "--all"), 2, "calls no agent: leave out -a"),
        (("list", "--all", "--artifacts"), 2, "leave out --artifacts"),
        (("list", "--all", "--page-token", "x"), 2, "is not a token"),
        (("list", "--all", "--store", "memory:"), 2, "only the process of a memory: store"),
        (("list", "--all", "--store", "sqlite:///none.db"), 1, "there is no store at"),
        (("list", "--caller", "ada", "-a", "http://x"), 2, "--caller applies to --all"),
        (("list", "--store", "sqlite:///x.db"), 2, "--store applies to --all"),
        (("show", "task"), 2, "is too short"),
        (("show", "task-0000"), 2, "is of several tasks: task-000000000, task-000000001"),
        (("show", "01a22c5d6cfc7000-27aa"), 1, "no task with the id or the reference"),
        (("show", "27aa01a22c5d"), 1, "a reference without a dash is of a request without a task"),
    ],
)
def test_what_cannot_be_shown_is_said(
    parley: Any, tmp_path: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    asyncio.run(fill(SqliteTaskStore(tmp_path / "parley.db"), 12))
    ran = parley("task", *words)
    assert (ran.status, ran.stdout) == (status, "")
    assert said in ran.stderr


def test_a_page_and_a_task_cost_the_same_however_many_tasks_there_are(tmp_path: Path) -> None:
    costs: dict[int, list[int]] = {}
    for tasks in (60, 600):
        path = tmp_path / f"{tasks}.db"
        asyncio.run(fill(SqliteTaskStore(path), tasks))
        admin = Counting(path)
        last = f"task-{tasks - 1:09}"
        assert admin.tasks(TaskFilter(), 5)[0].task_id == last
        assert admin.tasks(TaskFilter(caller="caller-9"), 5)[0].task_id == last
        assert admin.tasks(TaskFilter(context_id=f"context-{last}"), 5)[0].task_id == last
        assert [each.task_id for each in admin.tasks_named(last[:-1])][-1] == last
        costs[tasks] = admin.costs
    for few, many in zip(*costs.values(), strict=True):
        assert many <= 1.2 * few, costs
