"""For tests of servers whose gRPC, on a port of its own, is to get what callers give."""

from __future__ import annotations

import parley


async def grpc_of(url: str) -> list[str]:
    """Return where an agent's gRPC is, to be trusted with credentials."""
    async with parley.connect(url) as agent:
        offered = agent.card.supported_interfaces
    return [one.url for one in offered if one.protocol_binding == "GRPC"]
