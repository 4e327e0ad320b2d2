"""Log records of a server: their fields, the access log, and secrets that they never show."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
from pathlib import Path

import pytest

import parley
from parley import Agent, CardDetails
from parley.host.options import ServerOptions, secrets_of
from parley.observe.logs import ContextFields
from parley.security import exposed_secrets
from parley.security.exposed_secrets import hide_secrets, masked
from parley.server import observed
from parley.server.run import serving
from tests.kit.http import JSON, ask
from tests.kit.processes import Running
from tests.kit.servers import WAYS, served
from tests.server.envelope.speaking import request

pytestmark = pytest.mark.anyio

AGENT = '''
import logging
import os

from hashlib import sha256

from parley import Agent, Turn
from parley.model.service import Caller
from parley.security import ApiKey

log = logging.getLogger("shop")
key = sha256(b"pl4nted-api-key-1").hexdigest()
agent = Agent("Shop", security=ApiKey(keys={key: Caller(id="alice")}))


@agent.skill
async def keep(turn: Turn) -> str:
    """Logs what it should not."""
    async with turn.stream("out") as out:
        await out.write("pl4nted-artifact")
    log.warning("with Bearer %s and key %s", "pl4nted.bearer.token1", os.environ["MODEL_API_KEY"])


@agent.skill
def broken(text: str) -> str:
    """Fails with a secret in its exception."""
    raise RuntimeError("cannot log in, password: pl4nted-pass-word1")
'''
SECRETS = {
    "PARLEY_SECRET_KEY": "pl4nted-secret-key-0123456789abcdef",
    "MODEL_API_KEY": "pl4nted-model-key-1",
}


@pytest.mark.slow
@pytest.mark.parametrize("log_format", ["json", "text"])
async def test_no_planted_secret_or_content_is_in_anything_that_a_server_writes(
    tmp_path: Path, log_format: str
) -> None:
    (tmp_path / "shop.py").write_text(AGENT)
    words = [
        "serve", "shop.py", "--port", "0", "--store", "sqlite:///tasks.db", "--metrics",
        "--access-log", "--log-level", "debug", "--log-format", log_format,
        "--allow-private-webhooks",
    ]  # fmt: skip
    with Running(words, tmp_path, **SECRETS) as server:
        url = server.until("Ctrl-C").partition("address")[2].split()[0]
        async with parley.connect(url, headers={"X-API-Key": "pl4nted-api-key-1"}) as remote:
            await remote.send("pl4nted-content", skill="keep")
            await remote.send("pl4nted-content", skill="broken", push="http://127.0.0.1:1/pl4nted")
        await ask(url, "GET", "/tasks?api_key=pl4nted-query-key1")
        await ask(url, "GET", "/tasks", b"", {"Authorization": "Bearer pl4nted-bad-token-1"})
        metrics = (await ask(url, "GET", "/metrics")).body.decode()
        await asyncio.to_thread(server.end, signal.SIGINT)
    written = server.output["stdout"] + server.output["stderr"]
    assert "with Bearer" not in written
    assert written.count("hidden: credentials of HTTP") == 1
    assert written.count("hidden: a password or key") >= 1
    assert [line for line in written.splitlines() if "pl4nted" in line] == []
    assert "pl4nted" not in metrics
    if log_format == "json":
        lines = [json.loads(line) for line in server.output["stderr"].splitlines()]
        [kept] = [line for line in lines if line["logger"] == "shop"]
        assert {"task_id", "context_id", "message_id", "skill"} <= kept.keys()
        assert kept["caller"] == "alice"
        assert any(line["logger"] == "parley.audit.lines" for line in lines)
        calls = [line for line in lines if line["logger"] == "parley.access"]
        sent = [line for line in calls if line["operation"] == "SendMessage"]
        assert [line["skill"] for line in sent] == ["keep", "broken"]
        assert [line["state"] for line in sent] == ["TASK_STATE_COMPLETED", "TASK_STATE_FAILED"]
        assert all(0 < line["duration"] < 60 and line["caller"] == "alice" for line in sent)
        assert "UnauthenticatedError" in [line["error"] for line in calls]


async def test_a_record_of_a_thread_has_the_fields_of_its_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent("Fields")

    @agent.skill
    def work(text: str) -> str:
        logging.getLogger("mine").warning("hello", extra={"skill": "its own"})
        return text

    caplog.handler.addFilter(fields := ContextFields())
    try:
        async with parley.connect(agent) as remote:
            await remote.send("x")
    finally:
        caplog.handler.removeFilter(fields)
    [record] = [vars(each) for each in caplog.records if each.name == "mine"]
    assert record["message_id"]
    assert (record["agent"], record["skill"]) == ("fields", "its own")


async def test_the_access_log_is_off_until_it_is_set(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observed.access, "level", logging.NOTSET)
    caplog.set_level(logging.DEBUG)
    agent = Agent("Quiet")

    @agent.skill
    async def say(text: str) -> str:
        return text

    async with parley.connect(parley.asgi(agent)) as remote:
        await remote.send("x")
    assert not [each for each in caplog.records if each.name == "parley.access"]
    async with parley.connect(parley.asgi(agent, access_log=True)) as remote:
        await remote.send("x")
    [record] = [vars(each) for each in caplog.records if each.name == "parley.access"]
    assert (record["operation"], record["skill"], record["system"]) == (
        "SendMessage", "say", "jsonrpc",
    )  # fmt: skip


_WITH_TASK = {"GetTask", "SendMessage", "SendStreamingMessage"}


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_the_access_log_names_the_task_of_each_answer(
    way: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Worker")

    @agent.skill(replies="task")
    async def work(text: str) -> str:
        return text

    async with served(agent, way=way, access_log=True) as remote:
        sent = await remote.send("x")
        caplog.clear()
        task = await remote.get(sent.id)
        immediate = await remote.send("x", return_immediately=True)
        await remote.wait(immediate)
        async for _ in remote.stream("x"):
            pass
    found = [vars(each) for each in caplog.records if each.name == "parley.access"]
    asked = [each for each in found if each["operation"] in _WITH_TASK]
    assert {each["operation"] for each in asked} == _WITH_TASK
    for each in asked:
        assert each["context_id"], each
        assert each["task_id"], each
        assert each["state"], each
    assert asked[0]["task_id"] == task.id


async def test_the_access_log_has_the_correlation_id_of_an_envelope(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = Agent("Enveloped", card=CardDetails(envelope=True))

    @agent.skill
    async def say(text: str) -> str:
        return text

    asked = request("say", "hello", id="m-1")
    asked["message"]["correlationId"] = "order-7"
    async with serving(parley.asgi(agent, access_log=True)) as url:
        assert (await ask(url, "POST", "/envelope", json.dumps(asked).encode(), JSON)).status == 200
    [record] = [vars(each) for each in caplog.records if each.name == "parley.access"]
    assert (record["correlation_id"], record["message_id"]) == ("order-7", "m-1")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "Authorization: Bearer abcdef0123456789xyz.",
            "Authorization: [hidden: credentials of HTTP]",
        ),
        ("see https://u:p4ss@host/x", "see http[hidden: a password in a URL]"),
        ("GET /x?api_key=abc&y=1", "GET /x[hidden: a credential in the query of a URL]&y=1"),
        ("-----BEGIN PRIVATE KEY-----\nabc", "[hidden: a private key]"),
        ("the skill 'say' replied to task 01a22d0fcc177000864e6556bff5ca6e", None),
        ("mentions a known-secret-1 here", "mentions a ... here"),
    ],
)
def test_masked(text: str, shown: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposed_secrets, "_known", [])
    hide_secrets(["known-secret-1", "x"])
    assert masked(text) == (text if shown is None else shown)


def test_a_text_that_was_harmless_is_masked_once_a_secret_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exposed_secrets, "_known", [])
    monkeypatch.setattr(exposed_secrets, "_MOST_HARMLESS", 2)
    text = "mentions known-later-1"
    for each in (text, text, "one", "two", "three", text):
        assert masked(each) == each
    hide_secrets(["known-later-1"])
    assert masked(text) == "mentions ..."


def test_secrets_of_options_and_of_the_environment() -> None:
    options = ServerOptions(store="postgresql://u:pass-of-store@host/d", secret_key="s" * 32)
    environment = {
        "OPENAI_API_KEY": "k-1", "PARLEY_TOKEN": "word", "DB_PASSWORD": "secretly",
        "PATH": "/bin", "SORT_KEY": "created",
    }  # fmt: skip
    found = secrets_of(options, environment)
    assert {"pass-of-store", "s" * 32, "k-1", "word", "secretly"} <= {*found}
    assert not {"/bin", "created"} & {*found}
