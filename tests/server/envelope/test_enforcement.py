"""What a card declares is enforced: over POST, over sockets, and over A2A's own bindings."""

from __future__ import annotations

import asyncio
import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import parley
from parley import (
    Agent,
    CardDetails,
    DeclaredPerformance,
    EnvelopeSettings,
    MaintenanceWindow,
    Turn,
)
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.codec import members_of, read_message
from parley.envelope.signatures import jwk_of, read_key, sign_message, verify_signature
from parley.model.struct import Timestamp
from parley.security import anonymous
from parley.security.signing.keys import SigningKeys, new_key_set, write_key_set
from parley.server.run import serving
from parley.store.memory import MemoryTaskStore
from tests.kit.http import JSON, ask, post
from tests.server.envelope.guarded import SHARED, Clock, message
from tests.server.envelope.test_card import keys

pytestmark = pytest.mark.anyio

PROTOCOL = "parley.envelope.v1"


def written(source: str, action: str = "echo", **changes):
    """Return a REQUEST as JSON."""
    members = members_of(message(source, target="echo"))
    members["payload"] = {"action": action, "parameters": {"text": "hi"}}
    return members | changes


async def posted(url, members, **headers):
    """Return the status and the payload of the answer to a POST."""
    response = await ask(
        url, "POST", "/envelope", json.dumps(members).encode(), {**JSON, **headers}
    )
    return response.status, response.json["payload"]


