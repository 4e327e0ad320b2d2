"""Who a caller is for a registry: what it sees, and whether it operates the registry."""

from __future__ import annotations

from parley.model.service import Caller
from parley.registry.index.selections import Viewer
from parley.registry.publishing.audience import tokens_of

OPERATE = "registry:operate"
"""The scope of operators."""


def is_operator(caller: Caller) -> bool:
    """Return whether a caller proved that it operates the registry."""
    return caller.authenticated and OPERATE in caller.scopes


def viewer_of(caller: Caller) -> Viewer:
    """Return what a caller sees. One that proved nothing sees what is for everybody."""
    if not caller.authenticated or not caller.owner:
        return Viewer()
    return Viewer(tokens=tokens_of(caller), sees_all=is_operator(caller))
