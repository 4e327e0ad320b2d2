"""Messages to other agents of the server: by name, to any of several, to all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

import parley
from parley import Agent, CardDetails, Turn
from parley.envelope.answers import response
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.codec import read_message, write_message
from parley.envelope.declared import EnvelopeSettings
from parley.envelope.messages import BINDING, AgentUnavailable, Envelope, ResponsePayload, Source
from parley.envelope.routing import (
    ConnectedAgents,
    HostDirectory,
    NotSent,
    RoutingLimits,
    Turns,
    ask_one,
)
from parley.envelope.server.services import ROUTED, MessageContext
from parley.envelope.signatures import EnvelopeKey, sign_message
from parley.model.service import Caller
from parley.security import ApiKey
from parley.security.api_keys import digest_of
from tests.host.envelope.talking import post, posted, request, searching, socket
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio

KEY = {"X-API-Key": "key-of-ada-0123456789"}
SCHEME = ApiKey(keys={digest_of(KEY["X-API-Key"]): Caller(id="ada", authenticated=True)})
LIBRARIES = {"agentType": "library", "routingStrategy": "broadcast"}
BALANCED = {"agentType": "library", "routingStrategy": "load-balance"}


def by(answer: dict[str, Any]) -> list[str]:
    return [each["by"] for each in answer["payload"]["results"]]


def code(answer: dict[str, Any]) -> str:
    return str(answer["payload"]["error"]["code"])


def outcomes(summary: dict[str, Any]) -> dict[str, str]:
    """Return the status of each agent, or its error code."""
    return {
        each["agentId"]: each.get("error", {}).get("code", each["status"])
        for each in summary["payload"]["results"]
    }


def acting(name: str, act: Any, **options: Any) -> Agent:
    """Return a library whose search calls a function."""
    agent = Agent(name, key=name, card=CardDetails(envelope=EnvelopeSettings(agent_type="library")))

    @agent.skill(id="search", **options)
    async def search(turn: Turn) -> list[dict[str, Any]]:
        await act()
        return [{"by": name}]

    return agent


async def test_a_message_reaches_the_agent_that_it_names() -> None:
    async def work() -> None:
        return

    three = acting("three", work, replies="task")
    app = parley.asgi({"/one": searching("one"), "/two": searching("two"), "/three": three})
    async with under_uvicorn(app) as url:
        found = await post(f"{url}/one", request(target={"agentId": "two"}))
        assert by(found) == ["two"]
        assert found["payload"]["metadata"]["agentId"] == "two"
        async with socket(f"{url}/one") as caller:
            found = await caller.ask(request(target={"agentId": "two"}))
            assert by(found) == ["two"]
            streamed = request(target={"agentId": "three"}, sub_type="command")
            await caller.send(streamed)
            accepted = await caller.receive()
            assert accepted["payload"]["status"] == "accepted"
            task = accepted["payload"]["metadata"]["taskId"]
            event = await caller.receive("EVENT")
            while event["payload"]["status"] == "partial":
                event = await caller.receive("EVENT")
            assert event["payload"]["status"] == "success"
            assert event["payload"]["metadata"]["taskId"] == task
        missing = await post(f"{url}/one", request(target={"agentId": "nobody"}))
        assert code(missing) == "TARGET_NOT_FOUND"
        wrong_type = await post(f"{url}/one", request(target={"agentType": "shop"}))
        assert code(wrong_type) == "TARGET_NOT_FOUND"


async def test_a_broadcast_has_an_event_for_each_agent_and_a_summary() -> None:
    agents = {f"/{n}": searching(n, kind="library") for n in ("one", "two", "three")}
    agents["/four"] = searching("four", kind="shop")
    async with under_uvicorn(parley.asgi(agents)) as url, socket(f"{url}/four") as caller:
        asked = request(target=LIBRARIES)
        await caller.send(asked)
        events = [await caller.receive() for _ in range(3)]
        summary = await caller.receive()
        streamed = await posted(f"{url}/four", request(target={"routingStrategy": "broadcast"}))
    names = {"one", "two", "three"}
    assert {each["message"]["type"] for each in events} == {"EVENT"}
    assert {each["payload"]["metadata"]["agentId"] for each in events} == names
    assert {each["payload"]["status"] for each in events} == {"success"}
    assert summary["message"]["correlationId"] == asked["messageId"]
    payload = summary["payload"]
    assert payload["status"] == "success"
    assert payload["metadata"]["totalResults"] == 3
    assert {each["results"][0]["by"] for each in payload["results"]} == names
    # Without a type, the request goes to all agents with the skill.
    assert outcomes(streamed[-1]).keys() == {*names, "four"}


@pytest.mark.slow
async def test_a_command_to_all_is_accepted_by_each_then_by_all_and_then_has_its_events() -> None:
    """More agents than the concurrency limit: none waits for another's end."""
    gate, begun = asyncio.Event(), 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        await gate.wait()

    async def fail() -> None:
        await work()
        raise RuntimeError

    names = [f"a{number}" for number in range(11)]
    agents = {f"/{name}": acting(name, work, replies="task") for name in names}
    agents["/bad"] = acting("bad", fail, replies="task")
    async with under_uvicorn(parley.asgi(agents)) as url, socket(f"{url}/a0") as caller:
        await caller.send(request(target=LIBRARIES, sub_type="command"))
        accepted = [await caller.receive() for _ in agents]
        assert {each["message"]["type"] for each in accepted} == {"EVENT"}
        assert {each["payload"]["status"] for each in accepted} == {"accepted"}
        named = {each["payload"]["metadata"]["agentId"] for each in accepted}
        assert named == {*names, "bad"}
        summary = await caller.receive()
        assert summary["message"]["type"] == "RESPONSE"
        assert summary["payload"]["status"] == "accepted"
        assert set(outcomes(summary).values()) == {"accepted"}
        gate.set()
        numbers: dict[str, list[int]] = {}
        ends: dict[str, str] = {}
        while len(ends) < len(agents):
            event = await caller.receive()
            assert event["message"]["type"] == "EVENT"
            metadata = event["payload"]["metadata"]
            numbers.setdefault(metadata["agentId"], []).append(metadata["sequence"])
            if event["payload"]["status"] not in ("partial", "accepted"):
                ends[metadata["agentId"]] = event["payload"]["status"]
    assert ends == {**dict.fromkeys(names, "success"), "bad": "error"}
    assert all(each == sorted(set(each)) for each in numbers.values())


