"""One server for the tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import parley
from parley.server.run import serving
from tests.server.envelope.agents import Gates, knowledge_base
from tests.server.envelope.speaking import TRANSPORTS, Speaker

Served = tuple[str, Gates]


@pytest.fixture(scope="module")
async def served() -> AsyncIterator[Served]:
    gates = Gates()
    async with serving(parley.asgi(knowledge_base(gates))) as url:
        yield url, gates


@pytest.fixture
def url(served: Served) -> str:
    return served[0]


@pytest.fixture
def gates(served: Served) -> Gates:
    return served[1]


@pytest.fixture(params=[*TRANSPORTS])
async def speaker(request: pytest.FixtureRequest, url: str) -> AsyncIterator[Speaker]:
    async with TRANSPORTS[request.param](url) as speaker:
        yield speaker
