"""The services that the turns of an agent share. The host makes them; ``agent/invoke.py`` passes
them to turns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from parley.agent.context import AgentContexts
from parley.agent.lifespan import Lifespan
from parley.engine.authorizations import Authorizations, Callbacks
from parley.engine.handoff import Handoffs
from parley.files.turn_files import TurnFiles
from parley.security.authorization import Authorization
from parley.security.egress import Egress, lookup_caller

if TYPE_CHECKING:
    from parley.agent.remote.connections import Connections
    from parley.client.auth import AuthorizationCode
    from parley.client.auth.issuers import Issuers
    from parley.client.bindings.http import HttpTransport
    from parley.client.connection import Connection
    from parley.client.files.download import FetchRoute
    from parley.client.files.stream import FileFacts
    from parley.client.remote_agent import RemoteAgent
    from parley.client.retry import Retry
    from parley.engine.turn.attempt import RemoteCall


MAX_ISSUERS = 16


class TurnIssuers:
    """The issuers that the turns of one agent use, with their metadata and connections.

    Only addresses that the author named are called without the egress guard.
    """

    def __init__(self, egress: Egress | None = None) -> None:
        self.egress = egress or Egress()
        self._http: HttpTransport | None = None
        self._kept: OrderedDict[tuple[str, str], Issuers] = OrderedDict()

    async def of(self, oauth: AuthorizationCode) -> Issuers:
        """Return the issuer finder for a client."""
        key = (oauth.issuer, oauth.token_url)
        found = self._kept.get(key)
        if found is None:
            from parley.client.auth.issuers import IssuerHttp, Issuers
            from parley.client.bindings.http import HttpTransport
            from parley.client.origin import Origin
            from parley.security.networks import is_loopback

            if self._http is None:
                self._http = HttpTransport(trust_env=True, bound_to_turns=False)
            is_local = is_loopback(Origin.of(oauth.issuer).host)
            http = IssuerHttp(self._http, trusts=oauth.names, is_local=is_local, egress=self.egress)
            found = self._kept[key] = Issuers(http)
            if len(self._kept) > MAX_ISSUERS:
                _, oldest = self._kept.popitem(last=False)
                await oldest.http.aclose()
        self._kept.move_to_end(key)
        return found

    async def aclose(self) -> None:
        """Close the connections. The next use opens new ones."""
        kept, self._kept = self._kept, OrderedDict()
        for issuers in kept.values():
            await issuers.http.aclose()
        http, self._http = self._http, None
        if http is not None:
            await http.close()


MAX_FILE_BYTES = 5 * 1024 * 1024 * 1024
"""The maximum size of a file, unless the server or the author sets another limit."""


class RemoteFiles:
    """Fetches files from addresses that ``egress`` allows, without credentials and proxies.

    Redirects are checked like the first address. A download fails when its server sends nothing for
    ``idle`` seconds, or, after ``grace`` seconds of waiting, less than ``min_rate`` bytes per
    second. One object for all turns of a host; close it at the end.
    """

    def __init__(
        self,
        egress: Egress | None = None,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        retry: Retry | None = None,
        idle: float = 30.0,
        min_rate: int = 1024,
        grace: float = 60.0,
    ) -> None:
        self.max_bytes = max_bytes
        self._egress = egress or Egress(option="allow_private_files")
        self._retry = retry
        self._pace: dict[str, Any] = {"idle": idle, "min_rate": min_rate, "grace": grace}
        self._http: HttpTransport | None = None

    async def close(self) -> None:
        """Close all connections. Idempotent."""
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    async def fetch(
        self, url: str, facts: FileFacts, *, limit: int, caller: str
    ) -> AsyncGenerator[bytes, None]:
        """Yield the bytes at an address, for a caller. Raises ``ClientError``."""
        from parley.client.files.download import Download, Limits
        from parley.client.retry import Retry

        lookup_caller.set(caller)
        limits = Limits(max_bytes=limit, **self._pace)
        retry = self._retry or Retry(calls=2, streams=8)
        download = Download(url, facts, route=self._route, retry=retry, limits=limits)
        chunks = download.chunks()
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await chunks.aclose()

    def _route(self, url: str) -> FetchRoute:
        from parley.client.bindings.http import HttpTransport
        from parley.client.files.download import FetchRoute

        if self._http is None or self._http.closed:
            self._http = HttpTransport(egress=self._egress, bound_to_turns=False)
        return FetchRoute(self._http, url, {}, is_own=False)


INLINE_BYTES = 1024 * 1024
"""The default maximum size of a file inside a message."""


class SharedResource(Protocol):
    """A resource shared by all turns of an agent, such as its connections to a service."""

    async def aclose(self) -> None:
        """Close it."""
        ...


MAX_SHARED = 100
"""The maximum number of resources that the turns of an agent share."""

S = TypeVar("S", bound=SharedResource)


@dataclass(slots=True)
class TurnServices:
    """The services that the turns of one agent use, in addition to their task: one per agent and
    host.

    ``callbacks`` makes addresses for completing events, ``authorizations`` makes addresses for
    credentials. ``address`` returns the agent's public address for a tenant, if one is configured.
    ``connect`` makes the connections to other agents: the client's function, unless a test replaces
    it. ``connections`` shares them. ``files`` stores files by reference, ``None`` on a server
    without file storage. A file of more than ``inline_bytes`` becomes a reference. ``remote_files``
    fetches files from other addresses. ``authorization`` has the policy for ``turn.authorize``.
    ``egress`` is the policy for all connections of the client while an agent's function runs.
    ``name`` is the agent's name, ``handoffs`` its permitted handoffs.
    """

    contexts: AgentContexts
    callbacks: Callbacks
    authorizations: Authorizations
    address: Callable[[str], str] | None = None
    lifespan: Lifespan | None = None
    files: TurnFiles | None = None
    inline_bytes: int = INLINE_BYTES
    remote_files: RemoteFiles = field(default_factory=RemoteFiles)
    authorization: Authorization | None = None
    connect: Callable[..., Connection] | None = None
    egress: Egress | None = None
    name: str = "agent"
    handoffs: Handoffs | None = None
    issuers: TurnIssuers = field(init=False)
    _connections: Connections | None = field(init=False, default=None)
    _shared: dict[Callable[[], Any], Any] = field(init=False, default_factory=dict)
    _open_resources: AsyncExitStack = field(init=False, default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        self.issuers = TurnIssuers(self.egress)

    @property
    def connections(self) -> Connections:
        """The connections to other agents. The first access loads the client."""
        if self._connections is None:
            from parley.agent.remote.connections import Connections

            self._connections = Connections(self._open, self.egress, self.name)
        return self._connections

    async def cancel_calls(self, task_id: str, calls: Mapping[str, RemoteCall]) -> None:
        """Cancel the remote tasks of a task's calls. Failures are logged."""
        from parley.agent.remote.connections import cancel_calls

        await cancel_calls(self.connections, task_id, calls)

    def allow(self, places: Iterable[str]) -> None:
        """Allow the client further addresses. Called before the first turn."""
        if self.egress is not None:
            self.egress = self.egress.adding(places)
            self.issuers.egress = self.egress
            if self._connections is not None:
                self._connections.egress = self.egress

    def shared(self, make: Callable[[], S]) -> S:
        """Return the resource that ``make`` creates once for all turns, until ``aclose``."""
        if make not in self._shared:
            if len(self._shared) == MAX_SHARED:
                raise RuntimeError(
                    f"the turns of this agent share {MAX_SHARED} resources: give turn.shared the "
                    f"same class or function each time, not {make!r:.100}, which each turn makes"
                )
            resource = self._shared[make] = make()
            self._open_resources.push_async_callback(resource.aclose)
        found: S = self._shared[make]
        return found

    async def aclose(self) -> None:
        """Close everything that turns have opened. The next turn opens new resources."""
        if self._connections is not None:
            await self._connections.aclose()
        await self.issuers.aclose()
        self._shared.clear()
        await self._open_resources.pop_all().aclose()

    async def _open(self, *args: Any, **options: Any) -> RemoteAgent:
        from parley.client.connection import connect

        return await (self.connect or connect)(*args, **options)
