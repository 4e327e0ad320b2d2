"""Cassettes of conversations with agents: recorded against a real server, replayed without it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent, Turn
from parley.client.errors import Disconnected
from parley.model.parts import Message, Part, Role
from parley.server.run import serving
from parley.testing import Cassette, NotOnTape, TapeUnreadable, cassette

pytestmark = pytest.mark.anyio

SECRET = "hunter2-hunter2"
agent = Agent(name="Rooms", description="Books rooms")
asked: list[str] = []


@agent.skill
async def book(turn: Turn) -> Any:
    """Books a room."""
    asked.append(turn.text)
    if turn.text == "hello":
        return "Hello!"
    await turn.working("Looking")
    if turn.text == "A room":
        place = (await turn.ask("Where?")).text
        return f"A room in {place}"
    async with turn.stream(name="list") as out:
        for word in ("one ", "two ", "three"):
            await out.write(word)
    return None


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with serving(parley.asgi(agent, drain=0.0, allow_private_webhooks=True)) as url:
        yield url


async def talk(url: str, http: Any = None, **options: Any) -> list[Any]:
    """A conversation with a stream, a question, a list and a reply."""
    async with parley.connect(url, http=http, **options) as remote:
        reply = await remote.send("hello")
        events = [type(event).__name__ async for event in remote.stream("list")]
        task = await remote.send("A room")
        done = await remote.send("Rome", task_id=task.id)
        again = await remote.get(task.id)
        return [reply.text, events, task.text, done.text, again.id == task.id, again.state]


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_conversation_is_replayed_without_the_agent(
    url: str, tmp_path: Path, binding: str, version: str
) -> None:
    path = tmp_path / "tape.json"
    first = await talk(url, cassette(path).http, binding=binding, version=version)
    count = len(asked)
    assert first[0] == "Hello!"
    assert first[3] == "A room in Rome"
    tape = cassette(path, mode="replay")
    assert await talk(url, tape.http, binding=binding, version=version) == first
    assert tape.unused == []
    elsewhere = "http://127.0.0.1:1"
    tape = cassette(path, mode="replay")
    assert await talk(elsewhere, tape.http, binding=binding, version=version) == first
    assert len(asked) == count


async def test_a_block_puts_every_connection_on_the_tape(url: str, tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    with cassette(path) as tape:
        assert not tape.is_replaying
        first = await talk(url)
    count = len(asked)
    async with cassette(path) as tape:
        assert tape.is_replaying
        assert await talk(url) == first
    assert len(asked) == count
    async with cassette(path, mode="none"), parley.connect(url) as remote:
        await remote.send("hello")
    assert len(asked) == count + 1
    assert Cassette(path, mode="replay")._tape.exchanges


async def test_streams_are_replayed_frame_by_frame_with_the_message_ids_of_this_time(
    url: str, tmp_path: Path
) -> None:
    path = tmp_path / "tape.json"

    async def ask(id: str) -> list[Any]:
        message = Message(message_id=id, role=Role.USER, parts=(Part(text="list"),))
        async with parley.connect(url, http=cassette(path).http) as remote:
            events = [event async for event in remote.stream(message)]
            task = await remote.get(events[-1].task_id)
        assert [each.message_id for each in task.history or () if each.role is Role.USER] == [id]
        return [type(event).__name__ for event in events]

    first = await ask("message-of-the-recording")
    tape = json.loads(path.read_text())
    frames = [each["answer"].get("frames") for each in tape["exchanges"]]
    assert [len(each) for each in frames if each] == [len(first)]
    assert await ask("another-id-this-time") == first


async def test_a_request_that_is_not_on_the_tape_says_what_differs(
    url: str, tmp_path: Path
) -> None:
    path = tmp_path / "tape.json"
    async with parley.connect(url, http=cassette(path).http, binding="JSONRPC") as remote:
        await remote.send("hello")
    async with parley.connect(url, http=cassette(path).http, binding="JSONRPC") as remote:
        with pytest.raises(NotOnTape) as caught:
            await remote.send("goodbye")
        said = str(caught.value)
        assert "SendMessage" in said
        assert "The nearest is exchange 2" in said
        assert "params.message.parts[0].text: 'hello' on the tape, 'goodbye' in the request" in said
        assert "mode='record'" in said
        await remote.send("hello")
        with pytest.raises(NotOnTape, match="once more: it was recorded fewer times"):
            await remote.send("hello")


async def test_no_secret_gets_on_the_tape(url: str, tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    tape = cassette(path, secrets=["my-own-secret"])
    options: dict[str, Any] = {
        "bearer": f"bearer-{SECRET}",
        "headers": {"Cookie": f"session=cookie-{SECRET}", "X-Api-Key": f"key-{SECRET}"},
    }
    async with parley.connect(f"{url}/?key=query-{SECRET}", http=tape.http, **options) as remote:
        await remote.send(f"hello bearer-{SECRET} my-own-secret eyJhbGciOiJI.eyJzdWIiOiJ0.c2ln")
        task = await remote.send(
            "A room",
            push={
                "url": f"http://127.0.0.1:9/hooks/path-{SECRET}?t=param-{SECRET}",
                "token": f"token-{SECRET}",
                "authentication": {"scheme": "Bearer", "credentials": f"credentials-{SECRET}"},
            },
        )
        assert task.state.name == "INPUT_REQUIRED"
        await remote.send({"password": f"data-{SECRET}", "note": f"token-{SECRET}"})
    text = path.read_text()
    assert SECRET not in text
    assert "my-own-secret" not in text
    assert "eyJhbGciOiJI" not in text
    assert "A room" in text
    assert "[redacted]" in text
    async with parley.connect(url + "/?key=now", http=cassette(path).http, bearer="x") as remote:
        assert (await remote.send("hello other secret and token")).text


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_the_path_of_a_webhook_is_not_on_the_tape(
    url: str, tmp_path: Path, binding: str, version: str
) -> None:
    path = tmp_path / "tape.json"
    for reads in (1, 3):  # read-only requests may be repeated
        tape = cassette(path)
        async with parley.connect(url, http=tape.http, binding=binding, version=version) as remote:
            task = await remote.send("A room")
            made = await remote.push.create(task.id, f"http://127.0.0.1:9/hooks/{SECRET}")
            for _ in range(reads):
                assert (await remote.push.get(task.id, made.id)).id == made.id
    assert SECRET not in path.read_text()
    assert tape.unused == []


async def test_a_stream_that_was_cut_or_left_ends_as_it_did(url: str, tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    async with parley.connect(url, http=cassette(path).http, retries=0) as remote:
        async for _ in remote.stream("list"):
            break
    tape = json.loads(path.read_text())
    answer = tape["exchanges"][-1]["answer"]
    assert answer["ends"] == "left"
    answer["frames"] = answer["frames"][:2]
    path.write_text(json.dumps(tape))
    async with parley.connect(url, http=cassette(path).http, retries=0) as remote:
        with pytest.raises(NotOnTape, match="read no further"):
            async for _ in remote.stream("list"):
                pass
    tape["exchanges"][-1]["answer"]["ends"] = "cut"
    path.write_text(json.dumps(tape))
    async with parley.connect(url, http=cassette(path).http, retries=0) as remote:
        with pytest.raises(Disconnected):
            async for _ in remote.stream("list"):
                pass


def test_modes_and_files_that_are_wrong_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tape.json"
    with pytest.raises(ValueError, match="it is one of auto, record, replay, none"):
        cassette(path, mode="rewind")  # type: ignore[arg-type]
    with pytest.raises(NotOnTape, match="there is no tape"):
        cassette(path, mode="replay")
    monkeypatch.setenv("PARLEY_CASSETTES", "replay")
    with pytest.raises(NotOnTape, match="PARLEY_CASSETTES=record"):
        cassette(path)
    monkeypatch.setenv("PARLEY_CASSETTES", "always")
    with pytest.raises(ValueError, match="PARLEY_CASSETTES is 'always'"):
        cassette(path)
    for text, words in (("{", "no cassette"), ('{"cassette": 7, "exchanges": []}', "format 7")):
        path.write_text(text)
        with pytest.raises(TapeUnreadable, match=words):
            cassette(path, mode="replay")
    os.truncate(path, 256 * 1024 * 1024 + 1)  # a sparse file, which takes no disk space
    with pytest.raises(TapeUnreadable, match="is larger than"):
        cassette(path, mode="replay")


@pytest.mark.slow
async def test_the_fixture_records_beside_the_test(url: str, tmp_path: Path) -> None:
    test = tmp_path / "test_rooms.py"
    test.write_text(
        "import parley\n\n"
        "def test_hello(parley_cassette):\n"
        f"    with parley.connect_sync({url!r}) as remote:\n"
        '        assert remote.send("hello").text == "Hello!"\n'
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", str(test)]
    count = len(asked)
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            *words, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await process.communicate()
        assert process.returncode == 0, printed.decode()
    assert len(asked) == count + 1
    tape = tmp_path / "cassettes" / "test_rooms" / "test_hello.json"
    assert len(json.loads(tape.read_text())["exchanges"]) == 2
