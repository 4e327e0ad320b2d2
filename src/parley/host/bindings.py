"""Bindings of a server besides JSON-RPC, HTTP+JSON and gRPC (docs/guides/extend-parley.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from parley.engine.description import AgentDescription
from parley.security.authentication import Authenticator
from parley.security.egress import Egress
from parley.security.evidence import SchemeResources
from parley.security.signing.keys import SigningKeys
from parley.server.endpoint import AgentBinding, Endpoint
from parley.server.settings import Settings
from parley.store.task_store import TaskStore

if TYPE_CHECKING:
    from parley.server.app import App

ENTRY_POINTS = "parley.bindings"
"""The entry point group of packages that add bindings, as functions without arguments."""


_PATH = re.compile(r"/[A-Za-z0-9._~-]+")


class ServerParts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a server that an added binding can use.

    ``agents`` are by path, tenants below ``/``. ``url`` is the configured public address.
    ``publisher`` and the three fields after it are the options of the server's catalog.
    ``identifies`` is true if a function of the operator identifies callers. ``egress`` returns the
    policy for requests that callers cause.
    """

    agents: Mapping[str, AgentDescription]
    store: TaskStore
    publisher: str | None
    namespace: str | None
    unlisted: Sequence[str]
    registry: str | None
    settings: Settings
    url: str | None
    authenticator: Authenticator | None
    identifies: bool
    resources: SchemeResources
    signing_keys: SigningKeys | None
    egress: Callable[[], Egress | None]


class BoundBinding(Protocol):
    """An added binding of one server."""

    @property
    def record(self) -> Mapping[str, Any]:
        """The description of this binding in the audit entry of a server start."""
        ...

    def of(self, agent: AgentDescription) -> AgentBinding | None:
        """Return the binding of an agent, ``None`` if the agent does not have it."""
        ...

    def serve(self, app: App, endpoints: Mapping[str, Endpoint]) -> None:
        """Receive the app of this binding and the agents by path, before the first request."""
        ...

    async def start(self) -> None:
        """Begin. Raises ``ValueError`` for a configuration that cannot be served."""
        ...

    async def close(self) -> None:
        """End the work in progress."""
        ...


class ServerBinding(Protocol):
    """A kind of binding for servers: ``parley.asgi(agent, bindings=[...])``."""

    @property
    def name(self) -> str:
        """The name of this binding in ``app.bindings[name]``."""
        ...

    def bind(self, parts: ServerParts) -> BoundBinding:
        """Return the binding of one server. Raises ``ValueError`` for a wrong configuration."""
        ...


def bindings_of(given: Iterable[ServerBinding]) -> list[ServerBinding]:
    """Return the bindings of a server: the given ones, and the installed ones without settings.

    Raises ``TypeError`` for an element that is not a binding, and ``ValueError`` for a duplicate.
    """
    bindings = list(given) if isinstance(given, Iterable) else []
    if not isinstance(given, Iterable) or not all(hasattr(each, "bind") for each in bindings):
        raise TypeError(
            "bindings is a list of bindings, such as [parley.envelope.EnvelopeBinding(...)], not "
            f"{given!r:.200}"
        )
    names = [each.name for each in bindings]
    if len(set(names)) < len(names):
        raise ValueError(f"bindings has the same binding twice: {', '.join(names)}")
    return [*bindings, *(each.load()() for each in _installed() if each.name not in names)]


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """Return the bindings that installed packages declare. The search takes milliseconds."""
    return tuple(entry_points(group=ENTRY_POINTS))


def check_paths(agent: str, bindings: Iterable[AgentBinding]) -> None:
    """Raise ``ValueError`` if the paths of an agent's added bindings are invalid or equal."""
    paths: set[str] = set()
    for each in bindings:
        if not _PATH.fullmatch(each.path) or each.path in paths:
            raise ValueError(
                f"the binding {each.protocol} of the agent {agent!r} has the path {each.path!r}: "
                "a path is one segment, such as /lines, that no other binding has"
            )
        paths.add(each.path)
