"""Complete an event from any process: ``parley.complete`` and ``parley.complete_sync``."""

from __future__ import annotations

import asyncio
from typing import Any

from parley.agent.agent import Agent
from parley.engine.content import kept
from parley.host.store_urls import open_admin
from parley.store.admin.admin import StoreAdmin
from parley.store.protocols.errors import StoreUnavailable
from parley.store.protocols.tables import check_key, event_value
from parley.store.task_store import TaskStore


async def complete(
    key: str, value: Any = None, *, agent: str | Agent, store: str | TaskStore
) -> bool:
    """Complete an event of an agent. Tasks that wait for it with ``turn.wait_event`` continue.

    Works in any process: ``store`` is the URL of the store that the agent's server uses, or the
    open store itself in the server's own process. ``agent`` is the agent or its key. ``value`` is
    JSON of up to 256 KiB. The event may be completed before a task waits for it. The completion is
    durable when the call returns.

    Returns ``True`` if this call completed the event, and ``False`` if the event was complete with
    the same value, so a call may be repeated.

    Raises ``EventCompleted`` if the event has another value: a repeated call cannot succeed.
    Raises any other ``StoreError`` if the store does not exist or cannot be reached,
    ``ValueError`` for an invalid key or URL and for a value that is too large, and ``TypeError``
    with the position of a value that is not JSON.
    """
    agent_key, data = _checked(key, value, agent)
    if isinstance(store, str):
        return await asyncio.to_thread(complete_in, open_admin(store), agent_key, key, data)
    return await store.complete_event(agent_key, key, data)


def complete_sync(key: str, value: Any = None, *, agent: str | Agent, store: str) -> bool:
    """Complete an event of an agent, from code that is not ``async``.

    ``store`` is the URL of the store. See ``complete`` for the other arguments and the errors.
    """
    agent_key, data = _checked(key, value, agent)
    if not isinstance(store, str):
        raise TypeError(f"store is the URL of a store, such as sqlite:///parley.db, not {store!r}")
    return complete_in(open_admin(store), agent_key, key, data)


def complete_in(admin: StoreAdmin, agent: str, key: str, value: bytes) -> bool:
    """Complete an event in a store that exists. Return ``False`` if it was complete before.

    Raises ``StoreUnavailable`` if there is no store or its schema has another version, and
    ``EventCompleted``.
    """
    schema = admin.schema()
    if not schema.version:
        raise StoreUnavailable(
            f"there is no store at {admin.name}: give the URL of the store that the agent's "
            "server uses"
        )
    if schema.missing:
        raise StoreUnavailable(
            f"{admin.name} has schema version {schema.version}, and this version of Parley needs "
            f"{schema.missing[-1].version}: parley store migrate brings it up to date"
        )
    return admin.complete_event(agent, key, value)


def _checked(key: str, value: Any, agent: str | Agent) -> tuple[str, bytes]:
    """Return the agent's key, and the value in the encoding of the store."""
    agent_key = agent.key if isinstance(agent, Agent) else agent
    if not isinstance(agent_key, str) or not agent_key:
        raise ValueError(f"agent is an agent or its key, not {agent!r}")
    check_key(key)
    kept(value, what=f"the value of the event {key!r}")
    return agent_key, event_value(value)
