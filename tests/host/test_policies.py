"""The policies of a server: of its agents, of its callers, and for outbound calls."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import parley
from parley import Agent, Caller, Message, Part, Rights, Role, Task, TaskState, Turn
from parley.extensions import SEARCH, SearchTasksRequest, TaskSearch
from parley.host.egress import EgressPolicies, read_egress
from parley.host.options import ServerOptions, is_of_this_machine
from parley.model.errors import A2AError, PermissionDeniedError, UnauthenticatedError
from parley.model.extensions import Extension, method
from parley.model.operations import SendMessageRequest
from parley.model.service import A2AService
from parley.model.tasks import TaskStatus
from parley.security import Access, Bearer, Egress
from parley.security.egress import ForbiddenAddress
from parley.server.app import Settings
from parley.server.dispatch import MAX_ACTORS, MAX_SCOPE_CHARACTERS, check_caller
from parley.server.run import serving

pytestmark = pytest.mark.anyio


class Noting:
    """A policy that records its calls, in a thread, and rejects some operations."""

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
    with pytest.raises(ValueError, match="never be called"):
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


# -- the egress policies of a server: options, environment, and allowed calls of agents ------------


def test_the_environment_has_lists() -> None:
    egress = read_egress(
        environ={
            "PARLEY_EGRESS_ALLOW": "10.1.0.0/16, hooks.internal:8443",
            "PARLEY_EGRESS_DENY": "*.example.net",
            "PARLEY_EGRESS_ONLY_ALLOWED": "1",
        }
    )
    egress.check_address("10.1.2.3", 80)
    egress.check_address("10.9.9.9", 8443, host="hooks.internal")
    for address, host in (("8.8.8.8", ""), ("10.1.2.3", "a.example.net"), ("10.2.0.1", "")):
        with pytest.raises(ForbiddenAddress):
            egress.check_address(address, 443, host=host)


def test_options_replace_variables() -> None:
    environ = {"PARLEY_EGRESS_ALLOW": "10.1.0.0/16", "PARLEY_EGRESS_DENY": "8.8.8.8"}
    egress = read_egress(["10.2.0.0/16"], environ=environ)
    egress.check_address("10.2.0.1")
    for address in ("10.1.0.1", "8.8.8.8"):
        with pytest.raises(ForbiddenAddress):
            egress.check_address(address)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PARLEY_EGRESS_ALLOW", "http://host/"),
        ("PARLEY_EGRESS_ALLOW", "*"),
        ("PARLEY_EGRESS_DENY", "host:99999"),
        ("PARLEY_EGRESS_ONLY_ALLOWED", "perhaps"),
    ],
)
def test_what_is_wrong_in_the_environment_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        read_egress(environ={name: value})


def test_a_setting_adds_to_its_use_alone_and_deny_wins() -> None:
    policies = EgressPolicies.of(
        ServerOptions(
            egress=Egress.of(deny=["10.1.9.0/24"]),
            allow_private_webhooks=("10.1.0.0/16",),
            allow_private_agents=True,
        )
    )
    policies.webhooks.check_address("10.1.2.3")
    policies.agents.check_address("127.0.0.1")
    for policy in (policies.all, policies.files):
        with pytest.raises(ForbiddenAddress):
            policy.check_address("10.1.2.3")
    for policy in (policies.webhooks, policies.agents):
        with pytest.raises(ForbiddenAddress, match="denied"):
            policy.check_address("10.1.9.1")


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Egress\.of"):
        parley.asgi(Agent("A"), egress=["10.0.0.0/8"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "url", "expected"),
    [
        (Settings(), None, True),
        (Settings(), "http://localhost:9999", True),
        (Settings(), "https://agents.example.com", False),
        (Settings(trust_proxy=True), None, False),
        (Settings(allowed_hosts=("agents.example.com",)), None, False),
    ],
)
def test_a_public_name_or_a_proxy_brings_callers_from_elsewhere(
    settings: Settings, url: str | None, expected: bool
) -> None:
    assert is_of_this_machine(settings, url) is expected


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "hello"),
        ({"egress": Egress.of(deny=["127.0.0.0/8"])}, "AddressNotAllowed"),
        ({"allow_private_agents": False}, "AddressNotAllowed"),
        ({"allow_private_agents": ["127.0.0.1"]}, "hello"),
    ],
)
@pytest.mark.parametrize("way", ["delegate", "library", "thread"])
async def test_an_agent_calls_others_of_its_machine_where_nobody_else_calls_it(
    options: dict[str, object], expected: str, way: str
) -> None:
    peer, planner = Agent("Peer"), Agent("Planner")

    @peer.skill
    def greet(text: str) -> str:
        return "hello"

    if way == "thread":

        @planner.skill
        def plan_in_thread(text: str) -> str:
            try:
                with parley.connect_sync(text, auth=False) as remote:
                    return remote.send("go").text
            except parley.ClientError as error:
                return type(error).__name__

    else:

        @planner.skill
        async def plan(turn: Turn) -> str:
            try:
                if way == "delegate":
                    return (await turn.delegate(turn.text, "go")).text
                async with parley.connect(turn.text, auth=False) as remote:
                    return (await remote.send("go")).text
            except parley.ClientError as error:
                return type(error).__name__

    app = parley.asgi(planner, **options)  # type: ignore[arg-type]
    async with (
        serving(parley.asgi(peer)) as there,
        serving(app) as url,
        parley.connect(url) as remote,
    ):
        assert (await remote.send(there)).text == expected


@pytest.mark.anyio
async def test_an_agent_under_another_asgi_server_is_told_the_setting_to_add(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caller = Agent("Caller")

    @caller.skill
    async def ask(turn: Turn) -> str:
        async with turn.connect("http://127.0.0.1:9") as other:
            return (await other.send("go")).text

    app = parley.asgi(caller)  # the listen address is unknown, as under uvicorn
    async with parley.connect(app) as remote:
        await remote.send("go")
    assert 'allow_private_agents=["127.0.0.1"]' in caplog.text
