"""What a context remembers of its handoffs, and what the log of a task says of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

import msgspec

from parley.engine.handoff.value import HANDOFF_KEY
from parley.store.events import Scope
from parley.store.task_store import TaskStore

MAX_TASKS = 20
"""How many tasks of a conversation are remembered by the ids that the other agent has for them."""

MAX_CONTEXTS = 20
"""How many agents' contexts a conversation remembers."""


class Handoffs(msgspec.Struct, frozen=True, kw_only=True):
    """Whom an agent may hand conversations to, and within which limits (``Agent(handoffs=...)``).

    ``to`` are agents of this process, addresses and cards, or ``part(address, bearer=...)``.
    ``any_address`` allows every address that the server's egress policy allows. After ``lasts`` a
    conversation returns by itself; ``None`` is never. ``most`` is how often one message may change
    hands. ``timeout`` is how long (s) the other agent may take for an answer.
    """

    to: tuple[object, ...] = ()
    any_address: bool = False
    lasts: timedelta | None = timedelta(days=7)
    most: int = 4
    timeout: float | None = None

    def __post_init__(self) -> None:
        if not (self.to or self.any_address):
            raise ValueError(
                "handoffs names the agents that may get a conversation: handoffs=[billing, "
                '"https://support.example.com"]; any_address=True allows every address'
            )
        if self.lasts is not None and self.lasts <= timedelta(0):
            raise ValueError("lasts is a positive timedelta, or None for ever")
        if self.most < 1:
            raise ValueError("most is 1 or more: how often one message may change hands")
        if self.timeout is not None and self.timeout <= 0:
            raise ValueError("timeout is a positive number of seconds, or None")


def declared(handoffs: Iterable[object] | Handoffs) -> Handoffs | None:
    """Return what ``Agent(handoffs=...)`` says, ``None`` for an agent that hands nothing over.

    Raises ``TypeError`` for a single agent or address.
    """
    if isinstance(handoffs, Handoffs):
        return handoffs
    if isinstance(handoffs, str) or not isinstance(handoffs, Iterable):
        raise TypeError(f"handoffs is a list of agents and addresses, such as [{handoffs!r}]")
    to = tuple(handoffs)
    return Handoffs(to=to) if to else None


class Holding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who answers a conversation: the state of a context, one value under ``HANDOFF_KEY``.

    ``to`` is the other agent's key or address, empty when the conversation is this agent's own.
    ``revision`` counts the changes. ``contexts`` are the other agents' contexts, ``tasks`` their
    tasks by ours.
    """

    to: str = ""
    name: str = ""
    revision: int = 0
    at: int = 0
    contexts: dict[str, str] = {}
    tasks: dict[str, tuple[str, str]] = {}


class HandedOver(msgspec.Struct, frozen=True, omit_defaults=True):
    """The log's record of a message that goes to another agent. ``to`` is empty if it does not.

    ``revision`` is that of the context once the conversation is the other agent's. ``is_new``: this
    message handed it over, with ``note``, ``say``, ``skill`` and, if asked for, ``history``.
    """

    to: str = ""
    name: str = ""
    revision: int = 0
    is_new: bool = False
    note: str = ""
    say: str | None = None
    skill: str = ""
    history: bool = True


async def holding(store: TaskStore, scope: Scope, context_id: str) -> Holding:
    """Return who answers a conversation. Raises ``StoreError``."""
    return _read(await store.get_value(scope, context_id, HANDOFF_KEY))


async def is_handed_over(store: TaskStore, scope: Scope, context_id: str) -> bool:
    """Return whether another agent answers a conversation now. Raises ``StoreError``."""
    return bool((await holding(store, scope, context_id)).to)


async def change(
    store: TaskStore, scope: Scope, context_id: str, function: Callable[[Holding], Holding | None]
) -> None:
    """Change who answers a conversation, atomically. ``None`` changes nothing.

    Raises ``StoreError``.
    """
    while True:
        found = await store.get_value(scope, context_id, HANDOFF_KEY)
        changed = function(_read(found))
        if changed is None:
            return
        data = msgspec.json.encode(changed)
        if await store.compare_and_set(scope, context_id, HANDOFF_KEY, found, data):
            return


def _read(value: bytes | None) -> Holding:
    return Holding() if value is None else msgspec.json.decode(value, type=Holding)
