"""An agent as the server sees it: a service and its card."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from parley.model.cards import AgentCard, AgentInterface
from parley.model.extensions import Extension
from parley.model.service import A2AService
from parley.server.file_service import FileService

Interfaces = tuple[AgentInterface, ...]


class Endpoint(msgspec.Struct, frozen=True):
    """One agent on a server, or several behind one address.

    ``card`` returns the agent's card for the interfaces that a server advertises. Capabilities and
    extensions must not depend on them, but for an address in the parameters of one.
    ``extensions`` are those of the agent with dependencies or methods for the server to handle.
    ``tenants`` are agents behind the same address, by the tenant that requests name; any other
    tenant is passed to ``service``. Without ``service`` and ``card`` there are only tenants.
    ``key`` is an id of the agent for paths. ``files`` are those of the agent, if the server keeps
    any.
    """

    service: A2AService | None = None
    card: Callable[[Interfaces], AgentCard] | None = None
    extensions: tuple[Extension, ...] = ()
    tenants: Mapping[str, Endpoint] = {}
    key: str = ""
    files: FileService | None = None
