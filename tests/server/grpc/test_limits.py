"""Limits on the memory and the number of gRPC clients."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from parley.model.errors import InternalError, InvalidRequestError, OverloadedError
from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.server.app import Settings
from parley.server.grpc import call as limits
from tests.kit.grpc import Http2, Rpc, http2, refusal, rpc_to
from tests.kit.scripted import Scripted, app_of
from tests.kit.waiting import until
from tests.server.limits.test_byte_budget import is_back_to_nothing, saying

pytestmark = pytest.mark.anyio

LONG = 60.0
MIB = 2**20
VERSION = ("a2a-version", "1.0")
CHECK = "/grpc.health.v1.Health/Check"
REFLECT = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_SLOW_SECONDS", 0.05)


def asking(words: str) -> SendMessageRequest:
    return SendMessageRequest(
        message=Message(message_id="m", role=Role.USER, parts=(Part(text=words),))
    )


def written(rpc: Rpc, request: Any) -> bytes:
    data = rpc.codec.write_request(BY_NAME["SendMessage"], request)
    return b"\0" + len(data).to_bytes(4, "big") + data


async def half(http: Http2, path: str, size: int = 100_000) -> int:
    """Start a call whose message stops before its end."""
    stream = await http.call(path, VERSION)
    await http.data(stream, b"\0" + size.to_bytes(4, "big") + b"\0" * (size - 1))
    return stream


async def ended(call: Any) -> grpc.aio.AioRpcError:
    """Return the error of a call that sends nothing."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call, LONG)
    return caught.value


@pytest.mark.slow
@pytest.mark.parametrize("path", ["SendMessage", "SendStreamingMessage", CHECK, REFLECT])
async def test_a_message_that_does_not_come_is_given_up(path: str) -> None:
    app = app_of(settings=Settings(body_timeout=0.5))
    async with rpc_to(app) as rpc, http2(app.grpc.port) as http, asyncio.timeout(LONG):
        path = path if path.startswith("/") else rpc.path(path)
        streams = [await half(http, path), await http.call(path, VERSION)]
        await until(lambda: app.request_bytes.total)
        assert await rpc.ask("SendMessage")
        await http.over(*streams)
        await until(lambda: is_back_to_nothing(app))
        assert await rpc.ask("SendMessage")


@pytest.mark.slow
async def test_who_sends_no_message_is_told_why_the_call_ends() -> None:
    app = app_of(settings=Settings(body_timeout=0.5))
    async with rpc_to(app) as rpc:
        silent = rpc.channel.stream_unary(rpc.path("SendMessage"))(metadata=rpc.metadata)
        late = await ended(silent)
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "0.5 seconds" in (late.details() or "")
        none = rpc.channel.stream_unary(rpc.path("SendMessage"))(iter(()), metadata=rpc.metadata)
        assert isinstance(refusal(await ended(none)).error, InvalidRequestError)


async def test_one_address_has_only_its_share_of_messages_that_do_not_come() -> None:
    app = app_of(settings=Settings(max_body_bytes=MIB, max_body_bytes_held=8 * MIB))
    async with rpc_to(app) as rpc, http2(app.grpc.port) as http, asyncio.timeout(LONG):
        streams = [await half(http, rpc.path("SendMessage"), MIB) for _ in range(10)]
        await until(lambda: sum(map(http.gone, streams)) >= 8)
        assert app.request_bytes.total == 2 * MIB
        silent = rpc.channel.stream_unary(rpc.path("SendMessage"))(metadata=rpc.metadata)
        error = refusal(await ended(silent)).error
        assert isinstance(error, OverloadedError)
        assert error.retry_after == 1
        assert "for your address" in error.message
        assert await rpc.ask("SendMessage")  # which fails immediately
        assert sum(map(http.gone, streams)) == 8
        assert app.request_bytes.total == 2 * MIB
    await until(lambda: is_back_to_nothing(app))


async def test_a_slow_message_is_taken() -> None:
    app = app_of(Scripted(send_message=saying))
    async with rpc_to(app) as rpc, http2(app.grpc.port) as http, asyncio.timeout(LONG):
        data = written(rpc, asking("1 " + " " * 300_000))
        stream = await http.call(rpc.path("SendMessage"), VERSION)
        for start in range(0, len(data), 100_000):
            await until(lambda: not start or app.request_bytes.total)  # noqa: B023
            piece = data[start : start + 100_000]
            await http.data(stream, piece, ends=start + 100_000 >= len(data))
        await http.over(stream)
        assert http.received
        await until(lambda: is_back_to_nothing(app))


async def test_answers_that_nobody_reads_are_refused_beyond_a_share() -> None:
    settings = Settings(max_unsent_bytes=16 * MIB)
    app = app_of(Scripted(send_message=saying), settings=settings)
    async with rpc_to(app) as rpc, asyncio.timeout(LONG):
        data = written(rpc, asking(f"1 {MIB}"))
        async with http2(app.grpc.port, window=0) as deaf:
            streams = []
            for _ in range(10):
                streams.append(await deaf.call(rpc.path("SendMessage"), VERSION))
                await deaf.data(streams[-1], data, ends=True)
            await until(lambda: sum(map(deaf.gone, streams)) == 7)
            assert 3 * MIB < app.unsent_bytes.total < 4 * MIB
            # Small responses fit, large ones exceed this address's share, and then nothing fits.
            assert await rpc.ask("SendMessage", asking("2"))
            refused = await rpc.refused("SendMessage", asking(f"3 {MIB}"))
            assert isinstance(refused.error, InternalError)
            assert "for your address" in refused.error.message
            for _ in range(100):
                stream = await deaf.call(rpc.path("SendMessage"), VERSION)
                await deaf.data(stream, written(rpc, asking("4 10000")), ends=True)
                if deaf.gone(stream):
                    break
            await until(lambda: app.unsent_bytes.total > 3.9 * MIB)
        await until(lambda: is_back_to_nothing(app))
        answer = await rpc.ask("SendMessage", asking(f"5 {MIB}"))
        assert len(answer.parts[0].text) == MIB + 2
        assert await rpc.ask("SendMessage", asking("6"))
