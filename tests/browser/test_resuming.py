"""The page after a reload, a broken connection, and a server that died and came back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

import parley
from parley import Agent, Settings, Turn
from parley.model.service import StreamItem
from parley.model.tasks import TaskState, TaskStatus, TaskStatusUpdateEvent
from parley.server.app import Endpoint, create_app
from parley.server.http.responses import reply_with_message
from parley.server.run import serving
from tests.browser.agents import COMPOSER, LOG, Harbour, completed, log, say
from tests.kit.browser import opened
from tests.kit.processes import Running, free_port
from tests.kit.scripted import Scripted, Standstill, card_of, chunk, extension, task

pytestmark = pytest.mark.anyio

END = TaskStatusUpdateEvent(
    task_id="t-1", context_id="c-1", status=TaskStatus(state=TaskState.COMPLETED)
)


async def test_a_reload_resumes_the_conversation_and_the_running_task(browser):
    harbour = Harbour()
    async with serving(parley.asgi(harbour.agent)) as url, opened(browser, url) as page:
        await say(page, "Hello", "tides")
        await expect(log(page).locator(".markdown h3")).to_have_text("Tides")
        await say(page, "Write", "report")
        await expect(log(page).locator(".theirs").last).to_contain_text("one")
        await page.reload()
        await expect(log(page).locator(".own")).to_have_count(2)
        await expect(log(page).locator(".theirs").last).to_contain_text("one")
        harbour.gate.set()
        await completed(page)
        await expect(log(page).locator(".theirs .markdown").last).to_have_text("one two three")
        numbers = await page.locator(".events .number").all_text_contents()
        assert numbers == [str(each) for each in range(1, len(numbers) + 1)]
        # Another tab is another conversation.
        other = await page.context.new_page()
        await other.goto(url)
        await other.wait_for_selector(COMPOSER)
        assert await other.locator(f"{LOG} li").count() == 0
        await page.get_by_role("button", name="New conversation").click()
        await page.reload()
        await page.wait_for_selector(COMPOSER)
        assert await page.locator(f"{LOG} li").count() == 0


async def test_a_question_is_still_there_after_a_reload_and_answers_too(browser):
    async with serving(parley.asgi(Harbour().agent)) as url, opened(browser, url) as page:
        await say(page, "Plan", "plan")
        form = page.locator(".question")
        await form.get_by_label("arrival").fill("2027-03-14")
        await form.get_by_label("nights").fill("3")
        await form.get_by_role("button", name="Answer").click()
        await expect(log(page)).to_contain_text("Anything else?")
        await page.reload()
        await expect(page.locator(COMPOSER)).to_be_focused()
        said = await log(page).locator("article .plain, article .data, article .markdown").all()
        shown = [" ".join((await each.inner_text()).split()) for each in said]
        assert shown[0] == "Plan"
        assert "When will you come?" in shown[1]
        assert "nights: 3" in shown[2]
        assert shown[3] == "Anything else?"
        await say(page, "no")
        await completed(page)
        await expect(log(page)).to_contain_text("2027-03-14 3 no")


AGENT = '''
import asyncio
from pathlib import Path

from parley import Agent, Turn

agent = Agent("Slow")

@agent.skill
async def write(turn: Turn):
    """Writes in pieces."""
    for number in range(6):
        yield f"piece {number} "
        while number == 2 and not Path("go").exists():
            await asyncio.sleep(0.01)
'''


async def test_a_server_that_is_killed_and_comes_back_continues_the_task(browser, tmp_path: Path):
    (tmp_path / "slow.py").write_text(AGENT)
    port = free_port()
    words = ["serve", "slow.py", "--port", str(port), "--store", "sqlite:///tasks.db"]
    with Running(words, tmp_path) as server:
        await asyncio.to_thread(server.until, "Ctrl-C")
        async with opened(browser, f"http://127.0.0.1:{port}") as page:
            await say(page, "Write")
            answer = log(page).locator(".theirs .markdown")
            await expect(answer).to_contain_text("piece 2")
            server.process.kill()
            await asyncio.to_thread(server.end)
            await expect(page.locator("[data-reconnecting]")).to_contain_text("Reconnecting for")
            await expect(answer).to_contain_text("piece 2")
            (tmp_path / "go").touch()
            with Running(words, tmp_path):
                await expect(
                    page.locator(f"{LOG} [data-state=TASK_STATE_COMPLETED]")
                ).to_be_visible(timeout=30_000)
                whole = " ".join(f"piece {number}" for number in range(6))
                await expect(answer).to_have_text(whole)
                await expect(page.locator("[data-reconnecting]")).to_have_count(0)
                await expect(page.locator(".events em")).to_have_text("replaces")
                numbers = await page.locator(".events .number").all_text_contents()
                assert numbers == [str(each) for each in range(1, len(numbers) + 1)]


async def test_a_message_that_got_no_answer_can_be_sent_again(browser):
    async with serving(parley.asgi(Harbour().agent)) as url, opened(browser, url) as page:
        await page.wait_for_selector(COMPOSER)
        await page.context.set_offline(True)
        await say(page, "Hello", "tides")
        await expect(page.locator("[data-reconnecting]")).to_be_visible()
        await page.context.set_offline(False)
        await expect(log(page).locator(".markdown h3")).to_have_text("Tides")
        await expect(log(page).locator(".own")).to_have_count(1)


async def test_a_card_that_cannot_be_read_is_read_again(browser):
    app = parley.asgi(Harbour().agent)
    tried = []

    async def starting(scope, receive, send):
        if scope["type"] == "http" and scope["path"].endswith("agent-card.json") and not tried:
            tried.append(scope["path"])
            await reply_with_message(scope, send, 503, "not ready yet")
        else:
            await app(scope, receive, send)

    async with serving(starting) as url, opened(browser, url) as page:
        await expect(page.get_by_role("alert")).to_contain_text("not ready yet")
        await page.wait_for_selector(COMPOSER)
        assert tried


async def test_an_agent_without_resumable_streams_is_polled(browser):
    """Its stream breaks after the task, and its tasks are read instead."""
    states = iter([task(TaskState.WORKING), task(TaskState.COMPLETED)])

    async def broken(request, context):
        yield StreamItem(task(), 1)

    async def read(request, context):
        return next(states)

    async def begun(request, context):
        return task()

    service = Scripted(
        send_message=begun, send_streaming_message=broken, subscribe_to_task=broken, get_task=read
    )
    app = create_app({"": Endpoint(service, card_of("Polled", streaming=False))})
    async with serving(app) as url, opened(browser, url) as page:
        await say(page, "Go")
        await completed(page)
        assert [each.method for each in service.asked].count("get_task") == 2


EVENTS = 10_000


async def test_ten_thousand_events_are_few_nodes(browser):
    agent = Agent("Many")

    @agent.skill
    async def count(turn: Turn) -> AsyncIterator[str]:
        """Counts."""
        for number in range(EVENTS):
            yield f"{number} "

    async with serving(parley.asgi(agent)) as url, opened(browser, url) as page:
        await say(page, "Count")
        await expect(page.locator(f"{LOG} [data-state=TASK_STATE_COMPLETED]")).to_be_visible(
            timeout=60_000
        )
        counted = page.locator(".timeline [data-count]")
        assert int(await counted.get_attribute("data-count")) > EVENTS
        nodes = "document.querySelectorAll('*').length"
        assert await page.evaluate(nodes) < 1500
        await expect(page.locator(".events > li")).to_have_count(100)
        await page.get_by_role("button", name="First").click()
        await expect(page.locator(".events .number").first).to_have_text("1")
        await page.get_by_role("button", name="Later").click()
        await expect(page.locator(".events .number").first).to_have_text("101")
        assert await page.evaluate(nodes) < 1500


async def test_a_connection_that_is_silent_for_long_is_broken(browser):
    """Such as one that died while the computer slept."""

    async def ends(request, context):
        yield StreamItem(END, 2)

    service = Scripted(
        send_streaming_message=Standstill(StreamItem(task(), 1)), subscribe_to_task=ends
    )
    card = card_of(extensions=(extension(uri="urn:parley:resumable-streams:v1"),))
    app = create_app({"": Endpoint(service, card)}, settings=Settings(keep_alive=3600))
    async with serving(app) as url, opened(browser, url) as page:
        await page.wait_for_selector(COMPOSER)
        await page.clock.install()
        await say(page, "Go")
        await expect(page.locator(".events > li")).to_have_count(1)
        assert [each.method for each in service.asked] == ["send_streaming_message"]
        await page.clock.fast_forward(61_000)
        await completed(page)


async def test_events_that_come_twice_are_shown_once(browser):
    """A broken stream is followed from its last event; what the server repeats changes nothing."""
    events = [StreamItem(task(), 1), *(StreamItem(chunk(f"{n} "), n) for n in range(2, 6))]

    async def first(request, context):
        for each in events[:3]:
            yield each

    async def again(request, context):
        for each in (*events, StreamItem(END, 6)):
            yield each

    card = card_of(extensions=(extension(uri="urn:parley:resumable-streams:v1"),))
    service = Scripted(send_streaming_message=first, subscribe_to_task=again)
    app = create_app({"": Endpoint(service, card)})
    async with serving(app) as url, opened(browser, url) as page:
        await say(page, "Go")
        await completed(page)
        await expect(log(page).locator(".theirs .markdown")).to_have_text("2 3 4 5")
        numbers = await page.locator(".events .number").all_text_contents()
        assert numbers == ["1", "2", "3", "4", "5", "6"]
        [followed] = [each for each in await page.requests() if each.url.endswith(":subscribe")]
        assert await followed.header_value("last-event-id") == "3"
