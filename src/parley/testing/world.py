"""The world of one test, which its agents and clients share: time, addresses, webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from parley.agent.agent import Agent
from parley.client.bindings.http import redacted
from parley.client.connection import Connection
from parley.client.connection import connect as connect_to
from parley.client.errors import ClientError, Disconnected
from parley.client.remote_agent import RemoteAgent
from parley.host.in_process import InProcessExchange, InProcessTransport, Site
from parley.model.service import Caller
from parley.testing.deployment import Deployment
from parley.testing.loop import SimulatedLoop
from parley.testing.moved_time import TestTime
from parley.testing.processes import PROCESS
from parley.testing.webhooks import Deliveries

if TYPE_CHECKING:
    from parley.host.in_process_sockets import InProcessSocket


class WorldTransport(InProcessTransport):
    """The connections of one client: cut when the process at either end dies."""

    def __init__(
        self, sites: Mapping[str, Site], *, caller: Mapping[str, Caller] = {}, is_closed_with: bool
    ) -> None:
        super().__init__(sites, scope=caller)
        self.closes_with_agent = is_closed_with

    def on_open(self, site: Site, exchange: InProcessExchange | InProcessSocket) -> None:
        """Cut the connection when a process dies."""

        def cut() -> None:
            exchange.fail(Disconnected(f"the process of {name} was killed"))
            if process.is_dead:
                self.forget(exchange)

        assert isinstance(site, Deployment)
        name, process, here = site.agent.name, site.process, PROCESS.get()
        ends = [process] if here is None else [process, here]
        for end in ends:
            end.on_death.append(cut)

        def ended(_: object) -> None:
            for end in ends:
                if cut in end.on_death:
                    end.on_death.remove(cut)

        if exchange.task is not None:
            exchange.task.add_done_callback(ended)

    def unknown(self, url: str) -> ClientError:
        """Return the error for an address without a stand-in."""
        known = ", ".join(sorted(self._sites))
        return ClientError(
            f"a test uses no network, and none of its agents is at {redacted(url)}: add "
            f'remotes={{"{redacted(url)}": an_agent}} to parley.testing.client; there are agents '
            f"at {known}"
        )


class World:
    """The time, the addresses and the webhooks of one test."""

    def __init__(self, start: datetime | None) -> None:
        self.simulated = SimulatedLoop.of_running()
        self.clock = self.simulated.clock(start)
        self.time = TestTime(self.clock, self.simulated)
        self.webhooks = Deliveries()
        self.sites: dict[str, Deployment] = {}
        self._stack = AsyncExitStack()
        self._stack.callback(self.simulated.leave)
        self._stack.callback(self.clock.stop)
        self.clients: list[RemoteAgent] = []

    async def deploy(self, agent: Agent, address: str, **options: Any) -> Deployment:
        """Start an agent at an address."""
        deployment = Deployment(
            agent,
            address,
            clock=self.clock,
            webhooks=self.webhooks,
            connect=self.connect,
            **options,
        )
        self.sites[address] = deployment
        self._stack.push_async_callback(deployment.close)
        await deployment.open()
        self.time.watch(deployment)
        return deployment

    def connect(self, reference: Any, **options: Any) -> Connection:
        """Connect a turn to another agent: what the client does, without a network."""
        if options.get("http") is None:
            options["http"] = WorldTransport(self.sites, is_closed_with=True)
        return connect_to(reference, **options)

    async def crash(self, address: str, down_for: timedelta) -> None:
        """Kill the process at an address, and start another one."""
        deployment = self.sites[address]
        self.simulated.hook_generators()  # the loop may have been run anew
        await deployment.kill()
        if down_for:
            await self.time.advance(down_for)
        await deployment.restart()

    async def close(self) -> None:
        """Close the clients, stop the agents, and give the loop back."""
        clients, self.clients = self.clients, []
        async with self._stack:
            for client in clients:
                await client.aclose()
