"""Messages that answer a task's question: the result from every server and in every way.

The caller gets the turn that handled the message once, in order and to its end. The earlier text
and artifacts of the task are no part of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from itertools import groupby
from typing import NamedTuple

import pytest

from parley.cli.app import run
from parley.client import connect, connect_sync
from parley.client.calls.stream_reader import new_output
from parley.client.retry import Retry
from parley.conformance import faults
from parley.model.tasks import Event, Task, TaskStatusUpdateEvent
from parley.testing import FaultProxy

from .test_client_against_official_server import SERVERS, Other, kept_of, text_of

PARLEY = [
    ("parley", binding, version)
    for version in ("1.0", "0.3")
    for binding in ("JSONRPC", "HTTP+JSON", "GRPC")
]


class Turn(NamedTuple):
    """The result of an answer: the artifacts' text, the messages in between, the last state."""

    text: str
    said: tuple[str, ...]
    state: str


CHUNKS = "chunk 0. chunk 1. "
ANSWERS = {
    "chunks 3 0": Turn("chunk 0. chunk 1. chunk 2. ", (), "COMPLETED"),
    "more": Turn("more. ", (), "COMPLETED"),
    "again": Turn("", ("thinking", "and when?"), "INPUT_REQUIRED"),
    "bare": Turn("", (), "COMPLETED"),
    "said": Turn("", ("that is it",), "COMPLETED"),
    "failed": Turn("", ("it did not work",), "FAILED"),
    "whole INPUT_REQUIRED": Turn(CHUNKS, (), "COMPLETED"),
    "whole WORKING": Turn(CHUNKS, (), "COMPLETED"),
    "whole SUBMITTED": Turn(CHUNKS, (), "COMPLETED"),
}


def answers_of(peer: str) -> dict[str, Turn]:
    """Return the kinds of answers that an agent on a peer's server supports."""
    if peer == "parley":  # agents publish no tasks, and extend no earlier artifact
        return {how: turn for how, turn in ANSWERS.items() if how.split()[0] not in _NOT_OURS}
    if peer in ("python-0.3", "go-2.4"):  # a published task that asks ends the turn
        return {how: turn for how, turn in ANSWERS.items() if how != "whole INPUT_REQUIRED"}
    return ANSWERS


_NOT_OURS = ("more", "whole")


@pytest.fixture(params=[*PARLEY, *SERVERS], ids=" ".join)
def other(request: pytest.FixtureRequest) -> Other:
    return Other(*request.param)


def check(turn: Turn, events: list[Event]) -> None:
    assert text_of(events) == turn.text
    updates = [event for event in events if isinstance(event, TaskStatusUpdateEvent)]
    assert tuple(e.status.message.text for e in updates if e.status.message) == turn.said
    assert events[-1] == updates[-1]
    assert updates[-1].status.state.name == turn.state
    assert not any(isinstance(event, Task) for event in events[1:])


@pytest.mark.anyio
async def test_a_turn_is_streamed_once_in_order_and_to_its_end(
    other: Other, official_servers: Callable[[str], str]
) -> None:
    url = official_servers(other.peer)
    async with connect(url, binding=other.binding, version=other.version) as agent:
        for how, turn in answers_of(other.peer).items():
            for known in ("id", "task"):
                asked = await agent.send("draft")
                which = {"task": asked} if known == "task" else {"task_id": asked.id}
                async with asyncio.timeout(60):
                    stream = agent.stream(f"answer {how}", **which)
                    events = [event async for event in stream]
                check(turn, events)
                assert stream.is_settled
                assert (stream.task_id, stream.state.name) == (asked.id, turn.state)
                assert stream.before.text == "draft. "


@pytest.mark.anyio
async def test_an_answer_is_sent_and_its_turn_waited_for(
    other: Other, official_servers: Callable[[str], str]
) -> None:
    url = official_servers(other.peer)
    async with connect(url, binding=other.binding, version=other.version) as agent:
        for how, turn in answers_of(other.peer).items():
            for known in ("id", "task"):
                asked = await agent.send("draft")
                which = {"task": asked} if known == "task" else {"task_id": asked.id}
                async with asyncio.timeout(60):
                    answer = await agent.send(f"answer {how}", **which)
                assert (answer.id, answer.state.name) == (asked.id, turn.state)
                if other.peer != "parley" or how != "said":  # our tasks end without a message
                    assert new_output(asked, answer).text == (turn.text or "".join(turn.said[-1:]))


