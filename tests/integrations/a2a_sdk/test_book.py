"""The time agent of books about 0.3.10, with its own card, and the book's client."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from tests.faults.conftest import Served
from tests.house.sizes import ROOT
from tests.peers.environments import PYTHON_0_3_ON_PARLEY

from .conftest import HERE, python_of

pytestmark = pytest.mark.anyio

BOOK = HERE / "book"
NOW = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


class BookServer(Served):
    """``parley serve on_parley.py``, in the environment of the book."""

    def __init__(self, place: Path) -> None:
        python = python_of(PYTHON_0_3_ON_PARLEY)
        path = {"PYTHONPATH": f"{ROOT / 'src'}:{BOOK}"}
        super().__init__(place / "tasks.db", python=python, env=path)

    def words(self) -> list[str]:
        """Return the command."""
        target = str(BOOK / "on_parley.py")
        where = ("--port", str(self.port), "--store", f"sqlite:///{self.store}")
        return ["-m", "parley", "serve", target, *where]


async def test_the_time_agent_of_the_book_and_its_client_run_unchanged(tmp_path: Path) -> None:
    server = BookServer(tmp_path)
    await server.start()
    try:
        client = await asyncio.create_subprocess_exec(
            *server._python, str(BOOK / "client.py"), server.url, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await asyncio.wait_for(client.communicate(), 30)
    finally:
        await server.end()
    assert client.returncode == 0
    card, reply, streamed, chinese = map(json.loads, printed.decode().splitlines())
    assert (card["name"], card["version"]) == ("Time Agent", "1.0.0")
    assert (card["url"].rstrip("/"), card["preferredTransport"]) == (server.url, "JSONRPC")
    assert card["protocolVersion"].startswith("0.3")
    assert [skill["id"] for skill in card["skills"]] == ["current_time"]
    for answer in (reply, streamed):
        message = answer["result"]
        assert (message["kind"], message["role"]) == ("message", "agent")
        assert re.fullmatch(f"The current time is {NOW}", message["parts"][0]["text"])
    assert re.fullmatch(f"现在的时间是 {NOW}", chinese["parts"][0]["text"])