@pytest.mark.slow
async def test_an_agent_that_is_too_late_after_it_accepted_has_a_last_event() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    agents = {f"/{name}": acting(name, hang, replies="task") for name in ("one", "two")}
    async with under_uvicorn(parley.asgi(agents)) as url, socket(f"{url}/one") as caller:
        await caller.send(request(target=LIBRARIES, sub_type="command", timeout=700))
        summary = await caller.receive("RESPONSE")
        assert set(outcomes(summary).values()) == {"accepted"}
        ended = {}
        while len(ended) < 2:
            event = await caller.receive("EVENT")
            if event["payload"]["status"] == "error":
                ended[event["payload"]["metadata"]["agentId"]] = code(event)
        assert ended == {"one": "DEADLINE_EXCEEDED", "two": "DEADLINE_EXCEEDED"}


@pytest.mark.slow
async def test_a_broadcast_tells_who_failed_and_who_was_too_late() -> None:
    async def fail() -> None:
        raise RuntimeError("secret")

    async def hang() -> None:
        await asyncio.Event().wait()

    async def work() -> None:
        return

    named = {"bad": fail, "slow": hang, "good": work}
    agents = {f"/{name}": acting(name, act) for name, act in named.items()}
    async with under_uvicorn(parley.asgi(agents)) as url, socket(f"{url}/good") as caller:
        summary = await caller.ask(request(target=LIBRARIES, timeout=1000))
        assert summary["payload"]["status"] == "success"
        assert outcomes(summary) == {
            "bad": "TASK_FAILED",
            "good": "success",
            "slow": "DEADLINE_EXCEEDED",
        }
        assert "secret" not in str(summary)
    async with under_uvicorn(parley.asgi({"/bad": acting("bad", fail)})) as url:
        summary = (await posted(f"{url}/bad", request(target=LIBRARIES)))[-1]
    assert summary["payload"]["status"] == "error"
    assert code(summary) == "BROADCAST_FAILED"
    assert outcomes(summary) == {"bad": "TASK_FAILED"}


