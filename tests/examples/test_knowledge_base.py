"""The knowledge base: the exchange that the example prints, over a WebSocket and by HTTP."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

import parley
from tests.examples.conftest import EXAMPLES
from tests.host.envelope.talking import post
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio

REQUEST = json.loads((EXAMPLES / "knowledge_base_envelope.json").read_text("utf-8"))


async def test_the_printed_exchange_runs(example) -> None:
    app = parley.asgi(example("knowledge_base").agent)
    script = example("knowledge_base_exchange")
    async with under_uvicorn(app) as url:
        address = url.replace("http", "ws", 1) + "/envelope"
        sent, answer = await asyncio.to_thread(script.exchange, address)
        by_http = await post(url, REQUEST)
    assert sent["payload"] == REQUEST["payload"]
    for found in (answer, by_http):
        assert found["message"]["type"] == "RESPONSE"
        assert found["source"]["agentId"] == "knowledge-base-01"
        payload = found["payload"]
        assert payload["status"] == "success"
        assert payload["metadata"]["totalResults"] == 2
        assert payload["metadata"]["processingTime"] >= 0
        assert [each["id"] for each in payload["results"]] == ["kb-1", "kb-2"]
        assert all(0 < each["confidence"] <= 1 for each in payload["results"])
    assert by_http["message"]["correlationId"] == REQUEST["messageId"]


async def test_a_chinese_question_finds_the_chinese_article_without_a_subprotocol(example) -> None:
    asked = json.loads(json.dumps(REQUEST))
    asked["payload"]["parameters"] |= {"query": "退款政策相关信息", "language": "zh-CN"}
    async with under_uvicorn(parley.asgi(example("knowledge_base").agent)) as url:
        by_http = await post(url, asked)
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{url}/envelope") as socket,
        ):
            assert socket.protocol is None
            await socket.send_json(asked)
            async for received in socket:
                by_socket = received.json()
                if by_socket["message"].get("correlationId") == asked["messageId"]:
                    break
    for found in (by_http, by_socket):
        assert [each["title"] for each in found["payload"]["results"]] == ["退款政策"]


async def test_its_card_declares_what_the_request_uses(example) -> None:
    async with (
        under_uvicorn(parley.asgi(example("knowledge_base").agent)) as url,
        aiohttp.ClientSession() as session,
        session.get(f"{url}/envelope/card") as answer,
    ):
        card = await answer.json()
        refused = {}
        for field, value in (("category", "gossip"), ("maxResults", 0)):
            wrong = json.loads(json.dumps(REQUEST))
            wrong["payload"]["parameters"] |= {field: value}
            refused[f"payload.parameters.{field}"] = await post(url, wrong)
    assert card["agentInfo"]["type"] == "knowledge-base"
    [capability] = card["capabilities"]
    schema = json.dumps(capability["inputSchema"])
    for word in ("customer-service", "maxResults", "language", "query"):
        assert word in schema
    assert "confidence" in json.dumps(capability["outputSchema"])
    for field, answer in refused.items():
        error = answer["payload"]["error"]
        assert error["code"] == "INVALID_PARAMS"
        assert [each["field"] for each in error["violations"]] == [field]
