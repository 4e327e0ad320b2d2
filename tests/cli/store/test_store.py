"""``parley store``: commands that show and change a store."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from pathlib import Path

import pytest

from parley.cli.commands.store import format_age, format_size, parse_age
from parley.cli.output.failures import UsageFailure
from parley.cli.store import transfer
from parley.model.tasks import TaskState
from parley.store.events import Scope
from parley.store.protocols.tables import Receipt
from parley.store.sql import migrations
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.records import addition, chunk, creation, message, received, status

SCHEMA = migrations("sqlite")[-1].version
DAY = 86_400_000
NOW = 1_800_000_000_000


async def fill(path: Path) -> None:
    """Fill a store: an agent has two ended tasks and a waiting one; another has unfinished work."""
    moments = [NOW]
    store = SqliteTaskStore(path, clock=lambda: moments[0])
    await store.open(lambda records: None)
    shop = Scope("shop", owner="ada")
    for n, age in enumerate((40, 20)):
        moments[0] = NOW - age * DAY
        receipts = [Receipt(f"m{n}", b"digest", f"ended-{n}", 1)]
        await store.append(creation(f"ended-{n}", chunk(f"ended-{n}", "x"), scope=shop))
        await store.keep(shop, f"context-{n}", receipt=receipts[0], exchange=[message("hi")])
        event = status(f"ended-{n}", TaskState.COMPLETED)
        await store.append(addition(f"ended-{n}", 2, event, turn_open=False))
    moments[0] = NOW - 60 * DAY
    await store.append(creation("waits", scope=shop))
    event = status("waits", TaskState.INPUT_REQUIRED)
    await store.append(addition("waits", 1, event, turn_open=False))
    await store.append(creation("works", scope=Scope("bank"), turn_open=False))
    await store.append(addition("works", None, received("more")))
    await store.close()


@pytest.fixture
def shop(tmp_path):
    asyncio.run(fill(tmp_path / "shop.db"))
    return "sqlite:///shop.db"


def test_a_store_is_described(parley, shop):
    ran = parley("store", "status", "--store", shop)
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.field("Store").endswith("shop.db")
    assert ran.field("Schema") == f"version {SCHEMA}, up to date"
    assert ran.field("Tasks") == "4"
    assert ran.field("Tasks of shop") == "2 completed, 1 input-required"
    assert ran.field("Tasks of bank") == "1 submitted"
    assert ran.field("Unclaimed").startswith("1 of bank, the oldest since ")
    assert ran.field("Held") == ran.field("Webhooks") == "none"
    assert (ran.field("Contexts"), ran.field("Receipts")) == ("2", "2")
    found = parley("store", "status", "--store", shop, "-o", "json").document
    assert found["tasks"]["shop"] == {"TASK_STATE_COMPLETED": 2, "TASK_STATE_INPUT_REQUIRED": 1}
    [work] = found["work"]
    assert (work["agent"], work["held"], work["tasks"]) == ("bank", False, 1)
    assert "replicas" not in found


def test_a_store_is_made_and_brought_up_to_date(parley, tmp_path):
    store = ("--store", "sqlite:///new.db")
    ran = parley("store", "migrate", *store, "--check")
    assert (ran.status, ran.field("Schema")) == (1, "none")
    assert not (tmp_path / "new.db").exists()
    ran = parley("store", "migrate", *store, "-o", "json")
    assert ran.status == 0
    assert [step["version"] for step in ran.document["done"]] == [*range(1, SCHEMA + 1)]
    ran = parley("store", "migrate", *store)
    assert (ran.status, ran.field("Schema")) == (0, f"version {SCHEMA}, up to date")
    assert "Done" not in ran.stdout
    assert parley("store", "migrate", *store, "--check").status == 0


def test_an_older_store_is_said_to_be_one(parley, shop, tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("DELETE FROM schema_versions WHERE version = ?", (SCHEMA,))
    connection.close()
    ran = parley("store", "status", "--store", shop)
    assert ran.field("Schema") == f"version {SCHEMA - 1}; {SCHEMA} is needed"
    assert "parley store migrate" in ran.stderr
    for command in (("export", "x"), ("prune", "--ended-before", "1d")):
        ran = parley("store", *command, "--store", shop)
        assert ran.status == 1
        needed = f"schema version {SCHEMA - 1}, but this version of Parley needs {SCHEMA}"
        assert needed in ran.stderr
        assert "parley store migrate updates it" in ran.stderr


@pytest.mark.slow
def test_a_store_is_moved(parley, shop, tmp_path):
    ran = parley("store", "export", "all.jsonl", "--store", shop)
    assert ran.field("Exported") == ("2 contexts, 2 messages, 2 receipts, 4 tasks, 10 records")
    assert (tmp_path / "all.jsonl").stat().st_mode & 0o077 == 0
    ran = parley("store", "import", "all.jsonl", "--store", "sqlite:///other.db")
    assert ran.field("Imported") == "2 contexts, 2 messages, 2 receipts, 4 tasks, 10 records"
    assert "There already" not in ran.stdout
    ran = parley("store", "import", "all.jsonl", "--store", "sqlite:///other.db")
    assert ran.field("Imported") == "nothing"
    assert ran.field("There already").startswith("2 contexts")
    ran = parley("store", "export", "again.jsonl", "--store", "sqlite:///other.db", "-o", "json")
    assert ran.document["exported"]["tasks"] == 4
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "all.jsonl").read_bytes()


@pytest.mark.slow
def test_one_agent_or_tenant_is_moved_alone(parley, shop):
    ran = parley("store", "export", "bank.jsonl", "--agent", "bank", "--store", shop)
    assert ran.field("Exported") == "1 task, 2 records"
    ran = parley("store", "export", "shop.jsonl", "--agent", "shop", "--store", shop)
    assert ran.field("Exported") == "2 contexts, 2 messages, 2 receipts, 3 tasks, 8 records"
    for file in ("bank.jsonl", "shop.jsonl"):
        assert parley("store", "import", file, "--store", "sqlite:///other.db").status == 0
    assert parley("store", "status", "--store", "sqlite:///other.db").field("Tasks") == "4"
    ran = parley("store", "export", "none.jsonl", "--tenant", "acme", "--store", shop)
    assert ran.field("Exported") == "nothing"
    ran = parley("store", "export", "none.jsonl", "--agent", "bakery", "--store", shop)
    assert ran.status == 2
    assert "no data of 'bakery'; it has bank, shop" in ran.stderr


def test_a_file_that_is_there_is_not_written_over(parley, shop, tmp_path):
    (tmp_path / "all.jsonl").write_text("mine")
    ran = parley("store", "export", "all.jsonl", "--store", shop)
    assert ran.status == 2
    assert "exists already" in ran.stderr
    assert (tmp_path / "all.jsonl").read_text() == "mine"


def test_an_export_that_fails_leaves_no_file(parley, shop, tmp_path, monkeypatch):
    def fails(*args, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(transfer, "export_to", fails)
    ran = parley("store", "export", "all.jsonl", "--store", shop)
    assert ran.status == 1
    assert "all.jsonl was not written (No space left on device)" in ran.stderr
    assert not list(tmp_path.glob("all.jsonl*"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full")
def test_an_export_to_a_full_disk_fails(shop, tmp_path):
    with Path("/dev/full").open("wb") as full:
        import subprocess

        ran = subprocess.run(
            [sys.executable, "-m", "parley.cli", "store", "export", "--store", shop],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=tmp_path,
            check=False,
            text=True,
        )
    assert ran.returncode == 1
    assert "the export is incomplete (No space left on device)" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [("shop.db", "line 1: this is no export of a store"), ("gone", "gone cannot be read (No such")],
)
def test_a_wrong_file_is_refused(parley, shop, name, words):
    ran = parley("store", "import", name, "--store", "sqlite:///other.db")
    assert ran.status == 1
    assert words in ran.stderr


@pytest.fixture
def at_that_time(monkeypatch):
    monkeypatch.setattr("parley.store.admin.sqlite.now_ms", lambda: NOW)


def test_what_ended_long_ago_is_removed(parley, shop, at_that_time):
    prune = ("store", "prune", "--store", shop, "--ended-before", "30d")
    ran = parley(*prune, "--agent", "shop", "--dry-run")
    assert ran.field("Would remove") == "1 task, 3 events, 1 receipt of shop"
    assert parley("store", "status", "--store", shop).field("Tasks") == "4"
    ran = parley(*prune, "-o", "json")
    assert ran.document["agents"] == {
        "bank": {"tasks": 0, "receipts": 0},
        "shop": {"tasks": 1, "receipts": 1},
    }
    ran = parley("store", "status", "--store", shop)
    assert ran.field("Tasks of shop") == "1 completed, 1 input-required"
    assert (ran.field("Contexts"), ran.field("Receipts")) == ("1", "1")
    assert parley(*prune, "--agent", "shop").field("Removed").startswith("0 tasks")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["status", "--store", "sqlite:///gone.db"], 1, "there is no store at "),
        (["export", "x", "--store", "sqlite:///gone.db"], 1, "there is no store at "),
        (["status", "--store", "memory:"], 2, "only the process of a memory: store can see it"),
        (["status", "--store", "mysql://ada:secret@x"], 2, "names no store"),
        (["status", "--store", "postgresql://ada:secret@127.0.0.1:1/x"], 1, "cannot be reached"),
        (["status", "--store", "postgresql://ada:secret@[/x"], 2, "is not a URL that libpq knows"),
        (["prune"], 2, "give an age, such as 30d"),
        (["prune", "--ended-before", "soon"], 2, "'soon' is not an age such as 30d"),
        (["export", "--output", "json"], 2, "name a file"),
        (["import"], 2, "Missing argument"),
        ([], 2, "Missing command"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_line(parley, shop, arguments, status, words):
    if "--store" not in arguments and arguments:
        arguments = [*arguments, "--store", shop]
    ran = parley("store", *arguments)
    assert ran.status == status
    said = ran.stderr or json.loads(ran.stdout)["error"]["message"]
    assert words in said
    assert "secret" not in said
    assert "Traceback" not in said


def test_ages_and_sizes_are_said_as_people_say_them():
    assert [parse_age(age) for age in ("30d", "1.5d", "12h", "90m")] == [
        2_592_000,
        129_600,
        43_200,
        5400,
    ]
    with pytest.raises(UsageFailure, match="--ended-before"):
        parse_age("-1d")
    assert [format_age(ms) for ms in (-5, 999, 61_000, 90_061_000)] == [
        "0s",
        "0s",
        "1m 1s",
        "1d 1h",
    ]
    assert [format_size(n) for n in (0, 999, 1500, 2_340_000, 5e12)] == [
        "0 bytes",
        "999 bytes",
        "1.5 KB",
        "2.34 MB",
        "5.0 TB",
    ]