async def rpc(url, method="SendMessage", params=None, **headers):
    """Return the answer to a call over JSON-RPC."""
    sent = params or {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": sent}).encode()
    return await post(url, body, {"A2A-Version": "1.0", **headers})


def echo(settings: EnvelopeSettings | None = None, **options) -> Agent:
    agent = Agent("Echo", card=CardDetails(envelope=settings or True), **options)

    @agent.skill
    async def echo(turn: Turn, text: str = "") -> str:
        return f"{turn.caller.id}: {text}"

    return agent


# -- maintenance windows -----------------------------------------------------------------------


async def test_a_window_refuses_new_work_over_every_binding_and_nothing_else():
    clock = Clock()
    begins, ends = (Timestamp.from_milliseconds(clock.ms + ms) for ms in (60_000, 120_000))
    window = MaintenanceWindow(start=str(begins), end=str(ends))
    agent = Agent("Echo", card=CardDetails(envelope=EnvelopeSettings(maintenance_windows=[window])))

    @agent.skill
    async def ask_name(turn: Turn) -> str:
        name = await turn.ask("Who are you?")
        return f"Hello {name.text}"

    app = parley.asgi(agent, store=MemoryTaskStore(clock=clock))
    async with serving(app) as url:
        before = (await rpc(url)).json["result"]["task"]
        assert before["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        clock.ms += 75_500
        refused = await rpc(url)
        assert refused.error["data"][0]["reason"] == "MAINTENANCE"
        assert refused.headers["retry-after"] == "45"
        _, payload = await posted(url, written("visitor", "ask_name"))
        assert payload["error"]["code"] == "MAINTENANCE"
        assert payload["error"]["retryAfter"] == 44_500
        # What runs can be read, and goes on when it is answered.
        read = {"action": "a2a.GetTask", "parameters": {"id": before["id"]}}
        _, payload = await posted(url, written("visitor", payload=read))
        assert payload["status"] == "success"
        answer = {"messageId": "m2", "role": "ROLE_USER", "parts": [{"text": "Ada"}]}
        after = await rpc(url, params={"message": {**answer, "taskId": before["id"]}})
        assert after.json["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        clock.ms += 45_000
        assert "result" in (await rpc(url)).json


# -- requests at once, and per minute ----------------------------------------------------------


async def test_a_skill_serves_as_many_requests_at_once_as_it_declares():
    performance = {
        "slow": DeclaredPerformance(max_concurrent_requests=1, average_response_time=2500)
    }
    agent = Agent("Echo", card=CardDetails(envelope=EnvelopeSettings(performance=performance)))
    goes_on = asyncio.Event()
    has_begun = asyncio.Event()

    @agent.skill(default=True)
    async def slow(turn: Turn) -> str:
        has_begun.set()
        await goes_on.wait()
        return "done"

    @agent.skill
    async def quick(turn: Turn) -> str:
        return "done"

    async with serving(parley.asgi(agent)) as url:
        first = asyncio.create_task(posted(url, written("visitor", "slow")))
        await has_begun.wait()
        refused = await rpc(url)
        assert refused.error["data"][0]["reason"] == "OVERLOADED"
        assert refused.headers["retry-after"] == "3"
        _, payload = await posted(url, written("visitor", "slow"))
        assert payload["error"] == payload["error"] | {"code": "OVERLOADED", "retryAfter": 3000}
        _, payload = await posted(url, written("visitor", "quick"))
        assert payload["status"] == "success"
        goes_on.set()
        assert (await first)[1]["status"] == "success"
        _, payload = await posted(url, written("visitor", "slow"))
        assert payload["status"] == "success"


async def test_the_rate_of_one_caller_is_its_own():
    agent = echo(EnvelopeSettings(requests_per_minute=2), security=keys(ada=(), eve=()))
    async with serving(parley.asgi(agent)) as url:
        ada, eve = {"X-API-Key": "ada"}, {"X-API-Key": "eve"}
        assert (await posted(url, written("ada"), **ada))[1]["status"] == "success"
        assert "result" in (await rpc(url, **ada)).json
        for _ in range(3):
            _, payload = await posted(url, written("ada"), **ada)
            assert payload["error"]["code"] == "TOO_MANY_REQUESTS"
            assert payload["error"]["retryAfter"] >= 1000
        # Who is spoofed pays nothing.
        for _ in range(3):
            _, payload = await posted(url, written("eve"), **ada)
            assert payload["error"]["code"] == "SOURCE_MISMATCH"
        assert (await posted(url, written("eve"), **eve))[1]["status"] == "success"


# -- identity over POST and sockets ------------------------------------------------------------


async def test_neither_a_post_nor_a_socket_lets_a_caller_be_another():
    agent = echo(security=keys(ada=(), bob=()) | anonymous)
    async with serving(parley.asgi(agent)) as url:
        _, payload = await posted(url, written("ada"), **{"X-API-Key": "ada"})
        assert payload["results"][0]["text"].startswith("ada")
        address = f"ws{url.removeprefix('http')}/envelope"
        for headers, source in (({"X-API-Key": "ada"}, "bob"), ({}, "bob"), ({}, "ada")):
            _, payload = await posted(url, written(source), **headers)
            assert payload["error"]["code"] == "SOURCE_MISMATCH"
            async with connect(
                address, subprotocols=[PROTOCOL], additional_headers=headers
            ) as socket:
                await socket.send(json.dumps(written(source)))
                answer = json.loads(await socket.recv())
                assert answer["payload"]["error"]["code"] == "SOURCE_MISMATCH"


async def test_permissions_and_numbers_of_sockets_hold_before_a_socket_opens():
    settings = EnvelopeSettings(required_permissions=["say"], concurrent_connections=1)
    agent = echo(settings, security=keys(ada=("say",), eve=()))
    async with serving(parley.asgi(agent)) as url:
        address = f"ws{url.removeprefix('http')}/envelope"

        def opening(name: str):
            headers = {"X-API-Key": name} if name else {}
            return connect(address, subprotocols=[PROTOCOL], additional_headers=headers)

        for name, status in (("", 401), ("eve", 403)):
            with pytest.raises(InvalidStatus) as caught:
                await opening(name)
            assert caught.value.response.status_code == status
        _, payload = await posted(url, written("eve"), **{"X-API-Key": "eve"})
        assert payload["error"]["code"] == "PERMISSION_DENIED"
        assert (await rpc(url, **{"X-API-Key": "eve"})).error["code"] == -32011
        async with opening("ada"):
            with pytest.raises(InvalidStatus) as caught:
                await opening("ada")
            assert caught.value.response.status_code == 429
        async with opening("ada"):
            pass


async def test_restricted_data_is_for_signed_messages_alone_and_answers_are_signed():
    server_keys = SigningKeys.parse(write_key_set(new_key_set(["EdDSA"], 0)))
    settings = EnvelopeSettings(data_classification="restricted", required_permissions=["say"])
    agent = echo(settings, security=keys(shop=("say",)))
    app = parley.asgi(
        agent, bindings=[EnvelopeBinding(keys=[jwk_of(SHARED)])], signing_keys=server_keys
    )
    proof = {"X-API-Key": "shop"}
    async with serving(app) as url:
        assert (await rpc(url, **proof)).error["data"][0]["reason"] == "SIGNATURE_REQUIRED"
        _, payload = await posted(url, written("shop"), **proof)
        assert payload["error"]["code"] == "SIGNATURE_REQUIRED"
        unsigned = read_message(json.dumps(written("shop")))
        sent = members_of(sign_message(unsigned, SHARED))
        body = json.dumps(sent).encode()
        response = await ask(url, "POST", "/envelope", body, {**JSON, **proof})
        answer = read_message(response.body)
        assert answer.payload.status == "success"
        public = next(iter(server_keys.published["keys"]))
        verify_signature(answer, read_key(public, owner="echo"))
        _, payload = await posted(url, sent, **proof)  # again, over another connection
        assert payload["error"]["code"] == "MESSAGE_REPLAYED"
