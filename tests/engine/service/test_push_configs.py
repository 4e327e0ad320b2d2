"""The operations on push notification configurations."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from parley import Agent, CallContext, Caller, CardDetails, Turn
from parley.model.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)
from parley.model.operations import AuthenticationInfo, ListTasksRequest
from parley.store.protocols.webhooks import MAX_PUSHES, PushState
from parley.store.task_store import TaskStore
from tests.push.pushing import Pushed, config, gated, of_version, pushing

pytestmark = pytest.mark.anyio

URL = "https://hooks.example.com/a"


async def waiting(caller: Pushed) -> str:
    """Return the id of a task that goes on."""
    return (await caller.task("go", return_immediately=True)).id


async def test_a_configuration_is_created_and_read_back(new_store: Callable[[], TaskStore]) -> None:
    agent, _ = gated()
    async with pushing(agent, new_store()) as caller:
        task_id = await waiting(caller)
        created = await caller.create(task_id, URL, id="mine", token="token")
        assert created == config(URL, id="mine", token="token", task_id=task_id)
        assert await caller.get(task_id, "mine") == created
        assert (await caller.list(task_id)).configs == (created,)


async def test_one_without_an_id_gets_one(new_store: Callable[[], TaskStore]) -> None:
    agent, _ = gated()
    async with pushing(agent, new_store()) as caller:
        task_id = await waiting(caller)
        first = await caller.create(task_id, URL)
        second = await caller.create(task_id, URL + "b")
        assert first.id == "default"
        assert second.id not in ("", "default")
        assert len((await caller.list(task_id)).configs) == 2


async def test_the_same_id_again_replaces() -> None:
    agent, _ = gated()
    async with pushing(agent) as caller:
        task_id = await waiting(caller)
        await caller.create(task_id, URL, id="mine", token="one")
        await caller.create(task_id, URL + "b", id="mine")
        assert (await caller.list(task_id)).configs == (
            config(URL + "b", id="mine", task_id=task_id),
        )


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
            # What comes and goes between pages shifts no others.
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


async def test_deleting_is_idempotent(new_store: Callable[[], TaskStore]) -> None:
    agent, _ = gated()
    async with pushing(agent, new_store()) as caller:
        task_id = await waiting(caller)
        await caller.create(task_id, URL, id="mine")
        for _ in range(2):
            await caller.delete(task_id, "mine")
        with pytest.raises(TaskNotFoundError, match="not found"):
            await caller.get(task_id, "mine")
        assert (await caller.list(task_id)).configs == ()


@pytest.mark.parametrize("operation", ["create", "get", "list", "delete"])
async def test_a_task_that_is_not_there_is_not_found(operation: str) -> None:
    agent, _ = gated()
    async with pushing(agent) as caller:
        arguments = {"create": (URL,), "get": ("p",), "list": (), "delete": ("p",)}[operation]
        with pytest.raises(TaskNotFoundError):
            await getattr(caller, operation)("nowhere", *arguments)


@pytest.mark.parametrize("operation", ["create", "get", "list", "delete"])
async def test_anothers_task_is_not_there(operation: str) -> None:
    agent, _ = gated()
    async with pushing(agent) as caller:
        task_id = await waiting(caller)
        await caller.create(task_id, URL, id="p")
        other = CallContext(caller=Caller(id="bob"))
        arguments = {"create": (URL,), "get": ("p",), "list": (), "delete": ("p",)}[operation]
        with pytest.raises(TaskNotFoundError):
            await getattr(caller, operation)(task_id, *arguments, context=other)
        assert len((await caller.list(task_id)).configs) == 1


async def test_an_ended_task_takes_configurations(new_store: Callable[[], TaskStore]) -> None:
    agent, gate = gated()
    gate.set()
    async with pushing(agent, new_store()) as caller:
        task = await caller.task("go")
        await caller.create(task.id, URL, id="mine")
        assert (await caller.get(task.id, "mine")).url == URL


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
    ("fields", "field"),
    [
        ({"url": "hooks.example.com/a"}, "url"),
        ({"url": "/a"}, "url"),
        ({"url": "ftp://hooks.example.com/"}, "url"),
        ({"url": "https:///a"}, "url"),
        ({"url": "https://hooks.example.com:99999/"}, "url"),
        ({"url": "https://[::1/"}, "url"),
        ({"url": "https://ada:secret@hooks.example.com/"}, "url"),
        ({"url": "https://hooks.example.com/a b"}, "url"),
        ({"url": "https://hooks.example.com/\r\nX: y"}, "url"),
        ({"url": "https://hooks.example.com\\@evil.example/"}, "url"),
        ({"url": "https://hooks.example.com/" + "a" * 2048}, "url"),
        ({"token": "secret\r\nX-Evil: 1"}, "token"),
        ({"token": "secrét"}, "token"),
        ({"token": " secret"}, "token"),
        ({"token": "secret" * 1000}, "token"),
        ({"authentication": ("Bearer", "secret\nX: 1")}, "authentication.credentials"),
        ({"authentication": ("Bearer secret", "x")}, "authentication.scheme"),
        ({"authentication": ("Bearer:", "x")}, "authentication.scheme"),
        ({"authentication": ("", "secret")}, "authentication.scheme"),
        ({"id": "a\nb"}, "id"),
        ({"id": "a" * 257}, "id"),
        ({"id": ".."}, "id"),
    ],
)
async def test_what_cannot_be_told_is_refused_with_its_field(
    fields: dict[str, Any], field: str
) -> None:
    agent, _ = gated()
    if "authentication" in fields:
        scheme, credentials = fields["authentication"]
        fields = {"authentication": AuthenticationInfo(scheme=scheme, credentials=credentials)}
    async with pushing(agent) as caller:
        task_id = await waiting(caller)
        with pytest.raises(InvalidParamsError) as refused:
            await caller.create(task_id, **{"url": URL, **fields})
        assert [violation.field for violation in refused.value.violations] == [field]
        assert "secret" not in refused.value.message
        with pytest.raises(InvalidParamsError) as refused:
            await caller.send("go", config(**{"url": URL, **fields}))
        [violation] = refused.value.violations
        assert violation.field == f"configuration.taskPushNotificationConfig.{field}"


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


@pytest.mark.parametrize(
    "place",
    [
        "example.com", "EXAMPLE.com.", "a_b.example.com", "_dmarc.example.com", "1.example.com",
        "b\u00fccher.example", "xn--bcher-kva.example", "\u4f8b\u3048.jp", "8.8.8.8",
        "[2606:4700::1111]", "[2606:4700::1111]:8443", "example.com:443", "example.com:65535",
        "example.com:", "a" * 63 + ".com", "a--b.example.com", "3com.com",
    ],
)  # fmt: skip
async def test_a_url_whose_host_can_be_one_is_taken(place: str) -> None:
    agent, _ = gated()
    async with pushing(agent, allowed=False) as caller:
        task_id = await waiting(caller)
        await caller.create(task_id, f"https://{place}/hook")


async def test_all_that_is_wrong_is_named_at_once() -> None:
    agent, _ = gated()
    async with pushing(agent) as caller:
        task_id = await waiting(caller)
        with pytest.raises(InvalidParamsError) as refused:
            await caller.create(task_id, "nowhere", token="\0", id=".")
        assert [v.field for v in refused.value.violations] == ["id", "url", "token"]


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


def test_an_agent_sends_push_notifications_unless_told_otherwise() -> None:
    agent, _ = gated()
    assert agent.card("http://localhost/").capabilities.push_notifications is True


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


async def test_an_empty_authentication_is_none() -> None:
    """Some clients of 0.3 write one."""
    agent, _ = gated()
    async with pushing(agent) as caller:
        task_id = await waiting(caller)
        created = await caller.create(task_id, URL, authentication=AuthenticationInfo(scheme=""))
        assert created.authentication is None


async def test_a_configuration_keeps_the_version_of_its_request() -> None:
    agent, _ = gated()
    async with pushing(agent) as caller:
        task_id = await waiting(caller)
        old = of_version(caller.context, "0.3")
        await caller.create(task_id, URL, id="old", context=old)
        await caller.create(task_id, URL, id="new")
        assert {p.id: p.version for p in await caller.store.pushes(task_id)} == {
            "old": "0.3", "new": "1.0",
        }  # fmt: skip


async def test_one_that_comes_with_a_message_is_checked_before_the_message_is_taken() -> None:
    agent, _ = gated()
    ran = []

    @agent.skill(replies="task", default=True)
    async def run(text: str) -> str:
        ran.append(text)
        return text

    async with pushing(agent, allowed=False) as caller:
        with pytest.raises(InvalidParamsError):
            await caller.send("go", "http://127.0.0.1/")
        page = await caller.service.list_tasks(ListTasksRequest(), caller.context)
        assert page.total_size == 0
    assert ran == []


async def test_one_that_comes_with_a_message_for_another_task_is_refused() -> None:
    agent = Agent("Asking")

    @agent.skill
    async def ask(turn: Turn) -> str:
        return (await turn.ask("What?")).text

    async with pushing(agent) as caller:
        task = await caller.task("go")
        wrong = config(URL, task_id="another")
        with pytest.raises(InvalidParamsError) as refused:
            await caller.send("this", wrong, task_id=task.id)
        [violation] = refused.value.violations
        assert violation.field == "configuration.taskPushNotificationConfig.taskId"
        done = await caller.task("this", config(URL, task_id=task.id), task_id=task.id)
        assert done.text == "this"
        assert len((await caller.list(task.id)).configs) == 1


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
