"""Bindings that a server has beside JSON-RPC, HTTP+JSON and gRPC (docs/guides/extend-parley.md)."""

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
"""The entry points of packages that add bindings: each is called without arguments."""


_PATH = re.compile(r"/[A-Za-z0-9._~-]+")


class ServerParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a server has, for a binding that is added to it.

    ``agents`` are by their paths, tenants below ``/``. ``url`` is the public address, if one is
    configured. ``publisher`` and the three after it are the options about its catalog.
    ``identifies``: a function of the operator finds callers. ``egress`` returns the policy for
    requests that callers cause.
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
    """A binding of one server."""

    @property
    def record(self) -> Mapping[str, Any]:
        """What the audit says about it when the server starts."""
        ...

    def of(self, agent: AgentDescription) -> AgentBinding | None:
        """Return the binding of an agent, ``None`` if the agent does not have it."""
        ...

    def serve(self, app: App, endpoints: Mapping[str, Endpoint]) -> None:
        """Take the app that serves it, with its agents by path, before the first request."""
        ...

    async def start(self) -> None:
        """Begin. Raises ``ValueError`` for what cannot be served."""
        ...

    async def close(self) -> None:
        """End what is under way."""
        ...


class ServerBinding(Protocol):
    """A binding that servers may have: ``parley.asgi(agent, bindings=[...])``."""

    @property
    def name(self) -> str:
        """Its name among the bindings of a server, ``app.bindings[name]``."""
        ...

    def bind(self, parts: ServerParts) -> BoundBinding:
        """Return the binding of one server. Raises ``ValueError`` for what cannot be served."""
        ...


def bindings_of(given: Iterable[ServerBinding]) -> list[ServerBinding]:
    """Return the bindings of a server: those that are given, and the other installed ones.

    Raises ``TypeError`` for what is no binding, and ``ValueError`` for the same one twice.
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
    """Return what packages add; to find it takes milliseconds."""
    return tuple(entry_points(group=ENTRY_POINTS))


def check_paths(agent: str, bindings: Iterable[AgentBinding]) -> None:
    """Raise ``ValueError`` for added bindings of an agent that cannot stand beside each other."""
    paths: set[str] = set()
    for each in bindings:
        if not _PATH.fullmatch(each.path) or each.path in paths:
            raise ValueError(
                f"the binding {each.protocol} of the agent {agent!r} has the path {each.path!r}: "
                "a path of one segment is right, such as /lines, that no other binding has"
            )
        paths.add(each.path)
