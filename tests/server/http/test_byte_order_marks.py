"""A byte order mark before JSON, as editors and other languages put it there, is passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest

import parley
from parley import Agent, Turn
from parley.envelope.codec import read_message
from parley.model.service import Caller
from parley.push.verification import read_event
from parley.server.http.callbacks import read_content
from parley.server.run import serving
from tests.kit.http import MESSAGE, ask
from tests.wire.envelope.messages import REQUEST

pytestmark = pytest.mark.anyio

BOM = b"\xef\xbb\xbf"
OLD_MESSAGE = {**MESSAGE, "role": "user", "kind": "message"}
OLD_MESSAGE["parts"] = [{"kind": "text", "text": "What time is it?"}]


def rpc(method: str, message: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message}}


REQUESTS = [
    ("/", "1.0", rpc("SendMessage", MESSAGE)),
    ("/", "0.3", rpc("message/send", OLD_MESSAGE)),
    ("/message:send", "1.0", {"message": MESSAGE}),
    ("/message:send", "1.0", rpc("SendMessage", MESSAGE)),
    ("/v1/message:send", "0.3", {"message": OLD_MESSAGE}),
]


@pytest.mark.parametrize(("path", "version", "body"), REQUESTS)
@pytest.mark.parametrize("caller", [None, lambda request: Caller("ada")], ids=["anyone", "callers"])
async def test_a_request_behind_a_mark_is_read(
    path: str, version: str, body: dict[str, Any], caller: Any
) -> None:
    agent = Agent("Echo", description="Echoes", version="1.0.0")

    @agent.skill
    def echo(turn: Turn) -> str:
        """Echoes."""
        return f"heard {turn.text}"

    headers = {"Content-Type": "application/json", "A2A-Version": version}
    async with serving(parley.asgi(agent, store="memory:", caller=caller)) as url:
        for mark in (b"", BOM):
            answer = await ask(url, "POST", path, mark + json.dumps(body).encode(), headers)
            assert answer.status == 200, answer.body
            assert b"heard What" in answer.body
        answer = await ask(url, "POST", path, BOM * 2 + json.dumps(body).encode(), headers)
        assert b"heard" not in answer.body


def test_other_entries_read_it_too() -> None:
    message = read_message((BOM + json.dumps(REQUEST).encode()).decode())
    assert message.received == REQUEST
    assert read_content(b"application/json", BOM + b'{"a": 1}', max_depth=10) == {"a": 1}
    task = {"id": "t-1", "contextId": "c-1", "status": {"state": "TASK_STATE_COMPLETED"}}
    event, version = read_event(BOM + json.dumps({"task": task}).encode())
    assert (event.state.name, version) == ("COMPLETED", "1.0")  # type: ignore[union-attr]