async def test_an_agent_that_its_caller_may_not_call_is_not_reached_by_routing() -> None:
    asked: list[str] = []

    async def note() -> None:
        asked.append("closed")

    closed = acting("closed", note)
    closed.security = SCHEME.security
    agents = {"/open": searching("open", kind="library"), "/closed": closed}
    async with under_uvicorn(parley.asgi(agents)) as url:
        summary = (await posted(f"{url}/open", request(target=LIBRARIES)))[-1]
        assert outcomes(summary) == {"open": "success"}
        for _ in range(3):
            assert by(await post(f"{url}/open", request(target=BALANCED))) == ["open"]
        refused = await post(f"{url}/open", request(target={"agentId": "closed"}))
        assert code(refused) == "UNAUTHENTICATED"
        assert asked == []
        ada = request(target={"agentId": "closed"}, source="ada")
        assert by(await post(f"{url}/open", ada, KEY)) == ["closed"]
        # A source other than the caller is rejected here too.
        eve = request(target={"agentId": "closed"}, source="eve")
        assert code(await post(f"{url}/open", eve, KEY)) == "SOURCE_MISMATCH"
    assert asked == ["closed"]


async def test_routing_takes_no_way_around_the_middleware() -> None:
    def closing(app: ASGIApp) -> ASGIApp:
        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"].startswith("/two"):
                await send({"type": "http.response.start", "status": 403, "headers": []})
                await send({"type": "http.response.body", "body": b"closed"})
                return
            await app(scope, receive, send)

        return checked

    agents = {f"/{name}": searching(name, kind="library") for name in ("one", "two")}
    async with under_uvicorn(parley.asgi(agents, middleware=[closing])) as url:
        summary = (await posted(f"{url}/one", request(target=LIBRARIES)))[-1]
        assert outcomes(summary) == {"one": "success"}
        refused = await post(f"{url}/one", request(target={"agentId": "two"}))
        assert code(refused) == "TARGET_NOT_FOUND"


@pytest.mark.slow
async def test_balancing_asks_those_that_have_the_least_to_do_in_turn() -> None:
    gate, waiting = asyncio.Event(), 0

    async def wait() -> None:
        nonlocal waiting
        waiting += 1
        await gate.wait()

    async def work() -> None:
        return

    agents = {
        "/busy": acting("busy", wait),
        "/one": acting("one", work),
        "/two": acting("two", work),
    }
    async with under_uvicorn(parley.asgi(agents)) as url:
        busy = asyncio.create_task(post(f"{url}/one", request(target={"agentId": "busy"})))
        await until(lambda: waiting == 1)
        found = [by(await post(f"{url}/one", request(target=BALANCED)))[0] for _ in range(6)]
        gate.set()
        await busy
    assert sorted(found) == ["one"] * 3 + ["two"] * 3


@pytest.mark.slow
async def test_balancing_asks_another_agent_only_if_the_first_began_nothing() -> None:
    calls: list[str] = []

    async def fail() -> None:
        calls.append("failed")
        raise RuntimeError

    full = acting("full", fail)
    full.envelope = EnvelopeSettings(agent_type="library", requests_per_minute=1)
    agents = {"/full": full, "/one": searching("one", kind="library")}
    async with under_uvicorn(parley.asgi(agents)) as url:
        await post(f"{url}/full", request())  # the request uses up the limit for one minute
        found = [by(await post(f"{url}/one", request(target=BALANCED)))[0] for _ in range(3)]
        assert found == ["one"] * 3
    assert calls == ["failed"]
    calls.clear()
    async with under_uvicorn(
        parley.asgi({"/bad": acting("bad", fail), "/two": acting("two", fail)})
    ) as url:
        failed = await post(f"{url}/bad", request(target=BALANCED))
    assert code(failed) == "TASK_FAILED"
    assert len(calls) == 1


