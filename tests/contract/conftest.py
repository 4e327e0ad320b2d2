"""Servers for each store, and a client for each binding and version.

Every test runs over all of them: an operation means the same in every binding, and on every replica
of a shared store.
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, cast
from zlib import crc32

import pytest

import parley
from parley.client import RemoteAgent
from parley.client.retry import Retry
from parley.host.in_process import InProcessTransport, Site
from parley.model.operations import BY_NAME
from parley.server.app import App
from parley.server.run import over_grpc, serving
from parley.server.settings import GrpcOptions, Settings
from tests.contract.agents import contract, plain, strict, who
from tests.kit.servers import WAYS, grpc_of, under_uvicorn

STORES = ("memory", "mounted", "sqlite", "postgres", "postgres+redis")
"""The stores. ``mounted`` is a memory store under uvicorn, another ASGI server; Parley's own
connections serve all other stores."""
REPLICAS = {"postgres": 2, "postgres+redis": 3}
SPEECHES = [*WAYS, ("JSONRPC", "1.0", "in-process"), ("ENVELOPE", "1.0")]

NO_REPEATS = Retry(calls=0, streams=0)


class Speech(NamedTuple):
    """A client's binding, protocol version and carrier."""

    binding: str
    version: str
    carrier: str = "network"

    @property
    def way(self) -> tuple[str, str]:
        """The binding and the version, without the carrier."""
        return self.binding, self.version

    @property
    def is_old(self) -> bool:
        """Whether this version lacks some features of 1.0."""
        return self.version == "0.3"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run each test in all ways over the first store, and in a few ways over the other stores.

    These few ways differ from test to test, so every way meets every store. The envelope protocol,
    a further way to the same operations, runs over the first store only. With
    ``PARLEY_CONTRACT=all``, each test runs in every way over every store.
    """
    everything = os.environ.get("PARLEY_CONTRACT") == "all"
    kept, dropped = [], []
    for item in items:
        params = getattr(item, "callspec", None)
        given = {} if params is None else params.params
        is_met = True
        if "serve" in given and "speech" in given and given["serve"] != STORES[0]:
            question = item.nodeid.partition("[")[0]
            ways = ways_over(question, STORES.index(given["serve"]))
            is_extra = given["speech"][0] == "ENVELOPE"
            is_met = not is_extra and (everything or given["speech"] in ways)
        (kept if is_met else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def ways_over(question: str, store: int) -> list[tuple[str, ...]]:
    """Return the ways in which a test runs over a store: one way per version.

    A test that one version does not support still runs in the other version.
    """
    turn = crc32(question.encode()) + store
    new, old = [way for way in WAYS if way[1] == "1.0"], [way for way in WAYS if way[1] == "0.3"]
    return [new[turn % len(new)], old[(turn + 1) % len(old)]]


class Server(NamedTuple):
    """The addresses of each agent's replicas. Agents share no address, because gRPC of 0.3 cannot
    name an agent."""

    contract: Sequence[str]
    plain: Sequence[str]
    strict: Sequence[str]


class Anyone:
    """A client for all replicas: each call goes to a random replica."""

    def __init__(self, clients: Sequence[RemoteAgent]) -> None:
        self._clients = clients
        self._chance = random.Random(len(clients))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chance.choice(self._clients), name)


SITES: dict[str, Site] = {}
"""The apps by address."""

Serve = Callable[..., Awaitable[list[str]]]


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(store, marks=[pytest.mark.service] if store in REPLICAS else [])
        for store in STORES
    ],
)
async def serve(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Serve]:
    """A function that serves an app on a store with all bindings, and returns replica addresses."""
    # All clients share one address, and many tests fail to authenticate on purpose.
    settings = Settings(auth_failures_per_minute=0)
    options: dict[str, Any] = {"caller": who, "drain": 0.0, "settings": settings}
    if request.param == "postgres+redis":
        options["bus"] = request.getfixturevalue("redis").url
    async with AsyncExitStack() as stack:

        async def replicas(asgi: Callable[..., App], **others: Any) -> list[str]:
            store = "memory:"
            if request.param == "sqlite":
                store = f"sqlite:///{tmp_path_factory.mktemp('contract') / 'tasks.db'}"
            elif request.param in REPLICAS:
                store = request.getfixturevalue("postgres").new_url()
            addresses = []
            for _ in range(REPLICAS.get(request.param, 1)):
                app = asgi(store=store, **{**options, **others})
                serve_it = mounted if request.param == "mounted" else serving
                running = serve_it(app, grpc=GrpcOptions(port=0))
                addresses.append(await stack.enter_async_context(running))
                SITES[addresses[-1]] = Site(app)
            return addresses

        yield replicas


@asynccontextmanager
async def mounted(app: App, *, grpc: GrpcOptions) -> AsyncIterator[str]:
    """Serve an app under uvicorn as it is, and over gRPC."""
    on_uvicorn = under_uvicorn(app, lifespan="off", ws="none")
    async with app.lifespan(), on_uvicorn as url, over_grpc(app, grpc, "127.0.0.1", url, grace=5):
        yield url


@pytest.fixture(scope="session")
async def server(serve: Serve) -> Server:
    return Server(
        *[await serve(partial(parley.asgi, agent)) for agent in (contract, plain, strict)]
    )


@pytest.fixture(scope="session", params=SPEECHES, ids="-".join)
def speech(request: pytest.FixtureRequest) -> Speech:
    """The client's way: its binding, version and carrier."""
    return Speech(*request.param)


@pytest.fixture(scope="session")
async def remote(server: Server, speech: Speech) -> AsyncIterator[RemoteAgent]:
    """The contract agent's client."""
    async with reach(server.contract, speech) as agent:
        yield agent


@pytest.fixture(scope="session")
async def stranger(server: Server, speech: Speech) -> AsyncIterator[RemoteAgent]:
    """A client of the same agent, as another caller."""
    async with reach(server.contract, speech, headers={"x-user": "eve"}) as agent:
        yield agent


@asynccontextmanager
async def reach(
    urls: Sequence[str], speech: Speech, *, path: str = "", **options: Any
) -> AsyncIterator[RemoteAgent]:
    """Connect to all replicas of an agent; each call goes to a random replica."""
    async with AsyncExitStack() as stack:
        clients = []
        for url in urls:
            options["trust_origins"] = await grpc_of(url + path)
            connection = connect(url + path, speech, **options)
            clients.append(await stack.enter_async_context(connection))
        yield clients[0] if len(clients) == 1 else cast("RemoteAgent", Anyone(clients))


def connect(url: str, speech: Speech, **options: Any) -> Any:
    """Return a connection in one way, as one caller, without retries."""
    given = {"headers": {"x-user": "ada"}, "retries": NO_REPEATS, "idempotent": False}
    if speech.carrier == "in-process":
        given["http"] = InProcessTransport(SITES)
    return parley.connect(
        url, binding=speech.binding, version=speech.version, **{**given, **options}
    )


async def past_the_card(remote: RemoteAgent, name: str, request: Any) -> Any:
    """Call an operation that the client itself would reject after it reads the card."""
    operation, interfaces = BY_NAME[name], remote._interfaces
    if not operation.streaming:
        return await interfaces.call(operation, request, remote.context)
    return [item.event async for item in interfaces.stream(operation, request, remote.context)]
