"""The values of a store's small tables: secrets, API keys, timers and contexts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from parley.model.ids import RIGHT_ID, may_be_id
from parley.store.events import Scope
from parley.store.protocols.errors import StoreError

# -- secrets ----------------------------------------------------------------------------------

SECRET_BYTES = 32


# -- api keys ---------------------------------------------------------------------------------

MAX_API_KEYS = 10_000
"""The maximum number of keys in a store, including ended ones."""

ENDED_KEPT = 30 * 24 * 60 * 60 * 1000
"""The time (ms) for which revoked and expired keys are kept, to be listed."""

ApiKeyChanged = Callable[[str], None]
"""Called on the event loop: this process added or ended the key with this id."""


class TooManyApiKeys(StoreError):
    """The store has the maximum number of keys."""

    def __init__(self) -> None:
        super().__init__(
            f"the store has {MAX_API_KEYS} API keys, and no more fit: revoke some; revoked and "
            f"expired ones go {ENDED_KEPT // 86_400_000} days later"
        )


class DuplicateApiKey(StoreError):
    """The store has another key with the same id."""

    def __init__(self, id: str) -> None:
        super().__init__(f"the store has another API key with the id {id}: make a new one")


# -- timers -----------------------------------------------------------------------------------

NEVER = 2**62
"""The ``Append.wakes_at`` of a task that only an event wakes."""

MAX_EVENT_BYTES = 256 * 1024
"""The largest value of an event, as JSON."""

MAX_WAITS = 100
"""The maximum number of events that a sleeping task waits for."""

TimersChanged = Callable[[int], None]
"""Called on the event loop when a task of this process sleeps until a time (ms), or wakes up
(0)."""


class EventCompleted(StoreError):
    """The event was completed before, with another value.

    Use another key for another event.
    """

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
    """Return a JSON value in the store's form for events: equal values have equal bytes.

    Raises ``TypeError`` for a value that is not JSON, ``ValueError`` for more than
    ``MAX_EVENT_BYTES``.
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


# -- contexts ---------------------------------------------------------------------------------

HISTORY_KEPT = 1000
"""The number of messages in a context's history; the oldest are removed."""


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
