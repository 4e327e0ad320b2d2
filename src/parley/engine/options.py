"""The options of an agent's turns."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Literal

import msgspec

from parley.model.push import PushEvents

_CREDENTIALS = frozenset(
    {
        "apikey",
        "assertion",
        "authorization",
        "clientassertion",
        "cookie",
        "credential",
        "credentials",
        "jwt",
        "passphrase",
        "passwd",
        "privatekey",
        "setcookie",
    }
)
"""Claims that are never stored, besides those whose names end like that of a token."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an agent's turns. Times are in seconds, unless they are timedeltas.

    - ``direct_reply_timeout``: a function that runs longer gets a task.
    - ``blocking_timeout``: a blocking send that waits longer returns the current task.
    - ``stream_until_terminal``: the stream of a message stays open when its task asks for input.
    - ``cancel_grace``: the time that a function has to end after its cancellation.
    - ``on_crash``: run a turn of a dead process again, or fail it.
    - ``max_attempts``: the limit of attempts at one turn.
    - ``max_running``: the limit of concurrent turns in one process.
    - ``max_queued``: the limit of queued turns in all processes together.
    - ``max_waiting_messages``: the limit of messages that wait on one task.
    - ``turn_timeout``: the age at which a turn fails, from its first attempt on.
    - ``task_timeout``: the age at which a task fails, in whichever state it is.
    - ``max_hops``: the limit of agents that called each other before this one is called.
    - ``keep_history``: store the conversation of each context.
    - ``keep_claims``: the names of the caller's claims that the log stores, for ``turn.caller``.
    - ``push_events``: what a webhook receives that has no choice of its own.
    """

    direct_reply_timeout: float = 1.0
    blocking_timeout: float = 300.0
    stream_until_terminal: bool = False
    cancel_grace: float = 5.0
    on_crash: Literal["rerun", "fail"] = "rerun"
    max_attempts: int = 5
    max_running: int = 1000
    max_queued: int = 10_000
    max_waiting_messages: int = 100
    turn_timeout: timedelta | None = None
    task_timeout: timedelta | None = None
    max_hops: int = 8
    keep_history: bool = False
    keep_claims: tuple[str, ...] = ()
    push_events: PushEvents = "all"

    def __post_init__(self) -> None:
        for name in ("direct_reply_timeout", "cancel_grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is a number of seconds, 0 or more")
        if self.blocking_timeout <= 0:
            raise ValueError("blocking_timeout is a number of seconds above 0")
        for name in ("max_attempts", "max_running", "max_waiting_messages", "max_hops"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is 1 or more")
        if self.max_queued < 0:
            raise ValueError("max_queued is 0 or more")
        for name in ("turn_timeout", "task_timeout"):
            span = getattr(self, name)
            if span is not None and span <= timedelta(0):
                raise ValueError(f"{name} is a positive timedelta, or None for ever")
        if self.on_crash not in ("rerun", "fail"):
            raise ValueError(f"on_crash is 'rerun' or 'fail', not {self.on_crash!r}")
        if self.push_events not in ("all", "significant"):
            raise ValueError(f"push_events is 'all' or 'significant', not {self.push_events!r}")
        for name in self.keep_claims:
            _check_claim(name)


def _check_claim(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"keep_claims has names of claims, such as 'email', not {name!r}")
    word = re.sub(r"[^a-z]", "", re.split(r"[/:.]", name.lower())[-1])
    if word in _CREDENTIALS or word.endswith(("token", "tokens", "password", "secret")):
        raise ValueError(
            f"keep_claims names {name!r}, which is a credential; what is kept is written to the "
            "log and its exports: name claims that say who the caller is"
        )
