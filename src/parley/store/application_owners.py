"""Owners of what applications made that called for themselves: once as those of users."""

from __future__ import annotations

import msgspec

from parley.model.service import caller_of
from parley.store.events import StoredCaller

APPLICATIONS_AT_ONCE = 1000
"""How many tasks a migration looks at together."""

_CLIENT = b'"client":'


class _FirstTurn(msgspec.Struct, frozen=True):
    caller: StoredCaller | None = None


_DECODER = msgspec.json.Decoder(_FirstTurn)


def is_of_application(owner: str, first_turn: bytes | None) -> bool:
    """Return whether a task of an owner, as earlier versions wrote it, is an application's.

    ``first_turn`` is the record of its first turn, which names the caller.
    """
    if first_turn is None or _CLIENT not in first_turn:
        return False
    caller, by = _DECODER.decode(first_turn).caller, caller_of(owner)
    return (
        caller is not None
        and by.authenticated
        and not by.client
        and caller.id == caller.client == by.id
        and caller.issuer in ("", by.issuer)
    )
