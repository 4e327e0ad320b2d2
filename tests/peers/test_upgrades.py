"""Clients that request HTTP/2 over plain HTTP, as Java's and ``curl --http2`` do."""

from __future__ import annotations

import asyncio
import json
import shutil
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import parley
from parley import Caller
from parley.server.run import serving
from tests.contract.agents import contract

pytestmark = pytest.mark.anyio

CLIENT = Path(__file__).parent / "clients" / "jdk" / "Client.java"
BOUND = 60.0
WAYS = [(binding, version) for binding in ("JSONRPC", "HTTP+JSON") for version in ("1.0", "0.3")]
LARGE = "large " * 35_000  # more than 200 KB


class Place(NamedTuple):
    """Our server, and its requests: the client port and the headers of each."""

    url: str
    had: list[tuple[int, dict[bytes, bytes]]]

    def asked_for_more(self) -> list[bool]:
        """Return whether each request, except for cards, asked for a protocol upgrade."""
        return [b"http2-settings" in headers for _, headers in self.had]


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    """Run a server for one test."""
    had: list[tuple[int, dict[bytes, bytes]]] = []

    def note(scope: Any) -> Caller:
        had.append((scope["client"][1], dict(scope["headers"])))
        return Caller()

    async with serving(parley.asgi(contract, caller=note, drain=0.0)) as url:
        yield Place(url, had)


class Answer(NamedTuple):
    """The response to one request; the body of a stream is empty."""

    status: int
    protocol: str
    type: str
    body: str
    events: list[Any]

    @property
    def said(self) -> str:
        """The text of the message in the response."""
        return words_of(json.loads(self.body))


def words_of(value: Any) -> str:
    """Return every text of the parts of a response or an event, in either version."""
    if isinstance(value, dict):
        parts = value.get("parts", value.get("content"))
        if isinstance(parts, list):
            return "".join(part.get("text", "") for part in parts)
        return "".join(words_of(each) for name, each in value.items() if name != "history")
    return ""


class Jdk:
    """The JDK's own client, in a separate process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def renew(self) -> None:
        """Use new connections from now on."""
        self._write("new")

    async def ask(self, *fields: str) -> Answer:
        """Let it send one request."""
        self._write("\t".join(fields))
        events = []
        assert self._process.stdout is not None
        while True:
            line = await asyncio.wait_for(self._process.stdout.readline(), BOUND)
            assert line, "the client ended; does java run source files (a JDK of 11 or later)?"
            read = json.loads(line)
            assert "error" not in read, read
            if "status" in read:
                return Answer(**read, events=events)
            events.append(json.loads(read["event"]))

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")


@pytest.fixture(scope="module")
async def jdk() -> AsyncIterator[Jdk]:
    """The JDK's client, if a JDK is installed."""
    java = shutil.which("java")
    if java is None:
        pytest.skip("java is not installed (a JDK of 17 or later)")
    process = await create_subprocess_exec(java, str(CLIENT), stdin=PIPE, stdout=PIPE, limit=2**22)
    assert process.stdin is not None
    yield Jdk(process)
    process.stdin.close()
    await asyncio.wait_for(process.wait(), BOUND)


@pytest.mark.parametrize(("binding", "version"), WAYS)
@pytest.mark.parametrize("how", ["send", "chunked", "expect"])
async def test_the_first_request_of_javas_client_keeps_its_body(jdk, place, how, binding, version):
    for text in ("hello", LARGE.strip()):
        jdk.renew()
        answer = await jdk.ask(how, place.url, binding, version, f"say {text}")
        assert (answer.status, answer.protocol, answer.said) == (200, "HTTP_1_1", text)
    assert place.asked_for_more() == [True, True]


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_javas_client_reads_a_stream_to_its_end(jdk, place, binding, version):
    jdk.renew()
    answer = await jdk.ask("stream", place.url, binding, version, "chunks please")
    assert (answer.status, answer.type) == (200, "text/event-stream")
    assert "".join(map(words_of, answer.events)) == "one two three"
    assert "completed" in json.dumps(answer.events[-1]).lower()
    # A rejected stream is an error with a message.
    refused = await jdk.ask("stream", place.url, binding, "7.0", "chunks please")
    assert (refused.events, "'7.0'" in refused.body) == ([], True)
    assert place.asked_for_more()[0] is True


