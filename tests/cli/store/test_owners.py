"""``parley store migrate --issuer``: records of callers without an issuer get an issuer."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from parley import Agent, CallContext, Caller, Message, Part, Retention, Role, Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import ListTasksRequest, SendMessageRequest
from parley.store.sql import migrations
from parley.store.sqlite.store import SqliteTaskStore
from tests.cli.store.test_store import fill

SCHEMA = migrations("sqlite")[-1].version

BEFORE = Path(__file__).parents[2] / "data" / "store_before_callers.jsonl"


@pytest.fixture
def shop(tmp_path):
    asyncio.run(fill(tmp_path / "shop.db"))
    return "sqlite:///shop.db"


@pytest.mark.slow
def test_what_had_no_issuer_is_given_one(parley, shop):
    given = ("store", "migrate", "--store", shop, "--issuer", "https://login.example")
    ran = parley(*given, "--check")
    assert (ran.status, ran.field("To assign")) == (1, "3 tasks, 2 contexts, 2 receipts")
    assert parley(*given, "--agent", "bank").field("Assigned") == "0 tasks, 0 contexts, 0 receipts"
    ran = parley(*given, "--tenant", "acme", "-o", "json")
    assert ran.document["assigned"] == {"tasks": 0, "contexts": 0, "receipts": 0}
    ran = parley(*given, "--agent", "shop")
    assert (ran.status, ran.field("Schema")) == (0, f"version {SCHEMA}, up to date")
    assert ran.field("Assigned") == "3 tasks, 2 contexts, 2 receipts"
    ran = parley(*given, "--check", "-o", "json")
    assert (ran.status, ran.document["unassigned"]["tasks"]) == (0, 0)
    assert parley(*given).field("Assigned") == "0 tasks, 0 contexts, 0 receipts"
    assert parley("store", "status", "--store", shop).field("Tasks of shop").startswith("2 comple")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--issuer", "a\x1fb"), "no control character"),
        (("--issuer", "x" * 513), "at most 512 bytes"),
        (("--issuer", "a", "--agent", "bakery"), "no data of 'bakery'; it has bank, shop"),
        (("--agent", "shop"), "--agent applies to --issuer only"),
        (("--tenant", "acme"), "--tenant applies to --issuer only"),
    ],
)
def test_an_issuer_that_is_none_is_refused(parley, shop, options, words):
    ran = parley("store", "migrate", "--store", shop, *options)
    assert ran.status == 2
    assert words in ran.stderr


@pytest.mark.slow
def test_a_file_of_before_there_were_issuers_is_taken_up(parley, tmp_path):
    """A version that stored no callers wrote this file; its owner bob now gets an issuer."""
    store = ("--store", "sqlite:///old.db")
    shutil.copy(BEFORE, tmp_path / "before.jsonl")
    ran = parley("store", "import", "before.jsonl", *store)
    assert ran.status == 0
    assert "3 tasks, 19 records" in ran.field("Imported")
    assert parley("store", "export", "again.jsonl", *store).status == 0
    assert (tmp_path / "again.jsonl").read_bytes().splitlines()[1:-1] == (
        BEFORE.read_bytes().splitlines()[1:-1]
    )
    before = asyncio.run(go_on(tmp_path / "old.db", Caller("bob", True)))
    assert before == ("bob", "", 3)
    ran = parley("store", "migrate", *store, "--issuer", "one")
    assert ran.field("Assigned") == "3 tasks, 2 contexts, 5 receipts"
    after = asyncio.run(go_on(tmp_path / "old.db", Caller("bob", True, issuer="one")))
    assert after == ("bob", "one", 3)


async def go_on(path: Path, bob: Caller) -> tuple[str, str, int]:
    """Repeat an old message, and ask a question of the waiting task.

    Return the caller that the agent sees, and the number of tasks.
    """
    agent = Agent("Desk", retention=Retention(history=True))

    @agent.skill
    async def ask(turn: Turn) -> str:
        await turn.ask(f"{turn.caller.id},{turn.caller.issuer}", key=turn.latest.text)
        return ""

    host = Host(placed(agent), SqliteTaskStore(path), ServerOptions(drain=0.0))
    await host.start()
    service = host.services[""]
    context = CallContext(caller=bob, extensions=frozenset({IDEMPOTENT_SEND}))

    def request(message_id: str, said: str, **more: str) -> SendMessageRequest:
        parts = (Part(text=said),)
        return SendMessageRequest(
            message=Message(message_id=message_id, role=Role.USER, parts=parts, **more)
        )

    waiting = await service.send_message(request("m-3", "chair", context_id="c-1"), context)
    answer = request(f"new {bob.issuer}", f"more {bob.issuer}", task_id=waiting.id)
    task = await service.send_message(answer, context)
    page = await service.list_tasks(ListTasksRequest(), context)
    await host.stop()
    name, _, issuer = task.status.message.text.partition(",")
    return name, issuer, page.total_size
