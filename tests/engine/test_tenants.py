"""One agent for several tenants, or one each: nobody sees what is another tenant's."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

import parley
from parley import Retention
from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.host.host import Host, placed
from parley.host.options import ServerOptions
from parley.model.errors import TaskNotFoundError
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.operations import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageRequest,
    SubscribeToTaskRequest,
)
from parley.model.parts import Message, Part, Role
from parley.model.service import CallContext, Caller
from parley.model.tasks import TaskState

pytestmark = pytest.mark.anyio


def shop(name: str = "Shop") -> Agent:
    agent = Agent(name, retention=Retention(history=True))

    @agent.skill(replies="task")
    async def order(turn: Turn) -> str:
        """Takes an order, once it knows the size."""
        size = await turn.ask("Which size?")
        past = [each.text for each in await turn.history()]
        return f"{name}: {size.text} after {past}"

    return agent


class Tenant:
    """A caller of one tenant."""

    def __init__(self, host: Host, name: str, caller: str = "ada") -> None:
        self.service = host.tenants[name]
        self.context = CallContext(tenant=name, caller=Caller(id=caller))

    async def send(self, text: str, **message: Any) -> Any:
        given = {"message_id": uuid4().hex, "role": Role.USER, "parts": (Part(text=text),)}
        request = SendMessageRequest(message=Message(**{**given, **message}))
        return await self.service.send_message(request, self.context)

    async def list(self) -> list[str]:
        page = await self.service.list_tasks(ListTasksRequest(), self.context)
        assert page.total_size == len(page.tasks)
        return [task.id for task in page.tasks]


@pytest.fixture
def shops(new_store):
    """A maker of hosts: ``async with shops({"acme": agent}) as host``."""

    @asynccontextmanager
    async def opened(tenants: dict[str, Agent]) -> Any:
        host = Host(placed(None, tenants), new_store(), ServerOptions(tenants=tenants, drain=0.0))
        await host.start()
        try:
            yield host
        finally:
            await host.stop()

    return opened


async def test_a_task_of_one_tenant_does_not_exist_for_another(shops):
    one = shop()
    async with shops({"acme": one, "globex": one, "initech": shop("Other")}) as host:
        acme = Tenant(host, "acme")
        task = await acme.send("shoes")
        assert await acme.list() == [task.id]
        for name in ("globex", "initech"):
            other = Tenant(host, name)
            assert await other.list() == []
            for method, request in (
                ("get_task", GetTaskRequest(id=task.id)),
                ("cancel_task", CancelTaskRequest(id=task.id)),
            ):
                with pytest.raises(TaskNotFoundError):
                    await getattr(other.service, method)(request, other.context)
            with pytest.raises(TaskNotFoundError):
                await anext(
                    other.service.subscribe_to_task(
                        SubscribeToTaskRequest(id=task.id), other.context
                    )
                )
            with pytest.raises(TaskNotFoundError):
                await other.send("42", task_id=task.id)
        done = await acme.send("42", task_id=task.id)
        assert done.state is TaskState.COMPLETED


async def test_tenants_share_no_context_though_they_name_it_alike(shops):
    one = shop()
    async with shops({"acme": one, "globex": one}) as host:
        for name in ("acme", "globex"):
            tenant = Tenant(host, name)
            task = await tenant.send(f"{name} shoes", context_id="c-1")
            done = await tenant.send(f"{name} 42", task_id=task.id)
            said = done.artifacts[0].parts[0].text
            other = {"acme": "globex", "globex": "acme"}[name]
            assert other not in said
            assert len(await tenant.list()) == 1


async def test_a_message_that_two_tenants_send_alike_is_no_repeat(shops):
    one = shop()
    async with shops({"acme": one, "globex": one}) as host:
        tasks = []
        for name in ("acme", "globex", "acme"):
            tenant = Tenant(host, name)
            tenant.context = CallContext(
                tenant=name, caller=tenant.context.caller, extensions=frozenset({IDEMPOTENT_SEND})
            )
            tasks.append((await tenant.send("shoes", message_id="m-1")).id)
        assert tasks[0] == tasks[2] != tasks[1]


async def test_callers_of_one_tenant_are_apart_too(shops):
    async with shops({"acme": shop()}) as host:
        task = await Tenant(host, "acme").send("shoes")
        other = Tenant(host, "acme", "bob")
        assert await other.list() == []
        with pytest.raises(TaskNotFoundError):
            await other.service.get_task(GetTaskRequest(id=task.id), other.context)


async def test_tenants_of_one_agent_share_what_runs_it(shops):
    one = shop()
    async with shops({"acme": one, "globex": one}) as host:
        assert host.tenants["acme"] is host.tenants["globex"]


def test_different_agents_have_different_keys_as_tenants_too():
    with pytest.raises(ValueError, match="same key"):
        parley.asgi(tenants={"acme": shop(), "globex": shop()})
    with pytest.raises(ValueError, match="same key"):
        parley.asgi(shop(), tenants={"acme": shop()})
    parley.asgi(tenants={"acme": shop(), "globex": shop("Other")})
    one = shop()
    parley.asgi(one, tenants={"acme": one})


def test_what_cannot_be_a_server_of_tenants_is_refused():
    with pytest.raises(ValueError, match="no agent"):
        parley.asgi()
    with pytest.raises(ValueError, match="tenant"):
        parley.asgi(tenants={"a/b": shop()})
    with pytest.raises(ValueError, match="no skill"):
        parley.asgi(tenants={"acme": Agent("Idle")})
