"""A check that is added once, to the steps of an agent, is met by every binding and version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

import parley
import parley.envelope
from parley import Agent, Turn
from parley.client.remote_agent import RemoteAgent
from parley.engine.service.admission import Admission, IncomingMessage
from parley.envelope import EnvelopeFailed
from parley.model.errors import PermissionDeniedError
from parley.model.operations import GetTaskRequest, SendMessageConfiguration
from parley.server.dispatch import Dispatcher, ServiceCall
from tests.contract.conftest import Serve, Speech, past_the_card, reach
from tests.contract.test_errors import Part, refused, saying

pytestmark = pytest.mark.anyio

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
    """The check that is added to what messages pass: at once, or with something to await."""
    if m.request.message.text == "no":
        raise PermissionDeniedError("refused by the added check")
    return refuse_later() if m.request.message.text == "no, later" else None


def check_call(call: ServiceCall) -> Awaitable[None] | None:
    """The check that is added to what all calls pass."""
    id = getattr(call.request, "id", "")
    if id == "no":
        raise PermissionDeniedError("refused by the added check")
    return refuse_later() if id == "no-later" else None


@pytest.fixture(scope="module")
def added() -> Iterator[None]:
    """The checks, in the lists of each agent that is served from now on."""
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
async def addresses(added: None, serve: Serve) -> Sequence[str]:
    return await serve(partial(parley.asgi, agent))


@pytest.fixture(scope="module")
async def checked(addresses: Sequence[str], speech: Speech) -> AsyncIterator[RemoteAgent]:
    async with reach(addresses, speech) as remote:
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


@pytest.mark.parametrize("text", ["no", "no, later"])
async def test_an_envelope_by_post_passes_the_added_check(
    addresses: Sequence[str], text: str
) -> None:
    ran.clear()
    async with parley.envelope.connect(addresses[0], transport="http") as link:
        with pytest.raises(EnvelopeFailed, match="PERMISSION_DENIED: refused by the added check"):
            await link.request("echo", text)
    assert ran == []
