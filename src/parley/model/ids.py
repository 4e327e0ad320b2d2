"""New identifiers (UUIDs of version 7), the limits on ids, and the references of incidents.

The limits apply to ids of tasks, contexts, messages, tenants and callers. The specification has no
limits, but every store has: within these, all stores keep the same ids, and several ids fit into
one key. The details of an incident stay in the log, under the reference that the caller gets.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from typing import Any

MAX_CLOCK_STEP = 60_000
"""The backward step of the clock, in ms, from which ids follow the clock again."""


class _Series:
    """The state of monotonic ids by one clock."""

    def __init__(self) -> None:
        self.milliseconds = 0
        self.prefix = ""
        self.counter = 0


# The digits of the counter, followed by the version's, for most of the ids of a millisecond.
_COUNTERS = tuple([f"{counter:03x}8" for counter in range(256)])

_lock = threading.Lock()
_random: list[str] = []
_here, _at_store = _Series(), _Series()


def new_id(at: int | None = None) -> str:
    """Return a new UUID of version 7 in 32 hexadecimal digits.

    It cannot be guessed (60 of its bits are random). Later ids of the process sort after it, even
    within a millisecond, unless the clock is set back far. ``at`` is the time by the store's clock,
    for ids whose time is read later: the clocks of replicas differ.
    """
    if at is None:
        milliseconds, series = time.time_ns() // 1_000_000, _here
    else:
        milliseconds, series = at, _at_store
    with _lock:
        if not _random:
            _draw()
        last, counter = series.milliseconds, series.counter + 1
        if last - MAX_CLOCK_STEP <= milliseconds <= last:
            milliseconds = last if counter <= 0xFFF else last + 1
        if milliseconds != last:
            series.milliseconds, series.prefix = milliseconds, f"{milliseconds:012x}7"
            counter = 0
        series.counter = counter
        digits = _COUNTERS[counter] if counter < 256 else f"{counter:03x}8"
        return series.prefix + digits + _random.pop()


def _draw() -> None:
    """Draw the random digits of the next ids."""
    digits = os.urandom(1500).hex()
    _random.extend(digits[at : at + 15] for at in range(0, len(digits), 15))


def milliseconds_of(id: str) -> int:
    """Return the time in an id, in ms since 1970. A task's id has the time of the store's clock."""
    return int(id[:12], 16)


def _forget() -> None:
    """Discard the random digits: a forked process must not repeat its parent's ids."""
    _random.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


INCIDENT_KEY = "urn:parley:incident:v1"
"""The metadata key for the ``reference`` and the ``skill`` in the message of a failed task."""


REFERENCE_PREFIX = 16
"""The number of characters of a task's id that its references begin with: they lead to it."""


def log_incident(
    log: logging.Logger,
    what: str,
    error: BaseException | None = None,
    *,
    task_id: str = "",
    has_traceback: bool = True,
    **fields: Any,
) -> str:
    """Log that ``what`` failed, with the traceback, and return the reference.

    The traceback belongs to ``error``, or to the exception that is being handled. The reference
    begins as the task's id, if there is a task. ``fields`` are fields of the record.
    """
    reference = new_id()[-12:]
    if task_id:
        reference = f"{task_id[:REFERENCE_PREFIX]}-{reference[:4]}"
        fields["task_id"] = task_id
    log.error(
        "%s failed (reference %s)",
        what,
        reference,
        exc_info=(error or True) if has_traceback else None,
        extra={**fields, "reference": reference},
    )
    return reference


LONGEST_ID = 512
"""In bytes of UTF-8."""

RIGHT_ID = f"at most {LONGEST_ID} bytes in UTF-8, and no character U+0000 in it"

RIGHT_NAME = (
    f"at most {LONGEST_ID} bytes in UTF-8, and no control character in it "
    "(U+0000 to U+001F, U+007F)"
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def may_be_id(text: str) -> bool:
    """Return whether a text can be an id. A text that cannot is the id of no object."""
    if len(text) > LONGEST_ID or "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        return len(text.encode()) <= LONGEST_ID
    except UnicodeEncodeError:  # half a surrogate pair
        return False


def may_be_name(text: str) -> bool:
    """Return whether a text can be the id or the issuer of a caller."""
    return may_be_id(text) and (text.isprintable() or _CONTROL.search(text) is None)