async def test_javas_client_does_many_requests_on_one_connection(jdk, place):
    jdk.renew()
    for n in range(3):
        for binding, version in WAYS:
            for how in ("send", "chunked", "expect"):
                answer = await jdk.ask(how, place.url, binding, version, f"say {n}")
                assert (answer.status, answer.said) == (200, str(n))
            streamed = await jdk.ask("stream", place.url, binding, version, "work please")
            assert len(streamed.events) > 2
        large = await jdk.ask("send", place.url, "JSONRPC", "1.0", f"say {LARGE}")
        assert (large.status, large.said) == (200, LARGE)
    assert len({port for port, _ in place.had}) == 1
    assert place.asked_for_more()[0] is True


async def test_javas_client_reads_the_card(jdk, place):
    for _ in range(2):
        jdk.renew()
        answer = await jdk.ask("card", place.url)
        assert (answer.status, json.loads(answer.body)["name"]) == (200, "Contract agent")


# -- curl -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
async def curl() -> str:
    """Return the path of curl, if it supports HTTP/2."""
    path = shutil.which("curl")
    if path is None:
        pytest.skip("curl is not installed")
    version = await create_subprocess_exec(path, "--version", stdout=PIPE)
    if b"HTTP2" not in (await version.communicate())[0]:
        pytest.skip("curl is installed without HTTP/2")
    return path


async def told(curl: str, *words: str, body: str = "") -> list[tuple[int, str, int, str]]:
    """Return the output of ``curl --http2``: status, version, new connections and body by URL."""
    form = "\x1e%{http_code} %{http_version} %{num_connects}\x1d"
    process = await create_subprocess_exec(
        curl, "--http2", "-sS", "-w", form, *words, stdin=PIPE, stdout=PIPE
    )
    async with asyncio.timeout(BOUND):
        output, _ = await process.communicate(body.encode())
    assert process.returncode == 0
    found = []
    for each in output.decode().split("\x1d")[:-1]:
        text, _, facts = each.rpartition("\x1e")
        status, version, connections = facts.split()
        found.append((int(status), version, int(connections), text))
    return found


def posting(binding: str, version: str, text: str, verb: str = "send") -> tuple[str, str]:
    """Return the path and the body of a message."""
    if version == "1.0":
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
        method, prefix = ("SendMessage", "") if verb == "send" else ("SendStreamingMessage", "")
    else:
        parts = [{"kind": "text", "text": text}]
        message = {"kind": "message", "messageId": "m", "role": "user", "parts": parts}
        method, prefix = f"message/{verb}", "/v1"
    params = {"message": message}
    if binding == "JSONRPC":
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return "/", json.dumps(call)
    return f"{prefix}/message:{verb}", json.dumps(params)


def data(version: str) -> list[str]:
    """Return the options for curl to post its input."""
    names = {"A2A-Version": version, "Content-Type": "application/json"}
    headers = [word for name, value in names.items() for word in ("-H", f"{name}: {value}")]
    return [*headers, "--data-binary", "@-"]


MORE = {
    "plainly": [],
    "in chunks": ["-H", "Transfer-Encoding: chunked"],
    "when told to": ["-H", "Expect: 100-continue"],
}


@pytest.mark.parametrize(("binding", "version"), WAYS)
@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
async def test_curl_that_asks_for_http_2_keeps_its_body(curl, place, more, binding, version):
    for text in ("hello", LARGE):
        path, body = posting(binding, version, f"say {text}")
        url = place.url + path
        answers = await told(curl, *data(version), *more, url, url, body=body)
        assert [(a[0], a[1], a[2]) for a in answers] == [(200, "1.1", 1), (200, "1.1", 0)]
        assert [words_of(json.loads(a[3])) for a in answers] == [text, text]
    assert all(place.asked_for_more()[::2])


@pytest.mark.parametrize(("binding", "version"), WAYS)
async def test_curl_reads_a_stream_to_its_end(curl, place, binding, version):
    path, body = posting(binding, version, "chunks please", "stream")
    [answer] = await told(curl, "-N", *data(version), place.url + path, body=body)
    events = [json.loads(line[5:]) for line in answer[3].splitlines() if line.startswith("data:")]
    assert "".join(map(words_of, events)) == "one two three"
    assert "completed" in json.dumps(events[-1]).lower()
    assert place.asked_for_more() == [True]


async def test_curl_reads_the_card(curl, place):
    url = f"{place.url}/.well-known/agent-card.json"
    answers = await told(curl, url, url)
    assert [(a[0], a[1], a[2]) for a in answers] == [(200, "1.1", 1), (200, "1.1", 0)]
    assert all(json.loads(a[3])["name"] == "Contract agent" for a in answers)
