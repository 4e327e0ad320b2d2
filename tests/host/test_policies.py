"""The policy of a server, beside those of its agents, and what is known of a caller."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Message, Part, Rights, Role, Task, TaskState, Turn
from parley.extensions import SEARCH, SearchTasksRequest, TaskSearch
from parley.model.errors import A2AError, PermissionDeniedError, UnauthenticatedError
from parley.model.extensions import Extension, method
from parley.model.operations import SendMessageRequest
from parley.model.service import A2AService
from parley.model.tasks import TaskStatus
from parley.security import Access, Bearer
from parley.server.dispatch import MAX_ACTORS, MAX_SCOPE_CHARACTERS, check_caller

pytestmark = pytest.mark.anyio


class Noting:
    """A policy that notes what it is asked, in a thread, and refuses some operations."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, access: Access) -> bool:
        what = access.operation or access.action
        self.asked.append(what)
        self.threads.add(threading.get_ident())
        return what not in self.refused


def files(**options: Any) -> Agent:
    agent = Agent("Files", extensions=[TaskSearch()], **options)

    @agent.skill
    async def read(turn: Turn) -> str:
        await turn.authorize("read")
        return "the text"

    return agent


async def refusal(asked: Any) -> str:
    with pytest.raises(A2AError) as caught:
        await asked
    assert type(caught.value) is PermissionDeniedError
    return str(caught.value)


async def test_the_policies_of_server_and_agent_must_both_allow() -> None:
    of_server, of_agent = Noting("ListTasks"), Noting("CancelTask", "tasks/search")
    app = parley.asgi(files(rights=Rights(policy=of_agent)), policy=of_server)
    async with parley.connect(app, extensions=[TaskSearch()]) as remote:
        task = await remote.send("go")
        assert task.text == "the text"
        await remote.get(task.id)
        await refusal(remote.list())
        await refusal(remote.cancel(task.id))
        await refusal(remote.call(SEARCH, SearchTasksRequest()))
    asked = ["SendMessage", "read", "GetTask", "ListTasks", "CancelTask", "tasks/search"]
    assert of_server.asked == asked
    assert of_agent.asked == [each for each in asked if each != "ListTasks"]
    assert threading.get_ident() not in of_server.threads | of_agent.threads


async def test_a_server_has_a_policy_for_agents_without_one() -> None:
    of_server = Noting("read")
    app = parley.asgi(files(), policy=of_server)
    async with parley.connect(app) as remote:
        task = await remote.send("go")
        assert task.state is parley.TaskState.REJECTED
    assert of_server.asked == ["SendMessage", "read"]


async def test_what_a_server_requires_instead_keeps_the_policy_of_the_agent() -> None:
    token = Bearer({"ada": Caller(id="ada")}.get)
    of_agent = Noting("GetTask")
    for auth, headers in ((False, {}), (token, {"authorization": "Bearer ada"})):
        app = parley.asgi(files(rights=Rights(policy=of_agent), security=token), auth=auth)
        async with parley.connect(app, headers=headers) as remote:
            task = await remote.send("go")
            await refusal(remote.get(task.id))


async def test_the_policy_is_asked_about_a_method_of_an_extension_that_takes_a_message() -> None:
    uri, called = "urn:test:drafts", []

    async def draft(service: A2AService, request: SendMessageRequest, context: Any) -> Task:
        called.append(request.message.text)
        return Task(id="1", context_id="1", status=TaskStatus(state=TaskState.COMPLETED))

    drafts = method(uri, "drafts/save", SendMessageRequest, Task, draft, path="/drafts")

    class Drafts(Extension):
        uri = "urn:test:drafts"
        methods = (drafts,)

    agent, of_server = Agent("Drafts", extensions=[Drafts()]), Noting("drafts/save")
    agent.skill(lambda: "done", id="work")
    app = parley.asgi(agent, policy=of_server)
    message = Message(message_id="1", role=Role.USER, parts=(Part(text="hi"),))
    async with parley.connect(app, extensions=[Drafts()]) as remote:
        await refusal(remote.call(drafts, SendMessageRequest(message=message)))
    assert (of_server.asked, called) == (["drafts/save"], [])


def test_a_hook_that_would_never_be_asked_is_refused() -> None:
    def who(scope: Any) -> Caller:
        return Caller(id="ada")

    secured, plain = files(security=Bearer(lambda token: None)), Agent("Plain")
    plain.skill(lambda: "done", id="work")
    with pytest.raises(ValueError, match="never be asked"):
        parley.asgi(secured, caller=who)
    parley.asgi(secured, caller=who, auth=False)
    parley.asgi([secured, plain], caller=who)


@pytest.mark.parametrize("key", ["", "short"])
def test_a_key_that_is_too_short_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="32 characters or more"):
        parley.asgi(files(), secret_key=key)


def test_tasks_of_tenants_without_a_policy_are_warned_about(caplog: Any) -> None:
    parley.asgi(files(rights=Rights(owner="tenant")))
    assert "may name any tenant" in caplog.text
    caplog.clear()
    parley.asgi(files(rights=Rights(owner="tenant")), policy=Noting())
    parley.asgi(files())
    assert not caplog.text


def test_what_is_no_policy_of_a_server_is_refused() -> None:
    with pytest.raises(TypeError, match="function of an Access"):
        parley.asgi(files(), policy=7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "caller",
    [
        Caller(client="cron", authenticated=True),
        Caller(id="ada", client="a\x1fb"),
        Caller(id="ada", actors=("a", "\x1f")),
        Caller(id="ada", actors=("a",) * (MAX_ACTORS + 1)),
        Caller(id="ada", scopes=frozenset({"s" * MAX_SCOPE_CHARACTERS})),
    ],
)
def test_a_caller_that_cannot_be_stored_is_refused(caller: Caller) -> None:
    with pytest.raises(UnauthenticatedError):
        check_caller(caller)


def test_a_client_without_a_user_has_its_own_id() -> None:
    check_caller(Caller(id="cron", client="cron", authenticated=True, scopes=frozenset({"read"})))


async def test_a_server_says_which_requirements_its_own_one_replaces(
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = Bearer({"t": Caller(id="ada")}.get)
    agent = Agent("Bank", security=token, rights=Rights(operations={"CancelTask": token}))

    @agent.skill(security=token.with_scopes("pay"))
    async def pay(text: str) -> str:
        return text

    parley.asgi(agent, auth=Bearer({"u": Caller(id="bob")}.get))
    [said] = [record.getMessage() for record in caplog.records]
    assert "the skill pay, the operation CancelTask" in said
    caplog.clear()
    parley.asgi(files(security=token), auth=False)
    assert caplog.records == []
