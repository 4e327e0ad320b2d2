"""gRPC as a client's library does it, with the bytes of our codecs and nothing made right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import grpc
import msgspec

from parley.model.errors import A2AError
from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.model.tasks import Event
from parley.server.app import App
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from parley.wire import versions
from parley.wire.protobuf.errors import STATUS_KEY, read_status

WAIT = 5.0
HI = SendMessageRequest(
    message=Message(message_id="m-1", role=Role.USER, parts=(Part(text="What time is it?"),))
)

Metadata = Sequence[tuple[str, str]]


class Refused(NamedTuple):
    """How a call ended that has no answer."""

    status: str
    words: str
    initial: dict[str, Any]
    trailing: dict[str, Any]

    @property
    def error(self) -> A2AError:
        return read_status(self.status, self.words, self.trailing.get(STATUS_KEY))


class Rpc:
    """A channel to a server, and the messages of one version."""

    def __init__(self, channel: grpc.aio.Channel, version: str = "1.0") -> None:
        self.channel = channel
        self.codec = versions.dialect(version).grpc()
        self.metadata: Metadata = (("a2a-version", version),)

    def path(self, operation: str) -> str:
        return f"/{self.codec.service}/{self.codec.names[operation]}"

    def start(self, name: str, request: Any, metadata: Metadata | None, **options: Any) -> Any:
        operation = BY_NAME[name]
        if isinstance(request, msgspec.Struct):
            request = self.codec.write_request(operation, request)
        make = self.channel.unary_stream if operation.streaming else self.channel.unary_unary
        metadata = self.metadata if metadata is None else metadata
        return make(self.path(name))(request, metadata=metadata, **options)

    async def ask(
        self, name: str, request: Any = HI, metadata: Metadata | None = None, **options: Any
    ) -> Any:
        """The answer, out of its wrapper."""
        call = self.start(name, request, metadata, **options)
        answer = await asyncio.wait_for(_whole(call), WAIT)
        return self.codec.read_result(BY_NAME[name], answer)

    async def refused(
        self, name: str, request: Any = HI, metadata: Metadata | None = None, **options: Any
    ) -> Refused:
        """How a call ends that has to have no answer, and no event."""
        call = self.start(name, request, metadata, **options)
        try:
            if BY_NAME[name].streaming:
                answer = [each async for each in call]
            else:
                answer = await asyncio.wait_for(_whole(call), WAIT)
        except grpc.aio.AioRpcError as error:
            return refusal(error)
        raise AssertionError(f"not refused: {answer!r}")

    @asynccontextmanager
    async def stream(
        self, name: str = "SubscribeToTask", request: Any = None, metadata: Metadata | None = None
    ) -> AsyncIterator[Stream]:
        """The events of a stream, which is given up at the end."""
        if request is None:
            request = BY_NAME[name].request(id="t-1") if name == "SubscribeToTask" else HI
        call = self.start(name, request, metadata)
        try:
            yield Stream(self, call)
        finally:
            call.cancel()


class Stream:
    """A stream, event by event."""

    def __init__(self, rpc: Rpc, call: Any) -> None:
        self._rpc = rpc
        self._events = call.__aiter__()
        self.call = call

    async def next(self) -> Event:
        return self._rpc.codec.read_event(await asyncio.wait_for(anext(self._events), WAIT))

    async def rest(self) -> list[Event]:
        """All that is still to come, and no error after it."""
        events = []
        while True:
            try:
                events.append(await self.next())
            except StopAsyncIteration:
                return events


def refusal(error: grpc.aio.AioRpcError) -> Refused:
    return Refused(
        error.code().name,
        error.details() or "",
        dict(error.initial_metadata() or ()),
        dict(error.trailing_metadata() or ()),
    )


async def _whole(call: Any) -> bytes:
    return await call


@asynccontextmanager
async def served(app: App, version: str = "1.0", **options: Any) -> AsyncIterator[Rpc]:
    """An app on a server of its own, and a channel to it."""
    grpc_options = GrpcOptions(port=0, **options)
    async with serving(app, grpc=grpc_options) as url:
        target = app.grpc.beside(url)
        async with grpc.aio.insecure_channel(target) as channel:
            yield Rpc(channel, version)
