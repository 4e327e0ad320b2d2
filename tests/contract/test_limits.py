"""Rate limits of callers, over every binding and version, on one replica or several."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

import pytest

import parley
from parley import Agent, Caller, Turn
from parley.client.remote_agent import RemoteAgent
from parley.client.retry import Retry
from parley.model.errors import InvalidParamsError, TooManyRequestsError
from parley.model.tasks import TaskState
from parley.security.limits import counters
from parley.security.limits.agent_limits import QUOTA_FAILURE
from tests.contract.conftest import REPLICAS, Serve, Speech, reach
from tests.kit.http import call, post
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

AMOUNT = 6

limited = Agent(
    "Limited",
    limits=[
        f"{AMOUNT}/hour per caller except role:ops",
        "2 streams per caller",
        "message 1 KB",
        "message 3 parts",
        "artifact 100 bytes",
        "history 3 messages",
    ],
)


@limited.skill
def echo(text: str) -> str:
    return text


@limited.skill(replies="task")
async def write(turn: Turn) -> None:
    async with turn.stream(name="report") as out:
        for _ in range(5):
            await out.write("x" * 40)


@limited.skill(replies="task")
async def wait(turn: Turn) -> None:
    await turn.working("waiting")
    await asyncio.Event().wait()


@limited.skill(replies="task")
async def talk(turn: Turn) -> str:
    for number in range(9):
        await turn.working(f"step {number}")
    return "done"


@limited.skill(limits=["2/hour per caller"])
def rare(text: str) -> str:
    return text


def identified(scope: object) -> Caller:
    headers = dict(scope["headers"])  # type: ignore[index]
    name = headers.get(b"x-user", b"").decode()
    if not name:
        return Caller()
    claims: dict[str, object] = {"roles": ["ops"]} if name.startswith("ops") else {}
    return Caller(name, authenticated=not name.startswith("claimed"), claims=claims)


@pytest.fixture(scope="session")
async def addresses(serve: Serve) -> Sequence[str]:
    """Replicas that know each other. With only a shared database, each has a share of the limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counters, "SHARE_SECONDS", 0.05)
        found = await serve(partial(parley.asgi, limited), caller=identified)
    if len(found) == REPLICAS["postgres"]:
        await until(partial(have_parts, found), interval=0.1)
    return found


async def have_parts(addresses: Sequence[str]) -> bool:
    """Return whether each replica counts half of the rate for a new caller."""
    headers = {"x-user": uuid4().hex}
    answers = [await post(each, call("SendMessage"), headers) for each in addresses]
    return all(f";r={AMOUNT // 2 - 1};" in each.headers["ratelimit"] for each in answers)


@asynccontextmanager
async def one(
    addresses: Sequence[str], speech: Speech, name: str = "user"
) -> AsyncIterator[RemoteAgent]:
    """Connect as a new caller."""
    headers = {"x-user": f"{name}-{uuid4().hex}"}
    async with reach(addresses, speech, headers=headers) as remote:
        yield remote


async def refusals(
    remote: RemoteAgent, count: int, **options: object
) -> list[TooManyRequestsError]:
    found = []
    for _ in range(count):
        try:
            await remote.send("hi", **options)  # type: ignore[arg-type]
        except TooManyRequestsError as error:
            found.append(error)
    return found


async def test_as_much_is_admitted_as_the_limit_says(
    addresses: Sequence[str], speech: Speech
) -> None:
    async with one(addresses, speech) as remote:
        sent = [refusals(remote, 4) for _ in range(AMOUNT)]
        refused = [each for found in await asyncio.gather(*sent) for each in found]
    assert len(refused) == 3 * AMOUNT
    for error in refused:
        assert error.retry_after is not None
        assert 0 < error.retry_after <= 3600 * 1.1
        assert error.metadata["limit"] == f"{AMOUNT}/hour per caller except role:ops"
        assert error.metadata["remaining"] == "0"
        assert QUOTA_FAILURE in [detail["@type"] for detail in error.details]
        assert "is reached; wait" in error.message


async def test_callers_do_not_affect_one_another(addresses: Sequence[str], speech: Speech) -> None:
    async with one(addresses, speech) as remote, one(addresses, speech) as other:
        assert await refusals(remote, AMOUNT + 1)
        assert await refusals(other, 1) == []


