"""The fortune teller whose extension is that of the guides."""

from __future__ import annotations

import json

import pytest

import parley
from parley.model.errors import InvalidParamsError
from tests.kit.http import JSON, ask
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio

URI = "https://example.com/ext/konami-code/v1"
QUESTION = "Will it rain today?"


@pytest.fixture
def ball(example):
    return example("magic_8_ball")


async def test_anybody_gets_an_answer(ball, serve) -> None:
    async with serve(ball.agent) as agent:
        assert str(await agent.send(QUESTION)) in ball.ANSWERS


async def test_a_code_unlocks_another_answer(ball) -> None:
    async with (
        under_uvicorn(parley.asgi(ball.agent)) as url,
        parley.connect(url, extensions=[ball.KonamiCode("moo")]) as agent,
    ):
        assert str(await agent.send(QUESTION)) in ball.UNLOCKED["moo"]
        hints = [e.params for e in agent.card.capabilities.extensions if e.uri == URI]
        assert len(hints[0]["hints"]) == 2


async def test_a_code_without_the_extension_unlocks_nothing(ball, serve) -> None:
    async with serve(ball.agent) as agent:
        reply = await agent.send(QUESTION, metadata={f"{URI}/code": "moo"})
        assert str(reply) in ball.ANSWERS


async def test_a_wrong_code_is_refused(ball) -> None:
    async with (
        under_uvicorn(parley.asgi(ball.agent)) as url,
        parley.connect(url, extensions=[ball.KonamiCode("xyzzy")]) as agent,
    ):
        with pytest.raises(InvalidParamsError, match="hints"):
            await agent.send(QUESTION)


async def test_the_request_of_the_guide_is_understood(ball) -> None:
    params = {
        "message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "Rain today?"}]},
        "metadata": {f"{URI}/code": "motherlode"},
    }
    body = {"jsonrpc": "2.0", "method": "SendMessage", "id": "1", "params": params}
    async with under_uvicorn(parley.asgi(ball.agent)) as url:
        headers = {**JSON, "A2A-Extensions": URI}
        response = await ask(url, "POST", "/", json.dumps(body).encode(), headers)
    assert response.headers["a2a-extensions"] == URI
    text = response.json["result"]["message"]["parts"][0]["text"]
    assert text in ball.UNLOCKED["motherlode"]


async def test_it_asks_by_itself(ball, capsys) -> None:
    async with under_uvicorn(parley.asgi(ball.agent)) as url:
        await ball.main(QUESTION, "moo", url)
    assert capsys.readouterr().out.strip() in ball.UNLOCKED["moo"]
