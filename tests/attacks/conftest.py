"""Real servers on this machine: one for each guard, with every binding and version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import NamedTuple

import pytest

import parley
from parley.server.run import serving
from parley.server.settings import GrpcOptions, Settings
from parley.testing import Issuer
from tests.attacks.guards import AUDIENCE, GUARDS, Counts, guarded
from tests.contract.conftest import Speech
from tests.kit.servers import WAYS


class Vault(NamedTuple):
    """A protected agent: its address, and the count of its runs."""

    url: str
    counts: Counts


@pytest.fixture(scope="session")
async def issuer() -> AsyncIterator[Issuer]:
    async with Issuer(audience=AUDIENCE) as issuer:
        yield issuer


@pytest.fixture(scope="session")
async def vaults(
    issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[dict[str, Vault]]:
    """The protected agents by the names of their guards."""
    settings = Settings(auth_failures_per_minute=0)
    async with AsyncExitStack() as stack:
        found = {}
        for name, guard in GUARDS.items():
            counts = Counts()
            app = parley.asgi(
                guarded(guard.security(issuer), counts),
                store="memory:",
                files=tmp_path_factory.mktemp("files"),
                drain=0.0,
                settings=settings,
            )
            running = serving(app, grpc=GrpcOptions(port=0))
            found[name] = Vault(await stack.enter_async_context(running), counts)
        yield found


@pytest.fixture(params=WAYS, ids="-".join)
def speech(request: pytest.FixtureRequest) -> Speech:
    """The binding and version that a test's client speaks."""
    return Speech(*request.param)