async def test_who_is_exempt_is_not_limited(addresses: Sequence[str], speech: Speech) -> None:
    async with one(addresses, speech, "ops") as remote:
        assert await refusals(remote, 2 * AMOUNT) == []


async def test_a_skill_has_limits_of_its_own(addresses: Sequence[str], speech: Speech) -> None:
    async with one(addresses, speech, "ops") as remote:
        refused = await refusals(remote, 4, metadata={"skill": "rare"})
        assert {error.metadata["limit"] for error in refused} == {"2/hour per caller"}
        assert len(refused) in (2, 3)  # with shares, one replica may have received all requests
        assert await refusals(remote, 2) == []


async def test_streams_count_until_they_end(addresses: Sequence[str], speech: Speech) -> None:
    async with one(addresses[:1], speech, "ops") as remote:
        streams = [remote.stream("hi", metadata={"skill": "wait"}) for _ in range(2)]
        for stream in streams:
            await anext(stream)
        with pytest.raises(TooManyRequestsError, match="2 streams per caller"):
            async for _ in remote.stream("hi"):
                pass
        await streams[0].aclose()
        await until(partial(is_admitted, remote), 10)
        await streams[1].aclose()


async def is_admitted(remote: RemoteAgent) -> bool:
    try:
        async for _ in remote.stream("hi"):
            return True
    except TooManyRequestsError:
        return False
    return True


async def test_a_message_that_is_too_large_is_refused(
    addresses: Sequence[str], speech: Speech
) -> None:
    async with one(addresses, speech, "ops") as remote:
        with pytest.raises(InvalidParamsError, match="more than the limit of message 1 KB"):
            await remote.send("x" * 2000)


@pytest.mark.parametrize(
    ("skill", "reason"),
    [
        ("write", "the artifact 'report' would have .* more than the limit of artifact 100 bytes"),
        ("talk", "the history of the task would have 4 messages, .* limit of history 3 messages"),
    ],
)
async def test_a_task_that_grows_too_large_fails_and_says_why(
    addresses: Sequence[str], speech: Speech, skill: str, reason: str
) -> None:
    async with one(addresses, speech, "ops") as remote:
        task = await remote.send("hi", metadata={"skill": skill})
    assert task.id
    assert task.state is TaskState.FAILED
    assert task.status.message is not None
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(task.status.message.text)


async def test_ids_without_proof_count_by_address(serve: Serve, speech: Speech) -> None:
    addresses = await serve(partial(parley.asgi, limited), caller=identified)
    refused = 0
    for _ in range(2 * AMOUNT + 1):
        async with one(addresses, speech, "claimed") as remote:
            refused += len(await refusals(remote, 1))
    assert refused


@pytest.mark.slow
async def test_the_client_waits_for_as_long_as_the_limit_says(serve: Serve, speech: Speech) -> None:
    addresses = await serve(partial(parley.asgi, brief), caller=identified)
    headers = {"x-user": uuid4().hex}
    async with reach(addresses[:1], speech, headers=headers, retries=Retry(calls=2)) as remote:
        assert [(await remote.send(text)).text for text in "abcd"] == ["a", "b", "c", "d"]


brief = Agent("Brief", limits=["3/second per caller"])


@brief.skill
def again(text: str) -> str:
    return text


@pytest.mark.slow
async def test_http_responses_say_what_remains(addresses: Sequence[str]) -> None:
    headers = {"x-user": uuid4().hex}
    answers = [await post(addresses[0], call("SendMessage"), headers) for _ in range(AMOUNT + 1)]
    first, last = answers[0], answers[-1]
    assert (first.status, last.status) == (200, 429)
    assert first.headers["ratelimit-policy"] == f'"caller-hour";q={AMOUNT};w=3600'
    # Replicas split a limit when they share only a database; with Redis they count together.
    part = AMOUNT // 2 if len(addresses) == REPLICAS["postgres"] else AMOUNT
    assert first.headers["ratelimit"].startswith(f'"caller-hour";r={part - 1};')
    assert last.headers["ratelimit"].startswith('"caller-hour";r=0;t=')
    assert "retry-after" not in first.headers
    assert int(last.headers["retry-after"]) > 0
    assert last.reason == "TOO_MANY_REQUESTS"
    assert any("retryDelay" in detail for detail in last.error["data"])
