"""Timers: turns that sleep until a time or an event, and the events that are complete.

A sleeping task has an open turn and no lease owner, and it is not claimable. It costs a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from parley.model.ids import RIGHT_ID, may_be_id
from parley.store.protocols.errors import StoreError
from parley.store.protocols.scope import Scope

NEVER = 2**62
"""The ``Append.wakes_at`` of a task that only an event wakes."""

MAX_EVENT_BYTES = 256 * 1024
"""The largest value of an event, as JSON."""

MAX_WAITS = 100
"""How many events a sleeping task may wait for."""

TimersChanged = Callable[[int], None]
"""Called on the event loop: this process made a task sleep until a time (ms), or 0: woke one."""


class EventCompleted(StoreError):
    """The event was completed before, with another value."""

    def __init__(self, agent: str, key: str) -> None:
        self.key = key
        super().__init__(
            f"the event {key!r} of the agent {agent!r} was completed before, with another value: "
            "an event is completed once; use another key for another event"
        )


class DueTask(msgspec.Struct, frozen=True):
    """A sleeping task that is due."""

    task_id: str
    scope: Scope


def check_key(key: str) -> str:
    """Return the key of an event. Raises ``ValueError`` for an invalid one."""
    if not isinstance(key, str) or not key or not may_be_id(key):
        raise ValueError(f"the key of an event has 1 character or more, {RIGHT_ID}")
    return key


def event_value(value: object) -> bytes:
    """Return a JSON value as the store keeps it for an event: equal values are equal bytes.

    Raises ``TypeError`` for what is not JSON, ``ValueError`` for more than ``MAX_EVENT_BYTES``.
    """
    text = msgspec.json.encode(value, order="deterministic")
    _check_size(text)
    return text


def checked_event(key: str, value: bytes) -> bytes:
    """Return the value of an event as ``event_value`` does. Raises ``ValueError``."""
    check_key(key)
    _check_size(value)
    try:
        return event_value(msgspec.json.decode(value))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"the value of the event {key!r} is no JSON: {error}") from None


def _check_size(value: bytes) -> None:
    if len(value) > MAX_EVENT_BYTES:
        raise ValueError(
            f"the value of an event has {MAX_EVENT_BYTES} bytes at most as JSON, and this one has "
            f"{len(value)}: store it elsewhere, and complete the event with its address"
        )


class Timers(Protocol):
    """Sleeping tasks and events. ``Append.wakes_at`` makes a task sleep.

    - Exact: a task sleeps until its time has come, until an event that it waits for is complete,
      or until its cancellation is requested, and is claimable from then on.
    - Atomic: a task that begins to wait for an event and the completion of that event cannot miss
      each other, on all replicas.
    - Once: an event is completed once; the first value counts. It may be complete before a task
      waits for it. It is kept as long as a task waits for it, and for the retention of its agent.
    - Indexed: a call costs what it returns or changes, however many tasks sleep.

    An event belongs to an agent. All its tasks, of all callers and tenants, share the keys.
    """

    def listen_timers(self, changed: TimersChanged) -> None:
        """Call ``changed`` whenever this process makes a task sleep, or completes an event.

        What other processes do has to be polled for (``next_wake``).
        """
        ...

    async def next_wake(self, agents: Sequence[str]) -> int | None:
        """Return the earliest time (ms) at which a task of these agents is due.

        ``None`` if none sleeps; ``NEVER`` if all of them wait for events only.
        """
        ...

    async def due_tasks(self, agent: str, now: int, limit: int) -> Sequence[DueTask]:
        """Return up to ``limit`` of the agent's sleeping tasks that are due, the earliest first."""
        ...

    async def wake(self, tasks: Mapping[str, int], now: int) -> int:
        """Make sleeping tasks that are due claimable, each with its queue key.

        Returns how many; tasks that are awake already do not count.
        """
        ...

    async def complete_event(self, agent: str, key: str, value: bytes) -> bool:
        """Complete an event; the tasks that wait for it are due at once.

        ``value`` is JSON; equal values may be written differently. Returns whether this call
        completed it: ``False`` if it was complete with the same value. A call that is repeated
        because its answer was lost counts once. Durable when it returns.

        Raises ``EventCompleted`` if it has another value, ``ValueError`` for a key or a value that
        cannot be stored.
        """
        ...

    async def event(self, agent: str, key: str) -> bytes | None:
        """Return the value of an event, ``None`` until it is complete."""
        ...
