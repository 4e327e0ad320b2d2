"""The spans of a task on the page, and who sees them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from playwright.async_api import expect

import parley
from parley.client.auth import ApiKey
from parley.extensions.task_spans import TASK_SPANS
from parley.observe.recent import MOST_OF_TASK, MOST_SPANS, RecentSpans
from tests.kit.browser import browsing, opened
from tests.kit.http import ask
from tests.kit.processes import Running, free_port
from tests.observe.spans import collecting

pytestmark = pytest.mark.anyio

TRACE = f"00-{'7' * 32}-{{}}-01"
KEYS = {"ada": "a" * 40, "bob": "b" * 40}
AGENT = f"""
from hashlib import sha256

from parley import Agent, Turn
from parley.model.service import Caller
from parley.security import ApiKey

KEYS = {KEYS}
closed = ApiKey(keys={{sha256(k.encode()).hexdigest(): Caller(id=n) for n, k in KEYS.items()}})
desk = Agent("Desk")


async def tides() -> str:
    return "high"


async def look(turn: Turn) -> str:
    with turn.span("look", secret="planted"):
        await turn.step("first", tides)
    with turn.span("decide"):
        raise RuntimeError("planted")


desk.skill(replies="task")(look)
bank = Agent("Bank", security=closed)
bank.skill(replies="task")(look)
"""


@asynccontextmanager
async def serving(folder: Path, *agents: str) -> AsyncIterator[str]:
    """Serve agents with tracing, and yield the address."""
    (folder / "agents.py").write_text(AGENT)
    port = free_port()
    with collecting() as collector:
        words = ["serve", *agents, "--port", str(port), "--store", "memory:"]
        words += ["--otlp", collector.url]
        with Running(words, folder, PYTHONPATH=":".join(sys.path)) as server:
            server.until("Ctrl-C stops")
            yield f"http://127.0.0.1:{port}"


async def spans_of(url: str, task_id: str, key: str = "") -> Any:
    headers = {"A2A-Version": "1.0", "A2A-Extensions": TASK_SPANS}
    headers |= {"X-API-Key": key} if key else {}
    answer = await ask(url, "GET", f"/tasks/{task_id}/spans", b"", headers)
    return answer.json["spans"] if answer.status == 200 else answer.status


@pytest.mark.slow
async def test_the_spans_of_a_task_are_for_its_owner_and_have_no_content(tmp_path: Path) -> None:
    async with serving(tmp_path, "agents.py:bank") as url:
        headers = {"traceparent": TRACE.format("5" * 16)}
        async with parley.connect(url, auth=ApiKey(KEYS["ada"]), headers=headers) as agent:
            task = (await agent.send("planted")).task
            assert task is not None
        found = await spans_of(url, task.id, KEYS["ada"])
        turn = next(each for each in found if each["name"] == "invoke_agent bank")
        by_id = {each["id"]: each for each in found}
        below = {each["name"]: by_id.get(each["parent"], each)["name"] for each in found}
        assert below["look"] == below["decide"] == turn["name"]
        assert below["step tides"] == "look"
        assert below[turn["name"]] == "SendMessage"
        assert {each["name"] for each in found if each["error"]} == {turn["name"], "decide"}
        assert turn["attributes"]["a2a.skill"] == "look"
        assert by_id[turn["parent"]]["start"] <= turn["start"]
        assert "planted" not in json.dumps(found)
        # Another caller continues the trace below a span of ada, and names her task.
        headers = {"traceparent": TRACE.format(turn["id"])}
        async with parley.connect(url, auth=ApiKey(KEYS["bob"]), headers=headers) as agent:
            other = (await agent.send("hello")).task
            assert other is not None
            with pytest.raises(parley.model.errors.TaskNotFoundError):
                await agent.send("hello", task_id=task.id)
        assert await spans_of(url, task.id, KEYS["bob"]) == 404
        assert await spans_of(url, task.id) == 401
        assert await spans_of(url, task.id, KEYS["ada"]) == found
        bobs = await spans_of(url, other.id, KEYS["bob"])
        assert "invoke_agent bank" in {each["name"] for each in bobs}
        assert not {each["id"] for each in bobs} & by_id.keys()


@pytest.mark.slow
async def test_the_timeline_on_the_page_shows_nested_spans_and_the_failed_one(
    tmp_path: Path,
) -> None:
    async with (
        serving(tmp_path, "agents.py:desk") as url,
        browsing() as browser,
        opened(browser, url) as page,
    ):
        await page.locator("textarea.message").fill("hello")
        await page.keyboard.press("Enter")
        lines = page.locator(".spans > ol > li")
        decide = lines.filter(has_text="decide")
        await expect(decide).to_contain_text("RuntimeError")
        assert await decide.get_attribute("class") == "failed"
        depths = {
            name: await lines.filter(has_text=name).first.get_attribute("data-depth")
            for name in ("invoke_agent", "look", "step tides")
        }
        assert depths == {"invoke_agent": "1", "look": "2", "step tides": "3"}
        bars = await lines.locator("rect").evaluate_all("all => all.map(x => +x.getAttribute('x'))")
        assert bars == sorted(bars)
        assert bars[-1] < 1000


@pytest.mark.slow
async def test_without_tracing_or_a_page_there_are_no_spans(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(AGENT)
    port = free_port()
    words = ["serve", "agents.py:desk", "--port", str(port), "--store", "memory:"]
    with Running(words, tmp_path) as server:
        server.until("Ctrl-C stops")
        assert await spans_of(f"http://127.0.0.1:{port}", "some-task") == 404
        card = await ask(f"http://127.0.0.1:{port}", "GET", "/.well-known/agent-card.json")
        assert TASK_SPANS.encode() not in card.body


def test_all_spans_and_those_of_an_answer_are_bounded() -> None:
    provider, kept = TracerProvider(), RecentSpans()
    kept.keep(provider)
    kept.keep(provider)
    tracer = provider.get_tracer("test")
    for number in range(MOST_SPANS + 2):
        tracer.start_span("invoke_agent a", attributes={"a2a.task.id": f"t{number}"}).end()
    assert [len(kept.of_task(f"t{n}")) for n in (0, 1, 2, MOST_SPANS + 1)] == [0, 0, 1, 1]
    with tracer.start_as_current_span("invoke_agent b", attributes={"a2a.task.id": "long"}):
        for _ in range(MOST_OF_TASK + 5):
            tracer.start_span("step").end()
    found = kept.of_task("long")
    assert (len(found), found[0].name) == (MOST_OF_TASK, "invoke_agent b")
