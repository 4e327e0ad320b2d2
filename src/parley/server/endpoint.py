"""An agent as a server sees it: something that answers, and its card."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from parley.model.cards import AgentCard
from parley.model.service import A2AService


class Endpoint(msgspec.Struct, frozen=True):
    """One agent on a server.

    ``card`` returns the agent's card for an address: the URL at which the agent takes JSON-RPC, as
    its callers see it. Capabilities and extensions must not depend on that address.
    """

    service: A2AService
    card: Callable[[str], AgentCard]
