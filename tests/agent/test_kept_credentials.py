"""Stored credentials of tasks: where they are stored, for which task, and for how long."""

from __future__ import annotations

import asyncio
import base64
import logging
import sqlite3
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

import parley
from parley import Agent, TaskState, Turn
from parley.engine.authorizations import Arrived, Authorizations, CallbackClaim
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from tests.agent.test_in_task_auth import MAIL, TOKEN, asking, ended, needed, post, post_office
from tests.kit.servers import served
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio


async def test_what_is_kept_for_one_task_opens_for_no_other() -> None:
    store = MemoryTaskStore()
    await store.open(lambda _: None)
    kept = Authorizations(store, "mail")
    mine = CallbackClaim(
        agent="mail",
        tenant="",
        owner="ada",
        context_id="c",
        task_id="1",
        event="e",
        sealed_for="ada",
        caller="ada",
        kind="token",
        expires_at=store.now() + 60_000,
    )
    name = b'"slot"'
    others = (replace(mine, task_id="2"), replace(mine, event="f"), replace(mine, sealed_for="bob"))
    for other in others:
        await kept.keep(mine, name, Arrived({"access_token": TOKEN}, store.now()))
        assert await kept.arrived(mine, name) is not None
        assert await kept.arrived(other, name) is None
        assert await kept.arrived(mine, name) is None  # the failed read deleted it


@pytest.mark.slow
async def test_the_credential_is_in_no_file_no_export_and_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    agent, entered, leave = Agent("Holder"), asyncio.Event(), asyncio.Event()

    @agent.skill(replies="task")
    async def hold(turn: Turn) -> str:
        await turn.require_auth(MAIL, scopes="mail.read")
        entered.set()
        await leave.wait()
        return "done"

    @agent.skill(replies="task")
    async def break_down(turn: Turn) -> str:
        credential = await turn.require_auth(MAIL, scopes="mail.read")
        raise RuntimeError(f"no mail for {credential}")

    def found() -> list[str]:
        return [
            path.name
            for path in tmp_path.rglob("*")
            if path.is_file() and TOKEN.encode() in path.read_bytes()
        ]

    async with served(agent, store=store, drain=0.0) as remote:
        task = await asking(remote, "hold")
        await remote.authorize(task, TOKEN, return_immediately=True)
        await entered.wait()
        assert found() == []  # while the credential is stored
        assert b"urn:parley:credential:" in b"".join(
            path.read_bytes() for path in tmp_path.glob("tasks.db*") if path.is_file()
        )
        kept = await exported(store, tmp_path / "kept.jsonl")
        assert b"urn:parley:credential:" in kept
        with sqlite3.connect(tmp_path / "tasks.db") as connection:
            keys = [
                key
                for (key,) in connection.execute(
                    "SELECT value FROM rows WHERE name = 'parley.secrets'"
                )
            ]
        assert keys
        for key in keys:
            for form in (key, base64.b64encode(key).rstrip(b"="), key.hex().encode()):
                assert form not in kept
        leave.set()
        assert await ended(remote, task) == "done"
        assert TOKEN not in str(await remote.get(task.id))
        broken = await asking(remote, "break_down")
        await remote.authorize(broken, TOKEN)
        assert TOKEN not in await ended(remote, broken)
        assert "Traceback" in caplog.text
        await exported(store, tmp_path / "ended.jsonl")
    assert found() == []

    with sqlite3.connect(tmp_path / "tasks.db") as connection:
        script = "\n".join(connection.iterdump())
    assert TOKEN not in script
    assert "urn:parley:credential:" not in script  # the end of the turn deletes the credential
    assert TOKEN not in caplog.text


async def test_a_turn_that_sleeps_for_long_keeps_its_credential(tmp_path: Path) -> None:
    store, agent = SqliteTaskStore(tmp_path / "tasks.db"), Agent("Sleeper")

    @agent.skill(replies="task")
    async def sleepy(turn: Turn) -> str:
        credential = await turn.require_auth(MAIL, scopes="mail.read")
        await turn.wait_event("morning")
        return str(credential.token == TOKEN)

    async with served(agent, store=store, drain=0.0) as remote:
        task = await asking(remote, "sleepy")
        await remote.authorize(task, TOKEN, return_immediately=True)
        async with asyncio.timeout(10):
            while (await remote.get(task.id)).state is TaskState.AUTH_REQUIRED:
                await let_time_pass(0.02)
        await store.prune(agent.key, store.now() + 60_000, 100)  # as after the retention period
        await store.complete_event(agent.key, "morning", b"1")
        assert await ended(remote, task) == "True"
    with sqlite3.connect(tmp_path / "tasks.db") as connection:
        assert "urn:parley:credential:" not in "\n".join(connection.iterdump())


async def exported(store: str, path: Path) -> bytes:
    """Return the output of ``parley store export``."""
    words = ("-m", "parley.cli", "store", "export", str(path), "--store", store)
    done = await asyncio.create_subprocess_exec(sys.executable, *words)
    assert await done.wait() == 0
    return path.read_bytes()


async def test_with_another_key_the_turn_asks_again(tmp_path: Path) -> None:
    store, agent = f"sqlite:///{tmp_path / 'tasks.db'}", post_office()

    def app(key: str) -> Any:
        return parley.asgi(agent, store=store, drain=0.0, secret_key=key * 32)

    async with serving(app("a")) as url, parley.connect(url) as remote:
        task = await asking(remote)
    async with serving(app("b")) as url, parley.connect(url) as remote:
        path = urlsplit(needed(task).callback).path
        assert await post(url + path, {"access_token": TOKEN}) == 404
    async with serving(app("a")) as url, parley.connect(url) as remote:
        assert await post(url + path, {"access_token": TOKEN}) == 204
        assert (await ended(remote, task)).startswith("True")
    with pytest.raises(ValueError, match="32 characters"):
        parley.asgi(agent, secret_key="short")