@pytest.mark.slow
async def test_one_message_spreads_to_a_bounded_number_of_agents() -> None:
    gate, asked = asyncio.Event(), 0

    async def wait() -> None:
        nonlocal asked
        asked += 1
        await gate.wait()

    agents = {f"/{name}": acting(name, wait) for name in ("one", "two", "three")}
    limits = EnvelopeBinding(routing=RoutingLimits(agents=2))
    async with under_uvicorn(parley.asgi(agents, bindings=[limits])) as url:
        assert code(await post(f"{url}/one", request(target=LIBRARIES))) == "INVALID_PARAMS"
        assert asked == 0
    limits = EnvelopeBinding(routing=RoutingLimits(broadcasts_per_caller=1))
    app = parley.asgi(agents, bindings=[limits])
    async with under_uvicorn(app) as url, socket(f"{url}/one") as caller:
        await caller.send(request(target=LIBRARIES))
        await until(lambda: asked == 3)
        refused = await caller.ask(request(target=LIBRARIES))
        assert code(refused) == "TOO_MANY_REQUESTS"
        assert refused["payload"]["error"]["retryAfter"] > 0
        gate.set()
        await caller.receive("RESPONSE")
        summary = await caller.ask(request(target=LIBRARIES))
        assert len(outcomes(summary)) == 3


async def test_what_belongs_to_one_agent_is_not_spread() -> None:
    agents = {f"/{name}": searching(name, kind="library") for name in ("one", "two")}
    async with under_uvicorn(parley.asgi(agents)) as url:
        for wrong in (
            request(target=LIBRARIES, taskId="t1"),
            request(target=BALANCED, contextId="c1"),
            request("a2a.GetTask", {"id": "t1"}, target=BALANCED),
            request("a2a.ListTasks", {}, target={"routingStrategy": "broadcast"}),
        ):
            answer = await post(f"{url}/one", wrong)
            assert code(answer) == "INVALID_PARAMS"
            [violation] = answer["payload"]["error"]["violations"]
            assert violation["field"] == "target.routingStrategy"
        named = {**LIBRARIES}
        everyone = (await posted(f"{url}/one", request("a2a.ListTasks", {}, target=named)))[-1]
        assert outcomes(everyone) == {"one": "success", "two": "success"}


async def test_a_signed_message_is_passed_on_with_its_signature_and_counts_once() -> None:
    key = EnvelopeKey(id="k1", owner="ada", algorithm="HMAC-SHA256", material=b"x" * 32)
    agents = {f"/{name}": searching(name, kind="library") for name in ("one", "two")}
    agents["/two"].envelope = EnvelopeSettings(agent_type="library", signed=True)
    app = parley.asgi(agents, bindings=[EnvelopeBinding(keys=[key])])
    async with under_uvicorn(app) as url:
        unsigned = read_message(json.dumps(request(target=LIBRARIES, source="ada")))
        signed = json.loads(write_message(sign_message(unsigned, key)))
        summary = (await posted(f"{url}/one", signed))[-1]
        assert outcomes(summary) == {"one": "success", "two": "success"}
        assert code(await post(f"{url}/one", signed)) == "MESSAGE_REPLAYED"
        assert code(await post(f"{url}/two", signed)) == "MESSAGE_REPLAYED"


@pytest.mark.parametrize(
    "declared",
    [
        EnvelopeSettings(signed=True),
        EnvelopeSettings(data_classification="internal"),
        EnvelopeSettings(data_classification="restricted"),
    ],
    ids=["signed", "internal", "restricted"],
)
async def test_an_agent_that_a_caller_may_not_ask_is_not_shown_by_routing(
    declared: EnvelopeSettings,
) -> None:
    closed = Agent("closed", key="closed", card=CardDetails(envelope=declared))

    @closed.skill(id="search")
    async def search() -> str:
        return "secret"

    keys = [{"owner": "shop", "kid": "k", "kty": "oct", "k": "A" * 43}]
    app = parley.asgi(
        {"/closed": closed, "/front": searching("front")}, bindings=[EnvelopeBinding(keys=keys)]
    )
    async with under_uvicorn(app) as url:
        for strategy in ("load-balance", "broadcast"):
            target = {"agentType": "agent", "routingStrategy": strategy}
            for _ in range(3):
                answers = await posted(f"{url}/front", request(target=target))
                assert answers[-1]["payload"]["status"] == "success"
                assert "closed" not in str(answers)


