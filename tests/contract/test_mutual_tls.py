"""Mutual TLS: callers are who their certificates name, over every binding and in every version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import parley
from parley import Agent, Turn
from parley.client.bindings.http import GrpcTls, HttpTransport
from parley.client.remote_agent import RemoteAgent
from parley.model.errors import TaskNotFoundError, UnauthenticatedError
from parley.model.operations import GetTaskRequest
from parley.security import MutualTls
from parley.server.run import serving
from parley.server.settings import GrpcOptions, TlsOptions
from tests.contract.test_errors import refused
from tests.kit.certificates import Authority, Pair, trusting
from tests.kit.servers import WAYS

pytestmark = pytest.mark.anyio

AUTHORITY = Authority()
SHOP = "spiffe://example.org/shop"
shop = AUTHORITY.caller("shop", uris=(SHOP,))
ada = AUTHORITY.caller("ada", key=3)
mallory = AUTHORITY.caller("mallory", key=4)

bank = Agent("Bank", security=MutualTls([SHOP, "CN=ada"]))


@bank.skill(replies="task")
async def who(turn: Turn) -> str:
    return f"{turn.caller.id} of {turn.caller.issuer}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
async def url(folder: Path) -> AsyncIterator[str]:
    cert, key = AUTHORITY.server().write(folder, "server")
    tls = TlsOptions(cert=cert, key=key, client_ca=AUTHORITY.write(folder))
    async with serving(parley.asgi(bank), tls=tls, grpc=GrpcOptions(port=0)) as address:
        yield address


@pytest.fixture(params=WAYS, ids="-".join)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@asynccontextmanager
async def calling(
    url: str, folder: Path, way: tuple[str, str], pair: Pair
) -> AsyncIterator[RemoteAgent]:
    cert, key = pair.write(folder, pair.fingerprint)
    transport = HttpTransport(
        tls=trusting(AUTHORITY, (cert, key)),
        grpc_tls=GrpcTls(ca=folder / "ca.pem", cert=cert, key=key),
    )
    binding, version = way
    async with (
        transport,
        parley.connect(url, http=transport, binding=binding, version=version, retries=0) as remote,
    ):
        yield remote


async def test_callers_are_who_their_certificates_name(
    url: str, folder: Path, way: tuple[str, str]
) -> None:
    async with calling(url, folder, way, shop) as first, calling(url, folder, way, ada) as second:
        assert list(first.card.security_schemes) == ["mtls"]
        task = await first.send("who am I?")
        assert task.text == f"{SHOP} of CN=Test authority"
        assert (await second.send("who am I?")).text == "CN=ada of CN=Test authority"
        assert (await first.get(task.id)).id == task.id
        with pytest.raises(TaskNotFoundError):
            await second.get(task.id)


async def test_a_certificate_that_is_not_pinned_lets_nobody_in(
    url: str, folder: Path, way: tuple[str, str]
) -> None:
    async with calling(url, folder, way, mallory) as remote:
        error = await refused(remote, "GetTask", GetTaskRequest(id="any"))
        assert type(error) is UnauthenticatedError
