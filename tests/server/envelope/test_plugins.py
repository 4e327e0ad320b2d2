"""Handlers from operators, and agents' declarations, with every way to name an agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import parley
from parley import Rights
from parley.envelope.binding import EnvelopeBinding
from parley.envelope.messages import Envelope, RequestPayload
from parley.envelope.server.services import MessageContext
from parley.model.errors import PermissionDeniedError
from parley.model.service import Caller
from parley.security import ApiKey, anonymous
from parley.security.api_keys import digest_of
from tests.host.envelope.talking import post, request, searching
from tests.kit.servers import under_uvicorn

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


async def test_a_handler_needs_the_credentials_that_its_agent_needs() -> None:
    """A public operation lets everyone connect, and no more."""
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


# -- tenants: an agent's declarations apply, with every way to name the agent ----------------------
