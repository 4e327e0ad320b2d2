"""An agent as it is deployed in a test: a host in a simulated process, on a store that stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import Context
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from parley.agent.agent import Agent
from parley.client.connection import Connection
from parley.host.app import app_of
from parley.host.files import open_files
from parley.host.host import Host
from parley.host.in_process import Site
from parley.host.options import Identify, ServerOptions
from parley.host.store_urls import sqlite_path
from parley.model.service import ANONYMOUS, Caller
from parley.push.delivery import RetryPolicy
from parley.security.authentication import Authenticator
from parley.security.authorization import Authorization
from parley.security.egress import Egress
from parley.security.evidence import Evidence
from parley.security.schemes.scheme import Proof
from parley.server.middleware import AnyMiddleware
from parley.server.settings import Settings
from parley.store.memory import MemoryTaskStore
from parley.store.protocols.tables import NEVER
from parley.store.sql.store import SqlTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from parley.testing.loop import Clock, Process
from parley.testing.webhooks import Deliveries

CALLER = "parley.testing.caller"
"""Where the scope of a request has its caller."""

DEFAULT_CALLER = "parley.testing.default_caller"
"""Where it has the caller of a request that has no credentials of its own."""

DRAIN_SECONDS = 0.0
"""How long turns have to end at the end of a test: none waits for those that the test left."""


def store_at(url: str, clock: Clock) -> TaskStore:
    """Return the store of a URL, by the time of a test. Raises ``ValueError``."""
    if url in ("memory:", "memory://"):
        return MemoryTaskStore(clock=clock.milliseconds)
    path = sqlite_path(url)
    if path is None:
        raise ValueError(
            f"a test keeps tasks in memory: or in sqlite:///path/to/tasks.db, not {url!r}: "
            "the time of another store cannot be moved"
        )
    return SqliteTaskStore(path, clock=clock.milliseconds)


class Deployment(Site):
    """A host that starts, stops, crashes and starts again at the same address."""

    def __init__(
        self,
        agent: Agent,
        address: str,
        *,
        clock: Clock,
        store: str,
        webhooks: Deliveries,
        connect: Callable[..., Connection],
        settings: Settings | None,
        identify: Identify | None,
        authenticates: bool,
        retry_policy: RetryPolicy | None,
        private_webhooks: bool,
        files: str | Path | None,
        middleware: Sequence[AnyMiddleware],
    ) -> None:
        self.agent = agent
        self.address = address
        self.clock = clock
        self.crashes = 0
        self._store_url = store
        self._webhooks = webhooks
        self._connect = connect
        self._settings = settings
        self._identify = identify
        self._authenticates = authenticates or identify is not None
        self._retry_policy = retry_policy
        self._private_webhooks = private_webhooks
        self._files = open_files(files, store)  # they outlive the process, as the store does
        self._middleware = middleware
        self._is_up = asyncio.Event()
        self.process = Process(agent.name, clock)
        self.store = store_at(store, clock)
        self.host = self._make_host()
        self._app: ASGIApp = self._make_app()

    # -- what the transport asks of a site -----------------------------------------------------

    @property
    def app(self) -> ASGIApp:  # type: ignore[override]
        """The app that answers now."""
        return self._app

    @property
    def state(self) -> Mapping[str, Any]:  # type: ignore[override]
        """What the lifespan left: nothing, the app needs none."""
        return {}

    @property
    def authorization(self) -> Authorization | None:
        """The rules of what callers of the agent may do, ``None`` without any."""
        return self.host.services[""].agent.authorization

    def context(self) -> Context:
        """Return a context of the process that lives now."""
        return self.process.context()

    async def start(self) -> None:
        """Wait until the host is up: a request that comes while it restarts is served later."""
        await self._is_up.wait()

    async def stop(self) -> None:
        """Do nothing: a connection that is closed stops no agent."""

    # -- the life of the host ------------------------------------------------------------------

    async def open(self) -> None:
        """Start the host. Raises what its start raises."""
        await self.process.run(self._lifecycle.start())
        self._is_up.set()

    async def close(self) -> None:
        """Stop the host, and what is left of its process."""
        self._is_up.clear()
        try:
            if not self.process.is_dead:
                await self.process.run(self._lifecycle.stop())
        finally:
            self.process.kill()

    async def kill(self) -> None:
        """End the process as ``kill -9`` does. What the store has stays."""
        self._is_up.clear()
        self.crashes += 1
        self.process.kill()
        self.host.end_threads()
        # The files of a dead process are closed by the system, and its locks released.
        await self.store.close()

    async def restart(self) -> None:
        """Start another process, on what the store has."""
        self.process = Process(self.agent.name, self.clock)
        if not isinstance(self.store, MemoryTaskStore):
            self.store = store_at(self._store_url, self.clock)
        self.host = self._make_host()
        self._app = self._make_app()
        await self.open()

    def wake(self) -> None:
        """Have the host do now what it does from time to time."""
        if self._is_up.is_set():
            self.process.context().run(self.host.wake)

    async def next_wake(self) -> float | None:
        """Return the time, by the clock, at which a sleeping task is due next, if one is."""
        if not self._is_up.is_set():
            return None
        at = await self.process.run(self._next_wake())
        if at is None or at >= NEVER:
            return None
        return self.clock.time() + max(0, at + 1 - self.clock.milliseconds()) / 1000

    async def _next_wake(self) -> int | None:
        return await self.store.next_wake(list(self.host.executors))

    def is_busy(self) -> bool:
        """Whether threads of the store work."""
        return isinstance(self.store, SqlTaskStore) and self.store.is_busy

    def is_in_threads(self) -> bool:
        """Whether plain functions of the agent run."""
        return any([executor.is_in_threads for executor in self.host.executors.values()])

    def _make_host(self) -> Host:
        return Host(
            {"": self.agent},
            self.store,
            ServerOptions(
                url=self.address,
                drain=DRAIN_SECONDS,
                settings=self._settings or Settings(),
                middleware=tuple(self._middleware),
                egress=Egress(),
                allow_private_webhooks=self._private_webhooks,
                allow_private_agents=True,
                publisher="",
            ),
            authenticates=self._authenticates,
            authenticator=TestAuthenticator,
            retry_policy=self._retry_policy,
            connect=self._connect,
            webhooks=self._webhooks.receive,
            files=self._files,
        )

    def _make_app(self) -> ASGIApp:
        if self._identify is not None and self.host.authenticator is not None:
            raise ValueError(
                "identify would never be asked: the agent declares what callers must prove "
                "(security=), and that finds the caller; leave identify out, or give caller="
            )
        app = app_of(
            self.host,
            caller=self._identify or (_caller_of if self.host.authenticator is None else None),
        )
        self._lifecycle = app.lifecycle

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await app(scope, receive, send)

        return serve


async def _caller_of(scope: Scope) -> Caller:
    found: Caller = scope.get(CALLER) or scope.get(DEFAULT_CALLER) or ANONYMOUS
    return found


class TestAuthenticator(Authenticator):
    """Takes the caller that a test names for one who proved itself by every scheme of the agent.

    It has the scopes of the caller by each of them. Other requests are verified as in production.
    """

    __test__ = False  # no test class, for pytest

    def __call__(self, scope: Mapping[str, Any]) -> Caller | Awaitable[Caller]:
        """Return the caller of a request."""
        caller: Caller | None = scope.get(CALLER)
        evidence = Evidence(scope, self.resources)
        if caller is None and not any(each.is_presented(evidence) for each in self.schemes):
            caller = scope.get(DEFAULT_CALLER)
        if caller is None or not caller.authenticated:
            return super().__call__(scope)
        caller = replace(caller, issuer=caller.issuer or self.schemes[0].name)
        return self._judged(dict.fromkeys(self.schemes, Proof(caller, caller.scopes)), evidence)
