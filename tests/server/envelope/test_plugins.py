"""Handlers that an operator adds, and what agents declare, however an agent is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import parley
from parley import Agent, CardDetails, EnvelopeSettings, Rights
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.messages import Envelope, RequestPayload
from parley.envelope.registration import RegistrationSettings
from parley.envelope.routing import RoutingLimits
from parley.envelope.server.services import EnvelopeHandlers, MessageContext
from parley.model.errors import PermissionDeniedError
from parley.model.service import Caller
from parley.security import ApiKey, anonymous
from parley.security.api_keys import digest_of
from tests.host.envelope.talking import post, posted, request, searching, socket
from tests.kit.servers import under_uvicorn
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


KEY = "key-of-ada-0123456789"


async def count(message: Envelope, context: MessageContext) -> Any:
    """Count what is in stock, as a caller wants it."""
    if isinstance(message.payload, RequestPayload) and message.payload.action != "stock.count":
        return NotImplemented
    assert isinstance(message.payload, RequestPayload)
    item = message.payload.parameters["item"]
    if item == "nothing":
        return None
    if item == "secret":
        raise RuntimeError("the password is hunter2")
    if item == "not yours":
        raise PermissionDeniedError(f"{message.source.agent_id} may not count this")
    if item == "cancelled":
        raise asyncio.CancelledError
    if item == "no json":
        return [object()]
    return [{"item": item, "count": 7}]


def code(found: dict[str, Any]) -> str:
    return str(found["payload"]["error"]["code"])


async def test_a_handler_answers_an_action_that_no_agent_has(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = parley.asgi(searching("shop"), bindings=[EnvelopeBinding(handler=count)])
    async with under_uvicorn(app) as url, socket(url) as caller:
        for ask in (caller.ask, lambda message: post(url, message)):
            found = await ask(request("stock.count", {"item": "bolt"}))
            assert found["payload"]["results"] == [{"item": "bolt", "count": 7}]
            assert found["source"]["agentId"] == "shop"
            empty = await ask(request("stock.count", {"item": "nothing"}))
            assert (empty["payload"]["status"], empty["payload"]["results"]) == ("success", [])
            refused = await ask(request("stock.count", {"item": "not yours"}))
            assert code(refused) == "PERMISSION_DENIED"
            assert "tester" in refused["payload"]["error"]["message"]
        for item in ("secret", "cancelled", "no json"):
            failed = await caller.ask(request("stock.count", {"item": item}))
            assert code(failed) == "INTERNAL_ERROR"
            assert "hunter2" not in str(failed)
        assert "hunter2" in caplog.text  # where the operator looks for it
        unknown = await caller.ask(request("stock.move", {}))
        assert code(unknown) == "UNKNOWN_ACTION"
        assert (await caller.ask(request()))["payload"]["status"] == "success"


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"routing": RoutingLimits(agents=0)},
        lambda: {"routing": RoutingLimits(broadcasts="many")},  # type: ignore[arg-type]
        lambda: {"registration": RegistrationSettings(enabled="no")},  # type: ignore[arg-type]
        lambda: {"registration": RegistrationSettings(anonymous="false")},  # type: ignore[arg-type]
        lambda: {"handler_timeout": 0},
        lambda: {"handler_timeout": float("nan")},
        lambda: {"max_requests": 0},
        lambda: {"max_requests_per_socket": 0},
        lambda: {"max_requests_waiting": -1},
        lambda: {"heartbeats": RoutingLimits()},
    ],
)
async def test_an_option_that_means_nothing_is_refused(make: Callable[[], dict[str, Any]]) -> None:
    with pytest.raises((TypeError, ValueError), match=r", not |does not"):
        parley.asgi(searching("shop"), bindings=[EnvelopeBinding(**make())])  # type: ignore[arg-type]


async def test_a_handler_needs_the_credentials_that_its_agent_needs() -> None:
    """An operation that is open to all lets everybody connect, and no more."""
    scheme = ApiKey(keys={digest_of(KEY): Caller(id="ada", authenticated=True)})
    shop = searching("shop", security=scheme, rights=Rights(operations={"GetTask": anonymous}))
    app = parley.asgi(shop, bindings=[EnvelopeBinding(handler=count)])
    ask = request("stock.count", {"item": "bolt"})
    other = {**ask, "message": {"type": "INVENTORY"}, "target": {}}
    async with under_uvicorn(app) as url:
        for message in (ask, other, request("registry.register", {})):
            assert code(await post(url, message)) == "UNAUTHENTICATED"
        found = await post(url, {**ask, "source": {"agentId": "ada"}}, {"X-API-Key": KEY})
        assert found["payload"]["results"] == [{"item": "bolt", "count": 7}]


async def test_a_handler_takes_messages_of_another_type() -> None:
    async def inventory(message: Envelope, context: MessageContext) -> Any:
        if message.message.type != "INVENTORY":
            return NotImplemented
        return {"from": message.source.agent_id}

    app = parley.asgi(searching("shop"), bindings=[EnvelopeBinding(handler=inventory)])
    async with under_uvicorn(app) as url, socket(url) as caller:
        message = {**request(), "message": {"type": "INVENTORY"}, "payload": {"any": "thing"}}
        assert (await caller.ask(message))["payload"]["results"] == [{"from": "tester"}]
        message = {**request(), "message": {"type": "SURPRISE"}, "payload": {}}
        assert code(await caller.ask(message)) == "UNKNOWN_MESSAGE_TYPE"


async def test_one_handler_takes_whatever_nobody_knows() -> None:
    taken: list[str] = []

    async def anything(message: Envelope, context: MessageContext) -> Any:
        taken.append(message.message.type)
        return "taken"

    async with (
        under_uvicorn(
            parley.asgi(searching("shop"), bindings=[EnvelopeBinding(handler=anything)])
        ) as url,
        socket(url) as caller,
    ):
        assert (await caller.ask(request("stock.move", {})))["payload"]["results"] == ["taken"]
        message = {**request(), "message": {"type": "SURPRISE"}, "payload": {}}
        assert (await caller.ask(message))["payload"]["results"] == ["taken"]
        # What is known stays the agent's own.
        found = await caller.ask(request())
        assert found["payload"]["results"] == [{"by": "shop", "query": "refunds"}]
        missing = await caller.ask(request("a2a.GetTask", {"id": "none"}))
        assert code(missing) == "TASK_NOT_FOUND"
    assert taken == ["REQUEST", "SURPRISE"]


async def test_a_handler_has_a_time_and_few_run_at_once() -> None:
    running, gate = 0, asyncio.Event()

    async def wait(message: Envelope, context: MessageContext) -> Any:
        nonlocal running
        running += 1
        await gate.wait()
        return "done"

    app = parley.asgi(
        searching("shop"), bindings=[EnvelopeBinding(handler=wait, handler_timeout=0.05)]
    )
    async with under_uvicorn(app) as url:
        slow = await post(url, request("stock.wait", {}))
        assert code(slow) == "INTERNAL_ERROR"
        assert "too long" in slow["payload"]["error"]["message"]
    running = 0
    handlers = EnvelopeHandlers(wait, at_once=2)
    message = _message("stock.wait")
    first = [
        asyncio.create_task(handlers.answer(wait, message, MessageContext())) for _ in range(2)
    ]
    await until(lambda: running == 2)
    with pytest.raises(parley.A2AError) as refused:
        await handlers.answer(wait, message, MessageContext())
    assert refused.value.retry_after
    gate.set()
    assert [each.results for each in await asyncio.gather(*first) if each] == [("done",)] * 2


@pytest.mark.parametrize("handler", [lambda message, context: 1, {"stock.count": count}, [count]])
def test_what_is_no_async_function_is_refused_as_the_handler(handler: Any) -> None:
    with pytest.raises(TypeError, match="async function"):
        EnvelopeBinding(handler=handler)


def _message(action: str) -> Envelope:
    from parley.envelope.answers import message
    from parley.envelope.messages import MessageType, Source

    payload = RequestPayload(action=action)
    return message(MessageType.REQUEST, payload, source=Source(agent_id="tester"))


async def test_what_a_handler_answers_counts_against_the_rates_of_its_caller() -> None:
    app = parley.asgi(
        searching("shop"), bindings=[EnvelopeBinding(handler=count)], limits=["2/minute per caller"]
    )
    async with under_uvicorn(app) as url, socket(url) as caller:
        for ask in (caller.ask, lambda message: post(url, message)):
            found = await ask(request("stock.count", {"item": "bolt"}))
            assert found["payload"]["status"] == "success"
        refused = await caller.ask(request("stock.count", {"item": "bolt"}))
        assert code(refused) == "TOO_MANY_REQUESTS"
        assert refused["payload"]["error"]["retryAfter"] > 0
        heartbeat = request("unused")
        heartbeat |= {"message": {"type": "HEARTBEAT"}, "payload": {}}
        assert code(await post(url, heartbeat)) == "TOO_MANY_REQUESTS"
        await caller.send(heartbeat)
        assert (await caller.receive("HEARTBEAT"))["message"]["correlationId"]


# -- tenants: what one agent declares holds, however the agent is named ----------------------------


KEYS = [{"owner": "shop", "kid": "k", "kty": "oct", "k": "A" * 43}]


def greeting(name: str, envelope: EnvelopeSettings | bool) -> Agent:
    agent = Agent(name, key=name, card=CardDetails(envelope=envelope))

    @agent.skill
    async def hello() -> str:
        """Say hello."""
        return f"hello from {name}"

    return agent


@pytest.mark.parametrize("declared", ["signed", "restricted"])
def test_an_agent_that_takes_signed_messages_only_needs_keys_to_verify_them(declared: str) -> None:
    settings = EnvelopeSettings(signed=True)
    if declared == "restricted":
        settings = EnvelopeSettings(data_classification="restricted")
    for keys in (None, []):
        with pytest.raises(ValueError, match="has no key to verify them"):
            parley.asgi(
                greeting("strict", envelope=settings), bindings=[EnvelopeBinding(keys=keys)]
            )


@pytest.mark.parametrize(
    ("name", "code"), [("quiet", "METHOD_NOT_FOUND"), ("strict", "SIGNATURE_REQUIRED")]
)
async def test_the_agent_at_the_root_speaks_for_no_tenant(name: str, code: str) -> None:
    tenants = {
        "quiet": greeting("quiet", envelope=False),
        "strict": greeting("strict", envelope=EnvelopeSettings(signed=True)),
    }
    app = parley.asgi(searching("root"), tenants=tenants, bindings=[EnvelopeBinding(keys=KEYS)])
    async with under_uvicorn(app) as url:
        [found] = await posted(f"{url}/{name}", request("hello", {}))
        assert code in str(found)
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        for action, parameters in _operations(message):
            given = {**parameters, "tenant": name}
            [found] = await posted(url, request(f"a2a.{action}", given))
            error = found["payload"]["error"]
            assert error["message"] == f"tenant: there is no tenant {name!r} here"


async def test_an_agent_is_named_by_its_id_or_its_address() -> None:
    agents, tenants = {"/front": searching("front")}, {"acme": searching("shop")}
    app = parley.asgi(agents, tenants=tenants, url="https://agents.example.com")
    async with under_uvicorn(app) as url:
        for path, key in (("/front", "front"), ("/acme", "shop")):
            address = f"https://agents.example.com{path}"
            for name in (key, address, f"{address}/"):
                asked = request(target={"agentId": name})
                [found] = await posted(f"{url}{path}", asked, {"Host": "agents.example.com"})
                assert found["payload"]["status"] == "success", name


def _operations(message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        ("SendMessage", {"message": message}),
        ("SendStreamingMessage", {"message": message}),
        ("ListTasks", {}),
        ("SubscribeToTask", {"id": "t1"}),
        ("GetExtendedAgentCard", {}),
    ]
