"""Requirements of an agent, custom checks, and credentials for tasks, over every binding."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import aiohttp
import pytest

import parley
import parley.envelope
from parley import Agent, Part, Rights, TaskState, Turn
from parley.client import auth_request
from parley.client.remote_agent import RemoteAgent
from parley.engine.service.admission import Admission, IncomingMessage
from parley.envelope import EnvelopeFailed
from parley.model.errors import PermissionDeniedError, TaskNotFoundError, UnauthenticatedError
from parley.model.operations import CancelTaskRequest, GetTaskRequest, SendMessageConfiguration
from parley.model.service import Caller
from parley.security import Access, Bearer
from parley.server.dispatch import Dispatcher, ServiceCall
from tests.contract.conftest import Serve, Speech, past_the_card, reach
from tests.contract.test_errors import refused, saying
from tests.kit.waiting import let_time_pass

pytestmark = pytest.mark.anyio


TOKENS = {
    "reader": Caller(id="ada", scopes=frozenset({"read"})),
    "payer": Caller(id="ada", scopes=frozenset({"read", "pay"})),
    "barred": Caller(id="mallory", scopes=frozenset({"read", "pay"})),
}


def policy(access: Access) -> bool:
    return access.caller.id != "mallory"


token = Bearer(TOKENS.get)
bank = Agent(
    "Bank",
    security=token.with_scopes("read"),
    rights=Rights(operations={"CancelTask": token.with_scopes("pay")}, policy=policy),
)


@bank.skill(replies="task")
async def balance(turn: Turn) -> str:
    return f"{turn.caller.id}: 42"


@bank.skill(security=token.with_scopes("pay"))
async def pay(turn: Turn) -> str:
    await turn.ask("Really?")
    return "paid"


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, bank), caller=None)


@asynccontextmanager
async def bearing(
    addresses: Sequence[str], speech: Speech, token: str
) -> AsyncIterator[RemoteAgent]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with reach(addresses, speech, headers=headers) as remote:
        yield remote


async def test_the_card_says_what_is_required(addresses: Sequence[str], speech: Speech) -> None:
    async with bearing(addresses, speech, "reader") as remote:
        card = remote.card
    assert list(card.security_schemes) == ["bearer"]
    [needs] = card.security_requirements
    assert {name: scopes.list for name, scopes in needs.schemes.items()} == {"bearer": ("read",)}
    if speech.version == "1.0":
        [needs] = card.skills[1].security_requirements
        assert needs.schemes["bearer"].list == ("pay",)


@pytest.mark.parametrize("token", ["", "unknown"])
async def test_nobody_is_let_in_without_a_valid_token(
    addresses: Sequence[str], speech: Speech, token: str
) -> None:
    async with bearing(addresses, speech, token) as remote:
        for name, request in (
            ("SendMessage", saying(Part(text="hi"))),
            ("SendStreamingMessage", saying(Part(text="hi"))),
            ("GetTask", GetTaskRequest(id="any")),
        ):
            error = await refused(remote, name, request)
            assert type(error) is UnauthenticatedError


async def test_a_token_lets_its_caller_in(addresses: Sequence[str], speech: Speech) -> None:
    async with bearing(addresses, speech, "reader") as remote:
        task = await remote.send("what have I got")
        assert task.text == "ada: 42"
        assert (await remote.get(task.id)).id == task.id


async def test_a_skill_and_an_operation_need_scopes_of_their_own(
    addresses: Sequence[str], speech: Speech
) -> None:
    to_pay: dict[str, Any] = {"metadata": {"skill": "pay"}}
    async with (
        bearing(addresses, speech, "reader") as reader,
        bearing(addresses, speech, "payer") as payer,
    ):
        asked = await payer.send("now", **to_pay)
        for name, request in (
            ("SendMessage", saying(Part(text="now"), **to_pay)),
            ("SendMessage", saying(Part(text="yes"), task_id=asked.id)),
            ("CancelTask", CancelTaskRequest(id=asked.id)),
        ):
            error = await refused(reader, name, request)
            assert type(error) is PermissionDeniedError
            assert error.metadata.get("requiredScopes", "pay") == "pay"
        assert (await payer.send("yes", task_id=asked.id)).text == "paid"


async def test_the_policy_is_asked_for_every_operation(
    addresses: Sequence[str], speech: Speech
) -> None:
    async with bearing(addresses, speech, "barred") as barred:
        for name, request, kind in (
            ("SendMessage", saying(Part(text="hi")), PermissionDeniedError),
            ("SendStreamingMessage", saying(Part(text="hi")), PermissionDeniedError),
            ("GetTask", GetTaskRequest(id="any"), PermissionDeniedError),
            ("SendMessage", saying(Part(text="hi"), task_id="any"), TaskNotFoundError),
        ):
            assert type(await refused(barred, name, request)) is kind


# -- a custom check applies to every binding and version -------------------------------------------


agent = Agent("Checked")
ran: list[str] = []


@agent.skill
async def echo(turn: Turn) -> str:
    ran.append(turn.text)
    if turn.text == "ask":
        await turn.ask("what?")
    return turn.text


async def refuse_later() -> None:
    raise PermissionDeniedError("refused by the added check")


def check_message(m: IncomingMessage) -> Awaitable[None] | None:
    """The custom check of messages: a plain result, or an awaitable."""
    if m.request.message.text == "no":
        raise PermissionDeniedError("refused by the added check")
    return refuse_later() if m.request.message.text == "no, later" else None


def check_call(call: ServiceCall) -> Awaitable[None] | None:
    """The custom check of all calls."""
    id = getattr(call.request, "id", "")
    if id == "no":
        raise PermissionDeniedError("refused by the added check")
    return refuse_later() if id == "no-later" else None


@pytest.fixture(scope="module")
def added() -> Iterator[None]:
    """Add the checks to each agent that starts from now on."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, check in ((Admission, check_message), (Dispatcher, check_call)):
            made = kind.__init__

            def init(self: Any, *args: Any, made: Any = made, check: Any = check, **more: Any):
                made(self, *args, **more)
                lists = [self] if isinstance(self, Admission) else [self._agent]
                for each in lists:
                    each.steps.append(check)

            patch.setattr(kind, "__init__", init)
        yield


