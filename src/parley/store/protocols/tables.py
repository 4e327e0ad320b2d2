"""The small tables of a store: secrets, API keys, usage, timers and contexts.

Each part is a protocol that states the guarantees of the store, and its values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from parley.model.ids import RIGHT_ID, may_be_id
from parley.model.parts import Message
from parley.security.api_keys import ApiKeyRecord
from parley.store.events import Scope
from parley.store.protocols.errors import StoreError

# -- secrets ----------------------------------------------------------------------------------

SECRET_BYTES = 32


class Secrets(Protocol):
    """Keys to sign with. They are never logged and never exported: another store has others."""

    async def secret(self, name: str) -> bytes:
        """Return the secret of a name: ``SECRET_BYTES`` random bytes.

        The first call makes it. Every call returns the same, on all replicas, for ever.
        """
        ...


# -- api keys ---------------------------------------------------------------------------------

MAX_API_KEYS = 10_000
"""How many keys a store has at most, ended ones among them."""

ENDED_KEPT = 30 * 24 * 60 * 60 * 1000
"""How long (ms) keys that were revoked or have expired are kept, to be listed."""

ApiKeyChanged = Callable[[str], None]
"""Called on the event loop: this process added or ended the key with this id."""


class TooManyApiKeys(StoreError):
    """The store has as many keys as it may."""

    def __init__(self) -> None:
        super().__init__(
            f"the store has {MAX_API_KEYS} API keys, and no more fit: revoke some; revoked and "
            f"expired ones go {ENDED_KEPT // 86_400_000} days later"
        )


class DuplicateApiKey(StoreError):
    """The store has another key with the same id."""

    def __init__(self, id: str) -> None:
        super().__init__(f"the store has another API key with the id {id}: make a new one")


class ApiKeys(Protocol):
    """API keys by id. They are never exported: another store has other ones.

    Each call is durable when it returns, and seen by all replicas from then on.
    """

    def listen_api_keys(self, changed: ApiKeyChanged) -> None:
        """Call ``changed`` whenever this process adds or ends a key, for operators too.

        What other processes do has to be looked up.
        """
        ...

    async def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store a key. A call that is repeated because its answer was lost counts once.

        Keys that ended ``ENDED_KEPT`` ago are removed. Raises ``TooManyApiKeys``,
        ``DuplicateApiKey``, and ``ValueError`` for what cannot be stored.
        """
        ...

    async def api_key(self, id: str) -> ApiKeyRecord | None:
        """Return a key, ended or not."""
        ...

    async def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all keys, or the keys of an owner, the oldest first."""
        ...

    async def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """Have a key end at a time (ms), unless it ends earlier; return it as it is then.

        Returns ``None`` if there is no such key.
        """
        ...


# -- timers -----------------------------------------------------------------------------------

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


# -- contexts ---------------------------------------------------------------------------------

HISTORY_KEPT = 1000
"""How many messages of a context's history are kept; the oldest go first."""


class Receipt(msgspec.Struct, frozen=True):
    """The answer to a message that its sender may repeat (idempotent sends).

    ``digest`` is a hash of the request; the answer is a task and a turn of it, or ``reply``: the
    JSON of a direct message.
    """

    message_id: str
    digest: bytes
    task_id: str = ""
    turn: int = 0
    reply: bytes = b""


class Contexts(Protocol):
    """What a scope has in a context. Another scope's context of the same id is another context.

    Each call is durable when it returns. ``compare_and_set`` is atomic on all replicas.
    """

    async def receipt(self, scope: Scope, message_id: str) -> Receipt | None:
        """Return the receipt of a message."""
        ...

    async def keep(
        self,
        scope: Scope,
        context_id: str,
        *,
        receipt: Receipt | None = None,
        exchange: Sequence[Message] = (),
    ) -> None:
        """Store the receipt and the exchange of a direct reply, both or neither.

        Raises ``DuplicateReceipt``.
        """
        ...

    async def history(self, scope: Scope, context_id: str, limit: int) -> Sequence[Message]:
        """Return the last ``limit`` messages of a context, the oldest first.

        A context keeps its last ``HISTORY_KEPT``.
        """
        ...

    async def get_value(self, scope: Scope, context_id: str, key: str) -> bytes | None:
        """Return a value that an agent keeps for a context."""
        ...

    async def set_value(self, scope: Scope, context_id: str, key: str, value: bytes | None) -> None:
        """Store a value for a context; ``None`` removes it."""
        ...

    async def compare_and_set(
        self, scope: Scope, context_id: str, key: str, expected: bytes | None, value: bytes | None
    ) -> bool:
        """Store a value for a context if the current one is ``expected``; return whether it was.

        ``None`` is no value. Of any number of calls at once that expect the same, on all replicas,
        one succeeds (unless they set what they expect). A call that is repeated because its answer
        was lost counts once.
        """
        ...
