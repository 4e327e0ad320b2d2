"""The name under which a task's log knows another agent: without secrets, the same in every run."""

from __future__ import annotations

import hashlib
import os
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from parley.agent.remote.uses import LOCAL, Callee, UsableAgent
from parley.client.card.resolver import ForeignCard, Reference
from parley.client.registry.found import FoundAgent
from parley.client.remote_agent import RemoteAgent
from parley.model.cards import AgentCard


def referred(agent: Callee) -> tuple[Reference | UsableAgent, dict[str, Any]]:
    """Return the reference of an agent, and the options for one that a registry named."""
    if not isinstance(agent, FoundAgent):
        return agent, {}
    return agent.reference, {} if agent.egress is None else {"egress": agent.egress}


def address_of(reference: Reference | UsableAgent) -> str:
    """Return the address of an agent, without user, password, query and fragment.

    An agent of this process has its key.

    An agent that is given by its card has the address of its first interface. A card as text has a
    digest of it.
    """
    if isinstance(reference, UsableAgent):
        return LOCAL + reference.key
    if isinstance(reference, AgentCard):
        interfaces = reference.supported_interfaces
        return _bare(interfaces[0].url) if interfaces else f"card:{reference.name}"
    if isinstance(reference, str) and not reference.lstrip().startswith("{"):
        return _bare(reference)
    if isinstance(reference, str | bytes):
        data = reference.encode() if isinstance(reference, str) else reference
        return f"card:{hashlib.sha256(data).hexdigest()[:32]}"
    if isinstance(reference, os.PathLike):
        return os.fspath(reference)
    return f"card:{_digest(reference.card if isinstance(reference, ForeignCard) else reference)}"


def card_of(reference: Reference | UsableAgent, agent: RemoteAgent) -> dict[str, Any] | None:
    """Return the card by which an agent is found again; ``None`` if its address is enough."""
    if isinstance(reference, UsableAgent):
        return None
    if isinstance(reference, str) and "://" in reference and not reference.lstrip().startswith("{"):
        return None
    found: dict[str, Any] = msgspec.json.decode(agent.card_json)
    return found


def _bare(address: str) -> str:
    if "://" not in address:
        return address
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))


def _digest(value: Any) -> str:
    data = msgspec.json.encode(value, order="sorted", enc_hook=str)
    return hashlib.sha256(data).hexdigest()[:32]