@pytest.fixture(scope="module")
async def added_checks_addresses(added: None, serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, agent))


@pytest.fixture(scope="module")
async def checked(
    added_checks_addresses: Sequence[str], speech: Speech
) -> AsyncIterator[RemoteAgent]:
    async with reach(added_checks_addresses, speech) as remote:
        yield remote


IMMEDIATE = SendMessageConfiguration(return_immediately=True)


@pytest.mark.parametrize("text", ["no", "no, later"])
@pytest.mark.parametrize("name", ["SendMessage", "SendStreamingMessage"])
@pytest.mark.parametrize("configuration", [None, IMMEDIATE], ids=["waiting", "immediate"])
async def test_a_message_that_an_added_check_refuses_begins_and_joins_nothing(
    checked: RemoteAgent, name: str, text: str, configuration: SendMessageConfiguration | None
) -> None:
    asking = await checked.send("ask")
    ran.clear()
    for task_id in ("", asking.id):
        request = saying(Part(text=text), task_id=task_id)
        request = type(request)(message=request.message, configuration=configuration)
        error = await refused(checked, name, request)
        assert isinstance(error, PermissionDeniedError)
        assert error.message == "refused by the added check"
    assert ran == []
    kept = await past_the_card(checked, "GetTask", GetTaskRequest(id=asking.id))
    assert [message.text for message in kept.history] == ["ask"]


@pytest.mark.parametrize("id", ["no", "no-later"])
async def test_a_call_that_an_added_check_refuses_is_not_made(
    checked: RemoteAgent, id: str
) -> None:
    error = await refused(checked, "GetTask", GetTaskRequest(id=id))
    assert isinstance(error, PermissionDeniedError)
    assert error.message == "refused by the added check"


@pytest.mark.slow
@pytest.mark.parametrize("text", ["no", "no, later"])
async def test_an_envelope_by_post_passes_the_added_check(
    added_checks_addresses: Sequence[str], text: str
) -> None:
    ran.clear()
    async with parley.envelope.connect(added_checks_addresses[0], transport="http") as link:
        with pytest.raises(EnvelopeFailed, match="PERMISSION_DENIED: refused by the added check"):
            await link.request("echo", text)
    assert ran == []


# -- credentials for tasks, over every binding, version and store ----------------------------------


TOKEN = "hush-0a1b2c3d4e5f-hush"
HTTP = Speech("JSONRPC", "1.0")

mail = Agent("Mail")


@mail.skill(replies="task")
async def read(turn: Turn) -> str:
    credential = await turn.require_auth("May I read your mail?", scopes="mail.read")
    return f"{turn.caller.id} {credential.token == TOKEN}"


@pytest.fixture(scope="session")
async def in_task_auth_addresses(serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, mail))


async def post(url: str, user: str) -> int:
    given = {"access_token": TOKEN}
    async with (
        aiohttp.ClientSession(headers={"x-user": user} if user else {}) as session,
        session.post(url, json=given) as got,
    ):
        return got.status


async def test_a_credential_is_taken_once_from_the_caller_and_the_turn_goes_on(
    in_task_auth_addresses: Sequence[str], speech: Speech
) -> None:
    # Neither gRPC nor a call in process has the address for a credential's callback.
    shows = HTTP if "GRPC" in speech or "in-process" in speech else speech
    async with (
        reach(in_task_auth_addresses, speech) as remote,
        reach(in_task_auth_addresses, shows) as sender,
    ):
        sent = await sender.send("hi")
        assert sent.id
        task = await remote.get(sent.id)
        assert (sent.state, task.state) == (TaskState.AUTH_REQUIRED, TaskState.AUTH_REQUIRED)
        request = auth_request(task)
        assert request is not None
        assert request.text == "May I read your mail?"
        assert request.scopes == ("mail.read",)
        assert request.scheme is not None
        token = request.callback.partition("/callbacks/authorize/")[2]
        assert token
        callback = f"{in_task_auth_addresses[-1]}/callbacks/authorize/{token}"
        assert await post(callback, "eve") == 404
        assert await post(callback, "") == 401
        assert await post(callback, "ada") == 204
        assert await post(
            callback.replace(in_task_auth_addresses[-1], in_task_auth_addresses[0]), "ada"
        ) in (409, 410)
        async with asyncio.timeout(20):
            while not (task := await remote.get(task.id)).state.is_terminal:
                await let_time_pass(0.02)
        assert task.text == "ada True"
        assert TOKEN not in repr(task)
