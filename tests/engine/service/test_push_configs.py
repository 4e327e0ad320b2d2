"""The operations on push notification configurations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from parley import Agent, CardDetails, Turn
from parley.model.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)
from parley.model.operations import AuthenticationInfo
from parley.store.protocols.webhooks import MAX_PUSHES, PushState
from parley.store.task_store import TaskStore
from tests.push.pushing import Pushed, config, gated, pushing

pytestmark = pytest.mark.anyio


URL = "https://hooks.example.com/a"


async def waiting(caller: Pushed) -> str:
    """Return the id of a task that keeps working."""
    return (await caller.task("go", return_immediately=True)).id


async def test_a_list_has_pages(new_store: Callable[[], TaskStore]) -> None:
    agent, _ = gated()
    async with pushing(agent, new_store()) as caller:
        task_id = await waiting(caller)
        for name in ("c", "a", "e", "b", "d"):
            await caller.create(task_id, URL, id=name)
        found: list[list[str]] = []
        token = ""
        while True:
            page = await caller.list(task_id, page_size=2, page_token=token)
            found.append([each.id for each in page.configs])
            token = page.next_page_token
            if not token:
                break
            # A deletion between two pages does not shift the next page.
            await caller.delete(task_id, found[-1][0])
        assert found == [["a", "b"], ["c", "d"], ["e"]]
        assert len((await caller.list(task_id, page_size=3)).configs) == 3
        exact = await caller.list(task_id, page_size=3)
        assert exact.next_page_token == ""


@pytest.mark.parametrize(
    ("page", "field"),
    [
        ({"page_size": -1}, "pageSize"),
        ({"page_size": 101}, "pageSize"),
        ({"page_token": "nonsense"}, "pageToken"),
        ({"page_token": "WzFd"}, "pageToken"),
    ],
)
async def test_a_wrong_page_is_refused(page: dict[str, Any], field: str) -> None:
    agent, _ = gated()
    async with pushing(agent) as caller:
        task_id = await waiting(caller)
        with pytest.raises(InvalidParamsError) as refused:
            await caller.list(task_id, **page)
        assert [violation.field for violation in refused.value.violations] == [field]


@pytest.mark.parametrize("operation", ["create", "get", "list", "delete"])
async def test_a_task_that_is_not_there_is_not_found(operation: str) -> None:
    agent, _ = gated()
    async with pushing(agent) as caller:
        arguments = {"create": (URL,), "get": ("p",), "list": (), "delete": ("p",)}[operation]
        with pytest.raises(TaskNotFoundError):
            await getattr(caller, operation)("nowhere", *arguments)


async def test_a_task_has_room_for_so_many_only() -> None:
    agent, _ = gated()
    async with pushing(agent) as caller:
        task_id = await waiting(caller)
        for n in range(MAX_PUSHES):
            await caller.create(task_id, URL, id=f"{n}")
        with pytest.raises(InvalidParamsError, match=f"{MAX_PUSHES} push notification"):
            await caller.create(task_id, URL, id="one more")
        await caller.create(task_id, URL + "b", id="0")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost:8080/", "http://[::1]/", "http://169.254.169.254/",
        "http://10.0.0.1/", "http://[::ffff:127.0.0.1]/", "http://db/",
        "http://[64:ff9b::7f00:1]/", "http://ⓛocalhost/", "http://１２７.0.0.1/", "http://LOCALHOST./",
    ],
)  # fmt: skip
async def test_private_addresses_are_refused_unless_they_are_allowed(url: str) -> None:
    agent, _ = gated()
    async with pushing(agent, allowed=False) as caller:
        task_id = await waiting(caller)
        with pytest.raises(InvalidParamsError, match="sends nothing") as refused:
            await caller.create(task_id, url)
        assert [violation.field for violation in refused.value.violations] == ["url"]
        with pytest.raises(InvalidParamsError):
            await caller.send("go", url)


async def test_an_agent_can_do_without() -> None:
    agent = Agent("Quiet", card=CardDetails(push_notifications=False))

    @agent.skill(replies="task")
    async def work(text: str) -> str:
        return text

    assert agent.card("http://localhost/").capabilities.push_notifications is False
    async with pushing(agent) as caller:
        task = await caller.task("go")
        for operation, arguments in (
            (caller.create, (URL,)),
            (caller.get, ("p",)),
            (caller.list, ()),
            (caller.delete, ("p",)),
        ):
            with pytest.raises(PushNotificationNotSupportedError):
                await operation(task.id, *arguments)  # type: ignore[operator]
        with pytest.raises(PushNotificationNotSupportedError):
            await caller.send("go", URL)


@pytest.mark.slow
async def test_secrets_are_neither_shown_again_nor_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    agent, _ = gated()
    authentication = AuthenticationInfo(scheme="Bearer", credentials="secret-1")
    url = "http://127.0.0.1:9/secret-2?key=secret-3"
    async with pushing(agent) as caller:
        task = await caller.task(
            "go", config(url, token="secret-4", authentication=authentication),
            return_immediately=True,
        )  # fmt: skip
        created = await caller.create(task.id, url, id="mine", authentication=authentication)
        assert created.authentication == AuthenticationInfo(scheme="Bearer")
        shown = [created, await caller.get(task.id, "mine"), *(await caller.list(task.id)).configs]
        assert "secret" not in repr(shown)
        for each in shown:
            assert each.authentication == AuthenticationInfo(scheme="Bearer")
        for push in await caller.store.pushes(task.id):
            assert push.config.authentication == authentication
        await caller.settled(task.id, PushState.SUSPENDED, "mine")
    assert "is suspended" in caplog.text
    assert "http://127.0.0.1:9" in caplog.text
    assert "secret" not in caplog.text


async def test_a_message_with_one_too_many_is_not_taken() -> None:
    agent = Agent("Asking")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return (await turn.ask("What?")).text

    async with pushing(agent) as caller:
        task = await caller.task("go")
        for n in range(MAX_PUSHES):
            await caller.create(task.id, URL, id=f"{n}")
        with pytest.raises(InvalidParamsError, match="may not have more"):
            await caller.send("this", URL + "b", task_id=task.id)
        assert (await caller.task("that", task_id=task.id)).text == "that"


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize(
    "place",
    [
        "exa mple.com", "exa\u00a0mple.com", "exa\u3000mple.com", "exa\tmple.com",
        "exa\x85mple.com",
        "-a-.com", "a-.com", "-a.com", "a..com", ".com", "..", ".", "", ":80", "a" * 64 + ".com",
        ".".join(["a" * 60] * 5), "ex%61mple.com", "%31%32%37.0.0.1", "exa\u00admple.com",
        "a,b.com", "a;b.com", "a!b.com", "a*b.com", "(a).com", "xn--a.com", "xn--.com",
        "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1", "127.1", "127.0.1",
        "1.2.3.4.5", "256.1.1.1", "1.2.3.4..", "example.0x1", "example.1", "00000000000000000001",
        "[::1", "::1", "[::1]a", "a[::1]", "[fe80::1%25eth0]", "[v1.a]", "[1.2.3.4]", "[]", "[:::]",
        "[::1]:0", "[::1]:x", "example.com:0", "example.com:00", "example.com:65536",
        "example.com:99999", "example.com:-1", "example.com:٣", "example.com:8 0",
        "example.com:80:80", "ada@example.com", "ada:secret@example.com", "@example.com",
        ":@example.com",
    ],
)  # fmt: skip
async def test_a_url_whose_host_can_be_none_is_refused(place: str, allowed: bool) -> None:
    agent, _ = gated()
    async with pushing(agent, allowed=allowed) as caller:
        task_id = await waiting(caller)
        with pytest.raises(InvalidParamsError) as refused:
            await caller.create(task_id, f"http://{place}/hook")
        assert [violation.field for violation in refused.value.violations] == ["url"]
        assert refused.value.message.startswith("url: a")
