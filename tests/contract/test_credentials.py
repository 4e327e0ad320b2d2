"""Credentials: several per request, certificates, expiry, and the scopes of each operation."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import parley
from parley import Agent, CardDetails, Part, Rights, TaskPushNotificationConfig, Turn
from parley.client.bindings.http import GrpcTls, HttpTransport
from parley.client.remote_agent import RemoteAgent
from parley.extensions import SEARCH, SearchTasksRequest, TaskSearch
from parley.model.errors import (
    A2AError,
    PermissionDeniedError,
    TaskNotFoundError,
    UnauthenticatedError,
)
from parley.model.operations import (
    OPERATIONS,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)
from parley.model.service import Caller
from parley.security import ApiKey, Bearer, MutualTls
from parley.server.run import serving
from parley.server.settings import GrpcOptions, TlsOptions
from tests.contract.conftest import Serve, Speech, past_the_card, reach
from tests.contract.test_errors import refused, saying
from tests.kit.certificates import Authority, Pair, trusting
from tests.kit.servers import WAYS

pytestmark = pytest.mark.anyio


KEYS = {
    "ada-key": Caller(id="ada", scopes=frozenset({"read"})),
    "shop-key": Caller(id="shop", client="shop", scopes=frozenset({"read", "audit"})),
}
TOKENS = {
    "ada-token": Caller(id="ada", scopes=frozenset({"read", "pay"})),
    "eve-token": Caller(id="eve", client="app", scopes=frozenset({"read", "pay"})),
    "robot-token": Caller(id="robot", client="robot", scopes=frozenset({"read", "pay"})),
}

key = ApiKey(keys={hashlib.sha256(each.encode()).hexdigest(): KEYS[each] for each in KEYS})
token = Bearer(TOKENS.get)
either = Agent("Either", key="either", security=key | token)
both = Agent("Both", key="both", security=key & token)


async def who(turn: Turn) -> str:
    caller = turn.caller
    return f"{caller.id} by {caller.client or 'nothing'} with {' '.join(sorted(caller.scopes))}"


for agent in (either, both):
    agent.skill(id="who")(who)
    agent.skill(id="pay", security=token.with_scopes("pay"))(who)


@pytest.fixture(scope="session")
async def of_either(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, either), caller=None)


@pytest.fixture(scope="session")
async def of_both(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, both), caller=None)


def headers(key: str, token: str) -> dict[str, str]:
    return {"x-api-key": key, "authorization": f"Bearer {token}"}


def to(skill: str) -> dict[str, Any]:
    return {"metadata": {"skill": skill}}


async def test_credentials_of_two_people_are_refused(
    of_either: Sequence[str], of_both: Sequence[str], speech: Speech
) -> None:
    for addresses in (of_either, of_both):
        async with reach(addresses, speech, headers=headers("ada-key", "eve-token")) as remote:
            for skill in ("who", "pay"):
                request = saying(Part(text="hi"), **to(skill))
                error = await refused(remote, "SendMessage", request)
                assert type(error) is UnauthenticatedError
                assert "belong to different people" in error.message


async def test_credentials_of_one_person_count_together(
    of_either: Sequence[str], of_both: Sequence[str], speech: Speech
) -> None:
    for addresses in (of_either, of_both):
        async with reach(addresses, speech, headers=headers("ada-key", "ada-token")) as remote:
            task = await remote.send("now", **to("pay"))
            assert task.text == "ada by nothing with pay read"


async def test_an_application_beside_a_person_is_its_client_and_gives_it_no_scopes(
    of_either: Sequence[str], of_both: Sequence[str], speech: Speech
) -> None:
    async with reach(of_both, speech, headers=headers("shop-key", "ada-token")) as remote:
        task = await remote.send("now", **to("pay"))
        assert task.text == "ada by shop with pay read"
    async with reach(of_either, speech, headers=headers("ada-key", "robot-token")) as remote:
        assert (await remote.send("hi", **to("who"))).text == "ada by robot with read"
        error = await refused(remote, "SendMessage", saying(Part(text="now"), **to("pay")))
        assert type(error) is PermissionDeniedError
        assert "the scope pay" in error.message


# -- streams end when their credentials expire, over every binding ---------------------------------


VALID: set[str] = set()
agent = Agent("Endless", security=Bearer(lambda text: Caller(id="ada") if text in VALID else None))


@agent.skill(replies="task")
async def endless(turn: Turn) -> str:
    await turn.ask("More?")
    return "done"


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, agent), caller=None)


@pytest.mark.slow
async def test_a_stream_ends_when_its_credentials_do(
    addresses: Sequence[str], speech: Speech
) -> None:
    first, second = uuid4().hex, uuid4().hex
    VALID.update((first, second))
    bearing = [{"authorization": f"Bearer {token}"} for token in (first, second)]
    async with (
        reach(addresses, speech, headers=bearing[0]) as ending,
        reach(addresses, speech, headers=bearing[1]) as staying,
    ):
        task = await staying.send("hi")
        streams = [each.subscribe(task.id) for each in (ending, staying)]
        for stream in streams:
            await anext(stream)
        VALID.remove(first)
        async with asyncio.timeout(10):
            with pytest.raises(UnauthenticatedError):
                await anext(streams[0])
            await staying.send("enough", task_id=task.id)
            events = [event async for event in streams[1]]
        assert events[-1].status.state.name == "COMPLETED"


# -- mutual TLS: the certificate names the caller, over every binding and version ------------------


AUTHORITY = Authority()
SHOP = "spiffe://example.org/shop"
shop = AUTHORITY.caller("shop", uris=(SHOP,))
ada = AUTHORITY.caller("ada", key=3)
mallory = AUTHORITY.caller("mallory", key=4)

bank = Agent("Bank", security=MutualTls([SHOP, "CN=ada"]))


@bank.skill(replies="task")
async def mutual_tls_who(turn: Turn) -> str:
    return f"{turn.caller.id} of {turn.caller.issuer}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
async def url(folder: Path) -> AsyncIterator[str]:
    cert, key = AUTHORITY.server().write(folder, "server")
    tls = TlsOptions(cert=cert, key=key, client_ca=AUTHORITY.write(folder))
    async with serving(parley.asgi(bank), tls=tls, grpc=GrpcOptions(port=0)) as address:
        yield address


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@asynccontextmanager
async def calling(
    url: str, folder: Path, way: tuple[str, str], pair: Pair
) -> AsyncIterator[RemoteAgent]:
    cert, key = pair.write(folder, pair.fingerprint)
    transport = HttpTransport(
        tls=trusting(AUTHORITY, (cert, key)),
        grpc_tls=GrpcTls(ca=folder / "ca.pem", cert=cert, key=key),
    )
    binding, version = way
    async with (
        transport,
        parley.connect(url, http=transport, binding=binding, version=version, retries=0) as remote,
    ):
        yield remote


async def test_callers_are_who_their_certificates_name(
    url: str, folder: Path, way: tuple[str, str]
) -> None:
    async with calling(url, folder, way, shop) as first, calling(url, folder, way, ada) as second:
        assert list(first.card.security_schemes) == ["mtls"]
        task = await first.send("who am I?")
        assert task.text == f"{SHOP} of CN=Test authority"
        assert (await second.send("who am I?")).text == "CN=ada of CN=Test authority"
        assert (await first.get(task.id)).id == task.id
        with pytest.raises(TaskNotFoundError):
            await second.get(task.id)


async def test_a_certificate_that_is_not_pinned_lets_nobody_in(
    url: str, folder: Path, way: tuple[str, str]
) -> None:
    async with calling(url, folder, way, mallory) as remote:
        error = await refused(remote, "GetTask", GetTaskRequest(id="any"))
        assert type(error) is UnauthenticatedError


# -- each operation and extension method requires its declared scopes, over every binding ----------


REQUESTS: dict[str, Any] = {
    "SendMessage": saying(),
    "SendStreamingMessage": saying(),
    "GetTask": GetTaskRequest(id="any"),
    "ListTasks": ListTasksRequest(),
    "CancelTask": CancelTaskRequest(id="any"),
    "SubscribeToTask": SubscribeToTaskRequest(id="any"),
    "CreateTaskPushNotificationConfig": TaskPushNotificationConfig(
        task_id="any", id="hook", url="https://hooks.example.com/a2a"
    ),
    "GetTaskPushNotificationConfig": GetTaskPushNotificationConfigRequest(task_id="any", id="x"),
    "ListTaskPushNotificationConfigs": ListTaskPushNotificationConfigsRequest(task_id="any"),
    "DeleteTaskPushNotificationConfig": DeleteTaskPushNotificationConfigRequest(
        task_id="any", id="x"
    ),
    "GetExtendedAgentCard": GetExtendedAgentCardRequest(),
}
NAMES = [*REQUESTS, SEARCH.operation.name]


def judge(text: str) -> Caller:
    """Read a token: its scopes, separated by commas."""
    return Caller(id="ada", scopes=frozenset(text.split(",")))


security_token = Bearer(judge)
security_agent = Agent(
    "Scoped",
    security=security_token.with_scopes("none-of-these"),
    rights=Rights(operations={name: security_token.with_scopes(f"may-{name}") for name in NAMES}),
    card=CardDetails(extended_card={"description": "for those who may"}),
    extensions=[TaskSearch()],
)


@security_agent.skill
async def echo(turn: Turn) -> str:
    return turn.text


@pytest.fixture(scope="session")
async def security_addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, security_agent), caller=None)


@asynccontextmanager
async def bearing(
    addresses: Sequence[str], speech: Speech, *scopes: str
) -> AsyncIterator[RemoteAgent]:
    headers = {"authorization": f"Bearer {','.join(scopes)}"}
    async with reach(addresses, speech, headers=headers, extensions=[TaskSearch()]) as remote:
        yield remote


async def answer(remote: RemoteAgent, name: str, request: Any) -> Any:
    """Return the response of an operation, or its error."""
    try:
        return await past_the_card(remote, name, request)
    except A2AError as error:
        return error


def test_every_operation_is_tried() -> None:
    assert list(REQUESTS) == [each.name for each in OPERATIONS]


async def test_an_operation_needs_its_scope_and_no_other(
    security_addresses: Sequence[str], speech: Speech
) -> None:
    for name, request in REQUESTS.items():
        if speech.is_old and name == "ListTasks":
            continue  # 0.3 has no such operation
        others = [f"may-{each}" for each in NAMES if each != name]
        async with bearing(security_addresses, speech, "none-of-these", *others) as remote:
            error = await refused(remote, name, request)
            assert type(error) is PermissionDeniedError, name
            assert f"may-{name}" in error.message
        async with bearing(security_addresses, speech, f"may-{name}") as remote:
            kind = type(await answer(remote, name, request))
            assert kind is not PermissionDeniedError, name


async def test_the_method_of_an_extension_does_too(
    security_addresses: Sequence[str], speech: Speech
) -> None:
    if speech.is_old or speech.binding == "GRPC":
        return  # 0.3 has no extension methods
    others = [f"may-{name}" for name in REQUESTS]
    async with bearing(security_addresses, speech, "none-of-these", *others) as remote:
        with pytest.raises(PermissionDeniedError, match="may-tasks/search"):
            await remote.call(SEARCH, SearchTasksRequest())
    async with bearing(security_addresses, speech, "may-tasks/search") as remote:
        assert not (await remote.call(SEARCH, SearchTasksRequest(text="nothing"))).tasks