async def test_an_agent_that_hides_its_address_is_not_chosen_for_strangers() -> None:
    hidden = searching("hidden", kind="library", listed={BINDING: "extended"})
    agents = {"/open": searching("open", kind="library"), "/hidden": hidden}
    async with under_uvicorn(parley.asgi(agents)) as url:
        summary = (await posted(f"{url}/open", request(target=LIBRARIES)))[-1]
        assert outcomes(summary) == {"open": "success"}
        assert by(await post(f"{url}/open", request(target={"agentId": "hidden"}))) == ["hidden"]


async def test_a_middleware_that_fails_costs_its_agent_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def failing(app: ASGIApp) -> ASGIApp:
        async def broken(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"].startswith("/two"):
                raise RuntimeError("a secret of the operator")
            await app(scope, receive, send)

        return broken

    agents = {f"/{name}": searching(name, kind="library") for name in ("one", "two")}
    async with under_uvicorn(parley.asgi(agents, middleware=[failing])) as url:
        summary = (await posted(f"{url}/one", request(target=LIBRARIES)))[-1]
        assert outcomes(summary) == {"one": "success", "two": "INTERNAL_ERROR"}
        named = await post(f"{url}/one", request(target={"agentId": "two"}))
        assert code(named) == "INTERNAL_ERROR"
    assert "secret" not in str(summary) + str(named)
    assert "a secret of the operator" in caplog.text


async def test_nobody_marks_a_message_as_passed_on_from_outside() -> None:
    """The mark of a message that another agent admitted is valid only within this process."""
    agents = {f"/{name}": searching(name, kind="library") for name in ("one", "two")}
    async with under_uvicorn(parley.asgi(agents)) as url:
        forged = {ROUTED: "yes", ROUTED.replace(".", "-"): "yes"}
        spread = request(target=LIBRARIES)
        summary = (await posted(f"{url}/one", spread, forged))[-1]
        assert outcomes(summary) == {"one": "success", "two": "success"}
        spread = {**request(target=LIBRARIES), ROUTED: True}
        assert len(outcomes((await posted(f"{url}/one", spread))[-1])) == 2


class Other:
    """A candidate on another server: unreachable, or answering."""

    in_flight = 0

    def __init__(self, id: str, *, is_away: bool) -> None:
        self.id = id
        self.asked = 0
        self._is_away = is_away

    async def ask(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
        self.asked += 1
        if self._is_away:
            raise NotSent("no connection")
        payload = ResponsePayload(status="success", results=({"by": self.id},))
        yield response(request, payload, source=Source(agent_id=self.id))


async def test_balancing_skips_those_that_cannot_be_reached() -> None:
    asked = read_message(json.dumps(request(target=BALANCED)))
    away, here, turns = Other("away", is_away=True), Other("here", is_away=False), Turns()
    for _ in range(4):
        found = [each async for each in ask_one([away, here], asked, MessageContext(), turns=turns)]
        [answer] = found
        assert isinstance(answer.payload, ResponsePayload)
        assert answer.payload.metadata.agent_id == "here"
    assert here.asked == 4
    assert away.asked >= 1
    with pytest.raises(AgentUnavailable) as refused:
        [each async for each in ask_one([away], asked, MessageContext(), turns=turns)]
    assert refused.value.retry_after


class Breaking:
    """A candidate that accepts a command, then breaks off."""

    id, in_flight = "breaking", 0

    async def ask(self, request: Envelope, context: MessageContext) -> AsyncIterator[Envelope]:
        accepted = ResponsePayload(status="accepted")
        yield response(request, accepted, source=Source(agent_id=self.id))
        raise RuntimeError("a secret")


async def test_a_broadcast_ends_also_if_asking_an_agent_breaks() -> None:
    connected = ConnectedAgents()
    connected.matching = lambda **_: [Breaking(), Breaking()]  # type: ignore[method-assign]
    directory = HostDirectory(lambda: (), connected)
    asked = read_message(json.dumps(request(target=LIBRARIES, sub_type="command")))
    async with asyncio.timeout(5):
        found = [each async for each in directory.route(asked, MessageContext())]
    kinds = [(each.message.type, getattr(each.payload, "status", "")) for each in found]
    assert kinds == [
        *[("EVENT", "accepted")] * 2,
        ("RESPONSE", "accepted"),
        *[("EVENT", "error")] * 2,
    ]
    assert "secret" not in str(found)
