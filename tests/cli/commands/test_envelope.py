"""``parley envelope``: requests, streams and what comes by itself, as text and as JSON."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

import parley as package
from parley import Agent, Caller, Turn
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.server.services import HeartbeatSettings
from parley.security import Bearer
from parley.server.run import serving

agent = Agent("Desk", description="Answers", version="1.0.0")


class Search(msgspec.Struct):
    """What to look for."""

    query: str


@agent.skill
async def search(turn: Turn, wanted: Search) -> list[dict[str, str]]:
    """Finds articles."""
    return [{"title": f"about {wanted.query}"}]


@agent.skill
async def browse(turn: Turn) -> list[dict[str, str]]:
    """Finds nothing."""
    return []


@agent.skill(replies="task")
async def report(turn: Turn) -> str:
    """Writes a report."""
    await turn.working("reading")
    return "all is well"


@agent.skill(replies="task")
async def book(turn: Turn) -> str:
    """Books a table."""
    answer = await turn.ask("For how many?")
    return f"booked for {answer.text}"


@contextmanager
def served(agents: Agent = agent, **options: Any) -> Iterator[str]:
    addresses: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(package.asgi(agents, drain=0, **options)) as address:
            addresses.append(address)
            ready.set()
            await asyncio.to_thread(over.wait)

    with ThreadPoolExecutor(1) as pool:
        serves = pool.submit(asyncio.run, serve())
        serves.add_done_callback(lambda _: ready.set())
        assert ready.wait(10)
        try:
            yield addresses[0]
        finally:
            over.set()
            serves.result(10)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served() as address:
        yield address


Parley = Callable[..., Any]


def test_a_query_prints_its_results(parley: Parley, url: str, tmp_path: Path) -> None:
    ran = parley("envelope", "send", url, "search", "--parameters", '{"query": "tides"}')
    assert (ran.status, ran.stderr) == (0, "")
    assert ran.field("Status") == "success"
    assert json.loads(ran.field("Result")) == {"title": "about tides"}
    (tmp_path / "query.json").write_text('{"query": "boats"}')
    for more in ((), ("--http",)):
        words = ("send", f"{url}/envelope", "search", "-p", "@query.json", "-o", "json")
        ran = parley("envelope", *words, *more)
        assert ran.status == 0
        assert ran.document["message"]["type"] == "RESPONSE"
        assert ran.document["payload"]["results"] == [{"title": "about boats"}]


def test_a_stream_prints_events_and_a_question_the_next_command(parley: Parley, url: str) -> None:
    ran = parley("envelope", "send", url, "report", "--stream", "--sub-type", "command", "-ojson")
    assert ran.status == 0
    statuses = [line["payload"]["status"] for line in ran.lines]
    assert statuses[0] == "accepted"
    assert statuses[-1] == "success"
    assert "partial" in statuses
    asked = parley("envelope", "send", url, "book")
    assert asked.field("Status") == "input-required"
    assert "For how many?" in asked.stdout
    task = asked.field("Task")
    next_command = f"""envelope send --task-id {task} {url} book --parameters '"<reply>"'"""
    assert asked.field("Next").endswith(next_command)
    ran = parley("envelope", "send", "--task-id", task, url, "book", "-p", '"four"')
    assert ran.field("Result") == "booked for four"


def test_the_agent_is_named_as_for_every_other_command(
    parley: Parley, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "card.json").write_text(parley("card", "get", url, "-o", "json").stdout)
    with urlopen(f"{url}/envelope/card") as answer:
        (tmp_path / "envelope.json").write_bytes(answer.read())
    entry = {
        "identifier": "urn:air:example.com:agent:desk",
        "displayName": "Desk",
        "type": "application/a2a-agent-card+json",
        "url": f"{url}/.well-known/agent-card.json",
    }
    catalog = tmp_path / "catalog.json"
    catalog.write_text(json.dumps({"specVersion": "1.0", "entries": [entry]}))
    host = url.removeprefix("http://")
    for words in (
        (url, "browse"),
        ("-a", url, "browse"),
        (host, "browse"),
        (f"{host}/envelope", "browse"),
        ("card.json", "browse"),
        ("envelope.json", "browse"),
        (entry["identifier"], "browse", "--registry", str(catalog)),
    ):
        ran = parley("envelope", "send", *words)
        assert (ran.status, ran.field("Results")) == (0, "none"), (words, ran.stderr)
    monkeypatch.setenv("A2ACLI_AGENT_CARD", url)
    ran = parley("envelope", "send", "browse")
    assert ran.status == 0, ran.stderr


def test_a_query_that_finds_nothing_says_so(parley: Parley, url: str) -> None:
    ran = parley("envelope", "send", url, "browse")
    assert ran.field("Status") == "success"
    assert ran.field("Results") == "none"


def test_a_command_and_a_notification_print_that_they_began(parley: Parley, url: str) -> None:
    ran = parley("envelope", "send", url, "report", "--type", "command")
    assert ran.field("Status") == "accepted"
    assert ran.field("Task")
    ran = parley("envelope", "send", url, "report", "--sub-type", "notification")
    assert ran.stdout == "Status: sent\n"


def test_failures_have_the_exit_statuses_of_the_other_commands(parley: Parley, url: str) -> None:
    ran = parley("envelope", "send", url, "nothing", "-o", "json")
    assert ran.status == 1
    assert ran.error["code"] == "UnknownAction"
    ran = parley("envelope", "send", url, "search", "-p", "{}")
    assert ran.status == 1
    assert "query" in ran.stderr
    ran = parley("envelope", "send", f"{url}/elsewhere", "search")
    assert ran.status == 3
    assert "hint: name an agent by a host" in ran.stderr  # there is no option -a
    assert parley("envelope", "send", "http://127.0.0.1:9", "search").status == 3
    assert parley("envelope", "send", "ws://127.0.0.1:9/envelope", "search").status == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("send", "URL", "x", "--sub-type", "order"),
            "--sub-type: 'order' is not one of query, command, notification",
        ),
        (
            ("send", "URL", "x", "--priority", "now"),
            "--priority: 'now' is not one of low, normal, high, urgent",
        ),
        (("send", "URL"), "name the action"),
        (("send", "URL", "x", "-a", "URL"), "the agent is named twice"),
        (("send", "URL", "x", "-p", "{nope"), "--parameters is not JSON"),
        (("send", "URL", "x", "-p", "@missing.json"), "missing.json cannot be read"),
        (("send", "URL", "x", "--type", "notification", "--stream"), "no answer"),
        (("send", "URL", "x", "--signing-key", "key.json"), "no key that signs messages"),
        (("listen", "URL", "--register", "key.json"), "not an envelope card"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else None,
)
def test_misuse_is_refused(
    parley: Parley, url: str, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    (tmp_path / "key.json").write_text('{"kty": "RSA", "owner": "x", "kid": "k", "k": "hidden"}')
    ran = parley("envelope", *[url if each == "URL" else each for each in arguments])
    assert ran.status == 2
    assert words in ran.stderr
    assert "hidden" not in ran.stderr


def test_messages_are_signed_with_the_key_of_a_file(parley: Parley, tmp_path: Path) -> None:
    for name in ("shared", "unknown"):
        made = parley("keys", "share", f"{name}.json", "--owner", name, "--to", f"{name}-key.json")
        assert made.status == 0, made.stderr
    query = ("search", "-p", '{"query": "x"}')
    with served(bindings=[EnvelopeBinding(keys=str(tmp_path / "shared.json"))]) as address:
        ran = parley("envelope", "send", address, *query, "--signing-key", "shared-key.json")
        assert ran.status == 0, ran.stderr
        ran = parley("envelope", "send", address, *query, "--signing-key", "unknown-key.json")
        assert ran.status == 4
        assert "SIGNATURE_INVALID" in ran.stderr
        ran = parley("envelope", "send", address, *query, "--agent-id", "shared")
        assert ran.status == 4
        assert "hint: --signing-key PATH" in ran.stderr


def test_a_sender_that_is_another_is_told_what_its_id_needs(parley: Parley) -> None:
    keyed = Agent("Keyed", security=Bearer({"a-token": Caller(id="alice")}.get))
    keyed.skill(search)
    with served(agents=keyed) as address:
        asked = ("search", "-p", '{"query": "x"}', "--bearer", "a-token", "--agent-id", "bob")
        ran = parley("envelope", "send", address, *asked)
    assert ran.status == 4
    assert "hint: the sender's id (--agent-id" in ran.stderr


def test_what_comes_by_itself_is_printed(parley: Parley) -> None:
    options = EnvelopeBinding(heartbeats=HeartbeatSettings(interval=0.05))
    with served(bindings=[options]) as address:
        ran = parley("envelope", "listen", address, "--count", "2", "-o", "json")
    assert ran.status == 0
    assert [line["message"]["type"] for line in ran.lines] == ["HEARTBEAT", "HEARTBEAT"]
