"""One server for each store, and a client for each binding and version that it speaks.

Every test runs over all of them: what an operation means does not depend on how it is asked for.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

import parley
from parley.client import RemoteAgent
from parley.client.retry import Retry
from parley.model.operations import BY_NAME
from parley.server.grpc_options import GrpcOptions
from parley.server.run import serving

from .agents import contract, plain, strict, who

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
VERSIONS = ("1.0", "0.3")
STORES = ("memory", "sqlite")
WAYS = [(binding, version) for version in VERSIONS for binding in BINDINGS]

NO_REPEATS = Retry(calls=0, streams=0)


class Speech(NamedTuple):
    """How a client speaks: its binding, and the version of the protocol."""

    binding: str
    version: str

    @property
    def is_old(self) -> bool:
        """Whether there are things that this version cannot say."""
        return self.version == "0.3"


class Server(NamedTuple):
    """Where the agents are, each on an address of its own: gRPC of 0.3 cannot name one of many."""

    contract: str
    plain: str
    strict: str


@pytest.fixture(scope="session", params=STORES)
async def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Server]:
    """Servers with all bindings."""
    async with AsyncExitStack() as stack:
        addresses = []
        for agent in (contract, plain, strict):
            store = "memory:"
            if request.param == "sqlite":
                store = f"sqlite:///{tmp_path_factory.mktemp('contract') / 'tasks.db'}"
            app = agent.asgi(store=store, caller=who, drain=0.0)
            grpc = GrpcOptions(port=0)
            addresses.append(await stack.enter_async_context(serving(app, grpc=grpc)))
        yield Server(*addresses)


@pytest.fixture(scope="session", params=WAYS, ids=lambda way: "-".join(way))
def speech(request: pytest.FixtureRequest) -> Speech:
    """How the client of a test speaks."""
    return Speech(*request.param)


@pytest.fixture(scope="session")
async def remote(server: Server, speech: Speech) -> AsyncIterator[RemoteAgent]:
    """The contract agent, as a client sees it."""
    async with reach(server.contract, speech) as agent:
        yield agent


@pytest.fixture(scope="session")
async def stranger(server: Server, speech: Speech) -> AsyncIterator[RemoteAgent]:
    """The same agent, as another caller sees it."""
    async with reach(server.contract, speech, headers={"x-user": "eve"}) as agent:
        yield agent


def reach(url: str, speech: Speech, **options: Any) -> Any:
    """Return a connection that speaks in one way, as one caller, and repeats nothing."""
    given = {"headers": {"x-user": "ada"}, "retries": NO_REPEATS, "idempotent": False}
    return parley.connect(
        url, binding=speech.binding, version=speech.version, **{**given, **options}
    )


async def past_the_card(remote: RemoteAgent, name: str, request: Any) -> Any:
    """Do an operation that the client would not ask for, having read the card."""
    operation, interfaces = BY_NAME[name], remote._interfaces
    if not operation.streaming:
        return await interfaces.call(operation, request, remote.context)
    return [item.event async for item in interfaces.stream(operation, request, remote.context)]
