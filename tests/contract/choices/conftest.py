"""One server with every binding for all tests, and a raw caller for each binding and version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import parley
from parley.server.app import App
from parley.server.run import serving
from parley.server.settings import GrpcOptions
from tests.contract.agents import contract, who
from tests.contract.choices.wire import Place, Wire
from tests.kit.servers import WAYS


@asynccontextmanager
async def placed(app: App) -> AsyncIterator[Place]:
    """Serve an app of one test, with gRPC."""
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        yield Place(url, app.grpc.beside(url))


@pytest.fixture(scope="session")
async def place() -> AsyncIterator[Place]:
    """The address of the agent that the tests share."""
    app = parley.asgi(contract, caller=who, drain=0.0, allow_private_webhooks=True)
    async with placed(app) as place:
        yield place


@pytest.fixture
def url(place: Place) -> str:
    return place.url


@pytest.fixture(params=WAYS, ids="-".join)
def wire(request: pytest.FixtureRequest, place: Place) -> Wire:
    """The raw caller of the shared server, in each binding and version."""
    return Wire(place, *request.param)


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Each binding and version, for tests that start their own server."""
    binding, version = request.param
    return binding, version


@pytest.fixture
def http(place: Place) -> Wire:
    """A caller over HTTP+JSON in 1.0."""
    return Wire(place, "HTTP+JSON", "1.0")


@pytest.fixture
def rpc(place: Place) -> Wire:
    """A caller over JSON-RPC in 1.0."""
    return Wire(place, "JSONRPC", "1.0")


def only(*ways: tuple[str, str]) -> Any:
    """Run a test in these bindings and versions only."""
    return pytest.mark.parametrize("wire", ways, ids="-".join, indirect=True)
