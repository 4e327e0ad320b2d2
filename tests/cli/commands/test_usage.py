"""``parley usage``, and the usage and limit options of ``parley serve``."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
import urllib.error
import urllib.request

import pytest

from parley.engine.turn.usage import day_name
from parley.security.limits.usage import UsageRow
from parley.store.admin.sqlite import SqliteAdmin
from parley.store.sqlite.store import SqliteTaskStore
from tests.kit.processes import Running
from tests.kit.waiting import until

TODAY = int(time.time()) // 86_400
STORE = ("--store", "sqlite:///shop.db")
ROW = UsageRow(
    day=TODAY - 1, agent="shop", caller="id\x1fada", skill="ask", messages=2, tasks=1, run_ms=1500
)
AGENT = """
from parley import Agent

agent = Agent("Shop")

@agent.skill
def ask(text: str) -> str:
    return text
"""


@pytest.fixture
def shop(tmp_path):
    """A store with some usage records."""
    SqliteAdmin(tmp_path / "shop.db").migrate()

    async def add() -> None:
        store = SqliteTaskStore(tmp_path / "shop.db")
        await store.open(lambda records: None)
        await store.add_usage([ROW, UsageRow(day=TODAY, agent="other", requests=7)])
        await store.close()

    asyncio.run(add())
    return tmp_path / "shop.db"


def test_usage_is_shown_by_day_and_caller(parley, shop):
    ran = parley("usage", "--since", day_name(TODAY - 4), *STORE)
    assert ran.status == 0
    lines = [line.split() for line in ran.stdout.splitlines()]
    assert [
        day_name(TODAY - 1),
        "id:ada",
        "shop",
        "ask",
        "0",
        "0",
        "2",
        "1",
        "0",
        "bytes",
        "1.5s",
    ] in lines


def test_usage_is_selected_and_shown_as_json(parley, shop):
    ran = parley(
        *("usage", "--since", day_name(TODAY - 4), "--caller", "ada", "--agent", "shop"),
        *(*STORE, "-o", "json"),
    )
    document = json.loads(ran.stdout)
    assert document["since"] == day_name(TODAY - 4)
    assert document["usage"] == [
        {
            "day": day_name(TODAY - 1),
            "agent": "shop",
            "tenant": "",
            "caller": "ada",
            "issuer": "id",
            "client": "",
            "skill": "ask",
            "requests": 0,
            "refusals": 0,
            "messages": 2,
            "tasks": 1,
            "outputBytes": 0,
            "runSeconds": 1.5,
        }
    ]
    ran = parley("usage", "--caller", "eve", *STORE, "-o", "json")
    assert json.loads(ran.stdout)["usage"] == []


@pytest.mark.parametrize("given", [("--since", "yesterday"), ("--store", "memory:")])
def test_what_cannot_be_shown_is_refused(parley, shop, given):
    ran = parley("usage", *STORE, *given)
    assert ran.status == 2
    assert given[0] in ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
@pytest.mark.anyio
async def test_usage_that_was_stored_survives_a_kill(parley, tmp_path):
    (tmp_path / "shop.py").write_text(AGENT)
    limits = {"PARLEY_LIMITS": "3/hour per caller; 5 streams per caller"}
    arguments = ("serve", "shop.py", "--port", "0", "--usage", *STORE)

    def stored():
        ran = parley("usage", *STORE, "-o", "json")
        return ran.document["usage"] if ran.status == 0 else []

    with Running(arguments, tmp_path, **limits) as server:
        shown = server.until("Ctrl-C stops the server")
        url = re.search(r"address +(\S+)", shown)[1]
        found = [await asyncio.to_thread(send, url) for _ in range(5)]
        assert found == [200, 200, 200, 429, 429]
        await until(lambda: any(row["requests"] == 5 for row in stored()), 20, 0.2)
        server.end(signal.SIGKILL)
    assert [row["refusals"] for row in stored() if row["requests"]] == [2]


def send(address: str) -> int:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    request = urllib.request.Request(
        address,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "A2A-Version": "1.0"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