def test_the_blocking_client_tells_the_same(
    other: Other, official_servers: Callable[[str], str]
) -> None:
    url = official_servers(other.peer)
    with connect_sync(url, binding=other.binding, version=other.version) as agent:
        for how, turn in answers_of(other.peer).items():
            asked = agent.send("draft")
            stream = agent.stream(f"answer {how}", task_id=asked.id)
            check(turn, list(stream))
            assert stream.is_settled
            assert stream.before.text == "draft. "
            answer = agent.send(f"answer {how}", task_id=agent.send("draft").id)
            assert answer.state.name == turn.state


def test_the_command_tells_the_turn_that_took_the_message(
    other: Other,
    official_servers: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: pytest.TempPathFactory,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    url = official_servers(other.peer)
    where = ["-a", url, "--transport", other.binding, "--a2a-version", other.version]
    with connect_sync(url, binding=other.binding, version=other.version) as agent:
        for n, (how, turn) in enumerate(answers_of(other.peer).items()):
            for flags in ((), (("--stream",), ("--stream", "-o", "json"))[n % 2]):
                asked = agent.send("draft").id
                capsys.readouterr()
                assert run(["send", *flags, *where, "--task-id", asked, f"answer {how}"]) == 0
                out, err = capsys.readouterr()
                case = f"{how} {flags}: {out}{err}"
                if "-o" in flags:
                    check_lines(turn, [json.loads(line) for line in out.splitlines()])
                else:
                    check_text(turn, out, case, streamed=bool(flags))
                assert ("(TASK_STATE_INPUT_REQUIRED)" in err) is (how == "again"), case


def check_lines(turn: Turn, lines: list[dict]) -> None:
    pieces = [
        line["artifactUpdate"]["artifact"]["parts"] for line in lines if "artifactUpdate" in line
    ]
    assert "".join(part["text"] for parts in pieces for part in parts) == turn.text
    assert not any("task" in line for line in lines[1:])
    assert lines[-1]["statusUpdate"]["status"]["state"] == f"TASK_STATE_{turn.state}"


def check_text(turn: Turn, out: str, case: str, *, streamed: bool) -> None:
    lines = out.splitlines()
    states = [line for line in lines if line.startswith("State: ")]
    assert states[-1] == f"State: TASK_STATE_{turn.state}", case
    assert "draft. " not in out, case
    assert "which?" not in out, case
    if turn.text:
        shown = turn.text if streamed else f"Text: {turn.text}"
        assert lines.count(shown) == 1, case
    for text in turn.said if streamed else ():
        assert lines.count(f"Status: {text}") == 1, case


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1500, 2300, 3500])
@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
@pytest.mark.parametrize("peer", ["parley", "python-1.3", "js-1.3", "python-0.3", "js-0.3"])
async def test_a_turns_stream_that_is_cut_loses_and_repeats_nothing(
    peer: str, binding: str, size: int, official_servers: Callable[[str], str]
) -> None:
    url = official_servers(peer)
    version = "0.3" if peer.endswith("0.3") else "1.0"
    async with connect(url, binding=binding, version=version) as direct:
        asked = await direct.send("draft")
    async with asyncio.timeout(30), FaultProxy(url) as proxy:
        proxy.fault(faults.cut(after_bytes=size), times=2)
        quick = Retry(first=0.01, limit=0.05)
        async with connect(proxy.url, binding=binding, version=version, retries=quick) as agent:
            stream = agent.stream("answer chunks 20 0.03", task_id=asked.id)
            events = [event async for event in stream]
    assert any(each.faults for each in proxy.requests)
    turn = Turn("".join(f"chunk {n}. " for n in range(20)), (), "COMPLETED")
    if peer.startswith("python"):
        # A subscription there sometimes returns the task with a chunk, and then the same chunk as
        # an event; a server of 0.3 stores a chunk twice. The next read of the task shows the same.
        chunks = [chunk for chunk, _ in groupby("".join(kept_of(events)).split(". "))]
        assert ". ".join(chunks) == turn.text
    else:
        check(turn, events)
    assert (stream.state.name, stream.is_settled) == ("COMPLETED", True)
