"""An agent as a server sees it: something that answers, and its card."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from parley.model.cards import AgentCard, AgentInterface
from parley.model.extensions import Extension
from parley.model.service import A2AService

Interfaces = tuple[AgentInterface, ...]


class Endpoint(msgspec.Struct, frozen=True):
    """One agent on a server, or several behind one address.

    ``card`` returns the agent's card for the interfaces at which a server offers it. Capabilities
    and extensions must not depend on them. ``extensions`` are those of the agent that have a part
    on the server: dependencies to be checked, methods of their own. ``tenants`` are agents behind
    the same address, by the tenant that requests name; a tenant that is not among them is the
    agent's own business. Without ``service`` and ``card`` nobody but the tenants is here.
    ``key`` is a name of the agent that paths may call it by.
    """

    service: A2AService | None = None
    card: Callable[[Interfaces], AgentCard] | None = None
    extensions: tuple[Extension, ...] = ()
    tenants: Mapping[str, Endpoint] = {}
    key: str = ""
