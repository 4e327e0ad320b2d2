"""A deployed agent in a test: a host in a simulated process, on a store that outlives it."""

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
"""The key of the caller in the ASGI scope of a request."""

DEFAULT_CALLER = "parley.testing.default_caller"
"""The key of the caller of a request without credentials."""

DRAIN_SECONDS = 0.0
"""How long running turns may take to finish at the end of a test: they are stopped at once."""


def store_at(url: str, clock: Clock) -> TaskStore:
    """Return the store of a URL, on the clock of a test. Raises ``ValueError``."""
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
        self._files = open_files(files, store)  # files outlive the process, as the store does
        self._middleware = middleware
        self._is_up = asyncio.Event()
        self.process = Process(agent.name, clock)
        self.store = store_at(store, clock)
        self.host = self._make_host()
        self._app: ASGIApp = self._make_app()

    # -- the transport's view of the site ---------------------------------------------------------

    @property
    def app(self) -> ASGIApp:  # type: ignore[override]
        """The app of the running host."""
        return self._app

    @property
    def state(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The state of the ASGI lifespan: empty, as the app needs none."""
        return {}

    @property
    def authorization(self) -> Authorization | None:
        """The authorization rules of the agent, or ``None``."""
        return self.host.services[""].agent.authorization

    def context(self) -> Context:
        """Return a context of the running process."""
        return self.process.context()

    async def start(self) -> None:
        """Wait until the host is up: a request during a restart is served afterwards."""
        await self._is_up.wait()

    async def stop(self) -> None:
        """Do nothing: a closed connection does not stop the agent."""

    # -- lifecycle of the host ---------------------------------------------------------------------

    async def open(self) -> None:
        """Start the host. Raises the errors of its start."""
        await self.process.run(self._lifecycle.start())
        self._is_up.set()

    async def close(self) -> None:
        """Stop the host, and the rest of its process."""
        self._is_up.clear()
        try:
            if not self.process.is_dead:
                await self.process.run(self._lifecycle.stop())
        finally:
            self.process.kill()

    async def kill(self) -> None:
        """End the process as ``kill -9`` does. The store remains."""
        self._is_up.clear()
        self.crashes += 1
        self.process.kill()
        self.host.end_threads()
        # The operating system closes the files of a dead process and releases its locks.
        await self.store.close()

    async def restart(self) -> None:
        """Start a new process on the same store."""
        self.process = Process(self.agent.name, self.clock)
        if not isinstance(self.store, MemoryTaskStore):
            self.store = store_at(self._store_url, self.clock)
        self.host = self._make_host()
        self._app = self._make_app()
        await self.open()

    def wake(self) -> None:
        """Run the periodic work of the host now."""
        if self._is_up.is_set():
            self.process.context().run(self.host.wake)

    async def next_wake(self) -> float | None:
        """Return the clock time at which the next sleeping task is due, or ``None``."""
        if not self._is_up.is_set():
            return None
        at = await self.process.run(self._next_wake())
        if at is None or at >= NEVER:
            return None
        return self.clock.time() + max(0, at + 1 - self.clock.milliseconds()) / 1000

    async def _next_wake(self) -> int | None:
        return await self.store.next_wake(list(self.host.executors))

    def is_busy(self) -> bool:
        """Return whether threads of the store are busy."""
        return isinstance(self.store, SqlTaskStore) and self.store.is_busy

    def is_in_threads(self) -> bool:
        """Return whether plain functions of the agent run in threads."""
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
                "identify would never be called: the agent declares its credentials "
                "(security=), and these identify the caller; leave identify out, or give caller="
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
    """Authenticates the caller that a test names, as if by every security scheme of the agent.

    The caller's scopes count for each scheme. Other requests are verified as in production.
    """

    __test__ = False  # pytest must not collect this class

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
