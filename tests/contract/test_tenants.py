"""Tenants, reached in every way that can name one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

import parley
from parley.client.errors import NoCommonVersion
from parley.model.errors import TaskNotFoundError
from tests.contract.agents import contract, plain
from tests.contract.conftest import Serve, Speech, connect, reach

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session")
async def shared(serve: Serve) -> Sequence[str]:
    """The addresses that several tenants share, one for each replica."""
    tenants = {"acme": contract, "globex": contract, "initech": plain}
    return await serve(partial(parley.asgi, tenants=tenants))


@pytest.fixture
async def cannot(shared: Sequence[str], speech: Speech) -> bool:
    """Whether this way has no means to name a tenant: neither a field nor a path."""
    if speech.way != ("GRPC", "0.3"):
        return False
    with pytest.raises(NoCommonVersion):
        await connect(f"{shared[0]}/acme", speech)
    return True


@pytest.mark.parametrize("path", ["/{}", "/a2a/{}", "/.well-known/agent-card.json?tenant={}"])
async def test_each_tenant_is_its_own_agent(shared, speech, cannot, path):
    if cannot:
        return
    for tenant, name in (("acme", "Contract agent"), ("initech", "Plain agent")):
        async with reach(shared, speech, path=path.format(tenant)) as remote:
            assert remote.card.name == name
            assert (await remote.send("say hello")).text in ("hello", "mhm")


async def test_tenants_see_nothing_of_each_other(shared, speech, cannot):
    if cannot:
        return
    async with (
        reach(shared, speech, path="/acme") as acme,
        reach(shared, speech, path="/globex") as globex,
        reach(shared, speech, path="/a2a/acme") as acme_by_name,
    ):
        task = await acme.send("ask please", push="https://hooks.example.com/a")
        for asked in (
            globex.get(task.id),
            globex.cancel(task.id),
            globex.send("42", task_id=task.id),
            globex.push.page(task.id),
        ):
            with pytest.raises(TaskNotFoundError):
                await asked
        with pytest.raises(TaskNotFoundError):
            [event async for event in globex.subscribe(task.id)]
        assert (await acme_by_name.get(task.id)).id == task.id
        assert len((await acme.push.page(task.id)).configs) == 1
        if not speech.is_old:
            assert task.id not in [each.id for each in (await globex.list()).tasks]
            assert task.id in [each.id for each in (await acme_by_name.list()).tasks]


async def test_the_extended_card_keeps_its_reader_with_the_tenant(shared, speech, cannot):
    if cannot:
        return
    for path in ("/globex", "/a2a/globex"):
        async with reach(shared, speech, path=path) as remote:
            card = await remote.extended_card()
            assert "secret" in {skill.id for skill in card.skills}
            for each in card.supported_interfaces:
                address = each.url.removesuffix("/envelope")
                assert each.tenant == "globex" or address.endswith("/globex")
