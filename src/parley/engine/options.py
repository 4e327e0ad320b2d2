"""How an agent's turns are run."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Literal

import msgspec

_SECRETS = frozenset(
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
"""Claims that are never kept, beside those whose names end as those of tokens do."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How an agent's turns are run. Times are in seconds, but where they are timedeltas.

    ``direct_reply_timeout``: how long a function may take to answer with a direct message.
    ``blocking_timeout``: how long a blocking send waits before it answers with the task as it
    stands.
    ``stream_until_terminal``: the stream of a message stays open when its task asks for input.
    ``cancel_grace``: how long a function may take to end once it is told to.
    ``on_crash``: whether a turn that a dead process left open is run again or failed.
    ``max_attempts``: how often a turn is attempted in all.
    ``max_running``: how many turns run at once in one process; ``max_queued``: how many more may
    wait, in all of them. ``max_waiting_messages``: how many messages may wait on one task.
    ``turn_timeout``: how old a turn may get, from its first attempt on; ``task_timeout``: how old a
    task may, whether it is worked on, waits in line or waits for its caller. ``None`` is for ever.
    A task fails when its time is over.
    ``keep_claims``: the names of the caller's claims that are kept in the log, for ``turn.caller``.
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
    keep_history: bool = False
    keep_claims: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("direct_reply_timeout", "cancel_grace"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is a number of seconds, 0 or more")
        if self.blocking_timeout <= 0:
            raise ValueError("wait_ceiling is a number of seconds above 0")
        for name in ("max_attempts", "max_running", "max_waiting_messages"):
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
        for name in self.keep_claims:
            _check_claim(name)


def _check_claim(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"keep_claims has names of claims, such as 'email', not {name!r}")
    word = re.sub(r"[^a-z]", "", re.split(r"[/:.]", name.lower())[-1])
    if word in _SECRETS or word.endswith(("token", "tokens", "password", "secret")):
        raise ValueError(
            f"keep_claims names {name!r}, which is a credential; what is kept is written to the "
            "log and its exports: name claims that say who the caller is"
        )
