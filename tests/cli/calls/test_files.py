"""Files on the command line: large ones are uploaded; files in answers are saved on request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import parley as package
from parley import Agent, Part, Settings, Turn
from parley.cli.calls.messages import MAX_FILE
from parley.server.run import serving

agent = Agent("Files", description="Gives files back", version="1.0.0")


@agent.skill(replies="task")
async def give_back(turn: Turn) -> None:
    """Gives its files back, and says what kind they were."""
    for number, file in enumerate(turn.files):
        kind = "inline" if file.raw is not None else "by reference"
        await turn.artifact(f"{kind}, {file.media_type}", name="kind")
        await turn.artifact(await file.read(), filename=f"back-{number}.bin")


@agent.skill(replies="task")
async def ask(turn: Turn) -> None:
    """Gives a file, asks, and gives another."""
    await turn.artifact(b"first", filename="first.txt")
    await turn.ask("More?")
    await turn.artifact(b"second", filename="second.txt")


@agent.skill(replies="message")
async def say(turn: Turn) -> Part:
    """Says a file."""
    return Part(raw=b"said", filename="../said.txt")


@contextmanager
def served(**options: Any) -> Iterator[str]:
    addresses: list[str] = []
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(package.asgi(agent, **options)) as address:
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
    with served(settings=Settings(inline_file_bytes=1000)) as address:
        yield address


@pytest.mark.slow
def test_files_go_up_and_come_back(parley: Callable[..., Any], url: str, tmp_path: Path) -> None:
    (tmp_path / "small.txt").write_bytes(b"s" * 1000)
    (tmp_path / "large.txt").write_bytes(b"l" * 1001)
    with (tmp_path / "huge.bin").open("wb") as huge:
        huge.truncate(MAX_FILE + 1)
    ran = parley(
        "send", "-a", url, "Back", "--metadata", '{"skill":"give_back"}', "--file", "small.txt",
        "--file", "large.txt", "--media-type", "text/markdown", "--file", "huge.bin",
        "--save", "new/out", "-o", "json",
    )  # fmt: skip
    assert ran.status == 0, ran
    artifacts = ran.document["task"]["artifacts"]
    assert [each["parts"][0]["text"] for each in artifacts[::2]] == [
        "inline, text/plain",
        "by reference, text/markdown",
        "by reference, application/octet-stream",
    ]
    assert "uploading large.txt (1,001 bytes)" in ran.stderr
    assert "uploading huge.bin (7,340,033 bytes)" in ran.stderr
    assert "saved new/out/back-2.bin (7,340,033 bytes)" in ran.stderr.replace("\\", "/")
    saved = sorted((tmp_path / "new" / "out").iterdir())
    assert [each.name for each in saved] == ["back-0.bin", "back-1.bin", "back-2.bin"]
    assert [each.stat().st_size for each in saved] == [1000, 1001, MAX_FILE + 1]

    task_id = ran.document["task"]["id"]
    assert parley("task", "get", "-a", url, task_id, "--save", "again").status == 0
    assert len(list((tmp_path / "again").iterdir())) == 3


def test_a_stream_saves_too_and_a_direct_message(
    parley: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    metadata = '{"skill":"say"}'
    ran = parley("send", "-a", url, "Go", "--metadata", metadata, "--save", ".", "--stream")
    assert ran.status == 0, ran
    assert (tmp_path / "said.txt").read_bytes() == b"said"


def test_a_continued_task_saves_what_is_new(
    parley: Callable[..., Any], url: str, tmp_path: Path
) -> None:
    first = parley(
        "send", "-a", url, "Go", "--metadata", '{"skill":"ask"}', "--save", "out", "-o", "json"
    )
    task_id = first.document["task"]["id"]
    parley("send", "-a", url, "Yes", "--task-id", task_id, "--save", "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["first.txt", "second.txt"]


def test_what_cannot_be_saved_is_told(parley: Callable[..., Any], url: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    ran = parley("send", "-a", url, "Go", "--metadata", '{"skill":"say"}', "--save", "taken/x")
    assert ran.status == 1
    assert "--save: taken/x cannot be written" in ran.stderr.replace("\\", "/")
    ran = parley("send", "-a", url, "Go", "--async", "--save", "out")
    assert ran.status == 2
    assert "parley task get --wait --save DIR" in ran.stderr
