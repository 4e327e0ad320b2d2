"""The scope of tasks and contexts."""

from __future__ import annotations

import msgspec


class Scope(msgspec.Struct, frozen=True):
    """The agent, tenant and owner of a task or context. Only its own scope finds it."""

    agent: str
    tenant: str = ""
    owner: str = ""
