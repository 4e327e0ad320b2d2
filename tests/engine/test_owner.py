"""Owner policies: which callers see which tasks, contexts, webhooks and receipts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley import (
    Agent,
    CallContext,
    Caller,
    Execution,
    Message,
    Rights,
    TaskPushNotificationConfig,
    TaskState,
    Turn,
)
from parley.extensions import SEARCH, SearchTasksRequest
from parley.model.errors import (
    A2AError,
    InternalError,
    PermissionDeniedError,
    TaskNotFoundError,
    UnauthenticatedError,
)
from parley.model.operations import (
    CancelTaskRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)
from parley.model.service import caller_of
from parley.security import OwnerPolicy, claim, owner_function
from parley.security.owner import LONGEST_KEY, PER_CALLER, PER_TENANT, owner_policy
from parley.store.sqlite.store import SqliteTaskStore

pytestmark = pytest.mark.anyio

ISSUER = "https://login.example"


def of(id: str, org: Any = "acme", **fields: Any) -> CallContext:
    tenant = fields.pop("tenant", "")
    extensions = fields.pop("extensions", frozenset())
    fields = {"issuer": ISSUER, "authenticated": True, "claims": {"org": org}, **fields}
    return CallContext(caller=Caller(id=id, **fields), tenant=tenant, extensions=extensions)


ADA, BOB, EVE = of("ada"), of("bob"), of("eve", "evil")


def asking(owner: Any = None, **options: Any) -> Agent:
    agent = Agent(
        "Asking", rights=Rights(owner=claim("org") if owner is None else owner), **options
    )

    @agent.skill
    async def ask(turn: Turn) -> str:
        count = await turn.update("count", lambda n: n + 1, 0)
        answer = await turn.ask(f"{turn.caller.id} is number {count}")
        return f"{turn.caller.id} said {answer.text}"

    return agent


# -- keys ------------------------------------------------------------------------------------------


NAMES = st.sampled_from(["", "a", "b", "claim", "of", "all", "tenant", "authenticated", "é"])


CALLERS = st.builds(
    Caller,
    id=NAMES.filter(bool),
    issuer=NAMES,
    authenticated=st.booleans(),
    claims=st.fixed_dictionaries({"a": NAMES.filter(bool), "claim": NAMES.filter(bool)}),
)


POLICIES: list[OwnerPolicy] = [
    PER_CALLER,
    PER_TENANT,
    claim("a"),
    claim("claim"),
    claim("a", across_issuers=True),
    owner_function(lambda caller: str(caller.claims["a"])),
    owner_function(lambda caller: str(caller.claims["a"]), across_issuers=True),
]


def meaning(policy: OwnerPolicy, caller: Caller) -> tuple[Any, ...]:
    """Return what decides the owner: equal for equal owners only."""
    n = POLICIES.index(policy)
    if n == 0:
        return (n, caller.issuer, caller.id, caller.authenticated)
    if n == 1:
        return (n,)
    value = caller.claims["claim" if n == 3 else "a"]
    issuer = "" if n in (4, 6) else caller.issuer
    return (n, issuer, value, caller.authenticated)


@given(CALLERS, CALLERS, st.sampled_from(POLICIES), st.sampled_from(POLICIES))
def test_two_keys_are_equal_for_the_same_owner_only(
    one: Caller, two: Caller, first: OwnerPolicy, second: OwnerPolicy
) -> None:
    is_same = meaning(first, one) == meaning(second, two)
    assert (first.key_of(one) == second.key_of(two)) is is_same


def test_a_caller_cannot_be_named_like_a_group() -> None:
    for policy in POLICIES[1:]:
        key = policy.key_of(Caller(id="x", claims={"a": "a", "claim": "a"}))
        assert caller_of(key) == Caller()  # a group's key is no caller's


def test_a_long_key_is_kept_as_a_digest() -> None:
    first = claim("org").key_of(Caller(id="x", issuer="i" * 500, claims={"org": "é" * 256}))
    other = claim("org").key_of(Caller(id="x", issuer="i" * 500, claims={"org": "é" * 255}))
    assert first != other
    assert max(len(first.encode()), len(other.encode())) <= LONGEST_KEY


class Forging(OwnerPolicy):
    def key_of(self, caller: Caller) -> str:
        return "ada"


@pytest.mark.parametrize("given", ["callers", "", None, 1, ("org",), claim, Caller, Forging()])
def test_an_owner_that_is_no_policy_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"claim\('org'\)"):
        Agent("x", rights=Rights(owner=given))


def test_a_function_of_an_owner_policy_is_plain() -> None:
    async def team(caller: Caller) -> str:
        return "a"

    with pytest.raises(TypeError, match="plain def"):
        Agent("x", rights=Rights(owner=team))
    with pytest.raises(ValueError, match="name of a claim"):
        claim("a\x1fb")


# -- rejected callers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("org", "sentence"),
    [
        (None, "have none"),
        ("", "have none"),
        ([], "have none"),
        (["acme", "evil"], "2 values"),
        ({"id": "acme"}, "not the name"),
        (True, "not the name"),
        (1.5, "not the name"),
        (["\x1f"], "not the name"),
        ("acme\x1f\x1f", "not the name"),
        ("x" * 600, "not the name"),
        (2**70, "not the name"),
    ],
)
def test_a_claim_that_is_no_group_is_refused_with_a_sentence(org: Any, sentence: str) -> None:
    with pytest.raises(PermissionDeniedError, match=sentence):
        claim("org").key_of(of("ada", org).caller)


def test_who_is_unknown_has_no_group() -> None:
    for policy in POLICIES[2:]:
        with pytest.raises(UnauthenticatedError):
            policy.key_of(Caller(claims={"a": "a", "claim": "a"}, authenticated=True))


def test_a_claim_of_one_value_may_be_a_list_or_a_number() -> None:
    key = claim("org").key_of
    assert key(of("ada", ["acme"]).caller) == key(ADA.caller)
    assert key(of("ada", 7).caller) == key(of("bob", 7).caller)


@pytest.mark.parametrize(
    ("function", "error"),
    [
        (lambda caller: "acme\x1fsecret", InternalError),
        (lambda caller: "x" * 600, InternalError),
        (lambda caller: 7, InternalError),
        (lambda caller: caller.claims["team"], InternalError),
        (lambda caller: None, PermissionDeniedError),
        (lambda caller: "", PermissionDeniedError),
    ],
)
def test_a_function_that_names_no_owner_denies(function: Any, error: type[A2AError]) -> None:
    with pytest.raises(error) as caught:
        owner_policy(function).key_of(ADA.caller)
    assert "secret" not in str(caught.value)


async def test_whoever_may_own_nothing_is_refused_everywhere(talk: Any) -> None:
    async with talk(asking()) as caller:
        task = await caller.task("go", context=ADA)
        for context, error in (
            (of("nobody", None), PermissionDeniedError),
            (CallContext(), UnauthenticatedError),
        ):
            service = caller.service
            for asked in (
                caller.send("go", context=context),
                caller.send("go", task_id=task.id, context=context),
                anext(caller.stream("go", context=context)),
                service.get_task(GetTaskRequest(id=task.id), context),
                service.list_tasks(ListTasksRequest(), context),
                service.cancel_task(CancelTaskRequest(id=task.id), context),
                anext(service.subscribe_to_task(SubscribeToTaskRequest(id=task.id), context)),
                service.get_task_push_notification_config(
                    GetTaskPushNotificationConfigRequest(task_id=task.id, id="x"), context
                ),
            ):
                with pytest.raises(error):
                    await asked


# -- shared data -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "outsider"),
    [
        (claim("org"), EVE),
        (claim("org"), of("ada", issuer="https://other.example")),
        (claim("org"), of("ada", authenticated=False)),
        (claim("org", across_issuers=True), EVE),
        (lambda caller: caller.claims["org"], EVE),
        ("tenant", of("ada", tenant="other")),
        ("caller", EVE),
    ],
)
async def test_what_one_makes_belongs_to_its_owner_and_nobody_else(
    talk: Any, owner: Any, outsider: CallContext
) -> None:
    friend = ADA if owner == "caller" else BOB
    async with talk(asking(owner)) as caller:
        service = caller.service
        task = await caller.task("go", context=ADA)
        hook = TaskPushNotificationConfig(
            task_id=task.id, id="hook", url="https://hooks.example.com/a2a"
        )
        await service.create_task_push_notification_config(hook, ADA)
        get, search = GetTaskRequest(id=task.id), SearchTasksRequest(text="go")
        get_hook = GetTaskPushNotificationConfigRequest(task_id=task.id, id="hook")
        for context, is_shared in ((friend, True), (outsider, False)):
            listed = await service.list_tasks(ListTasksRequest(), context)
            assert ([each.id for each in listed.tasks], listed.total_size) == (
                ([task.id], 1) if is_shared else ([], 0)
            )
            found = await SEARCH.handle(service, search, context)
            assert [each.id for each in found.tasks] == [task.id] * is_shared
            for asked in (
                service.get_task(get, context),
                service.get_task_push_notification_config(get_hook, context),
            ):
                if is_shared:
                    await asked
                else:
                    with pytest.raises(TaskNotFoundError):
                        await asked
        with pytest.raises(TaskNotFoundError):
            await service.cancel_task(CancelTaskRequest(id=task.id), outsider)
        with pytest.raises(TaskNotFoundError):
            await caller.send("yes", task_id=task.id, context=outsider)
        done = await caller.task("yes", task_id=task.id, context=friend)
        assert done.text == f"{friend.caller.id} said yes"


# -- the queue -------------------------------------------------------------------------------------


async def test_a_busy_member_does_not_starve_its_group(talk: Any) -> None:
    order: list[str] = []
    free = asyncio.Event()
    agent = Agent("Busy", rights=Rights(owner=claim("org")), execution=Execution(max_running=1))

    @agent.skill(replies="task")
    async def work(turn: Turn) -> None:
        order.append(turn.caller.id)
        await free.wait()

    async with talk(agent) as caller:
        sent = [
            await caller.task("go", context=context, return_immediately=True)
            for context in (ADA, ADA, ADA, ADA, BOB)
        ]
        free.set()
        async with asyncio.timeout(20):
            for task in sent:
                items = caller.service.subscribe_to_task(SubscribeToTaskRequest(id=task.id), ADA)
                try:
                    async for _ in items:
                        pass
                except A2AError:
                    pass  # it has ended
    assert sorted(order) == ["ada"] * 4 + ["bob"]
    assert order.index("bob") <= 2


# -- callers, read back from the store -------------------------------------------------------------


async def test_client_actors_and_scopes_are_those_of_the_message_in_every_attempt(
    talk: Any, tmp_path: Path
) -> None:
    seen: list[Caller] = []
    agent = Agent("Noting")

    @agent.skill
    async def note(turn: Turn) -> str:
        seen.append(turn.caller)
        return (await turn.ask("Go on?")).text

    path = tmp_path / "tasks.db"
    app = Caller(
        id="ada",
        issuer=ISSUER,
        authenticated=True,
        client="phone",
        actors=("assistant", "gateway"),
        scopes=frozenset({"write", "read"}),
        granted={object(): frozenset({"read", "write"})},
    )
    cron = Caller(id="ada", issuer=ISSUER, authenticated=True, client="cron")
    async with talk(agent, SqliteTaskStore(path)) as caller:
        task = await caller.task("go", context=CallContext(caller=app))
    async with talk(agent, SqliteTaskStore(path)) as caller:
        reply = await caller.send("yes", task_id=task.id, context=CallContext(caller=cron))
        assert not isinstance(reply, Message)
        assert reply.state is TaskState.COMPLETED
    first, second = seen
    assert first == Caller(
        id="ada",
        issuer=ISSUER,
        authenticated=True,
        client="phone",
        actors=("assistant", "gateway"),
        scopes=frozenset({"read", "write"}),
    )
    assert second == cron
