"""What migrations do besides their SQL: forms that earlier versions of the schema had."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from parley.model.parts import Artifact
from parley.model.service import caller_of
from parley.model.struct import decode
from parley.model.tasks import Task
from parley.store.events import StoredCaller, records_in
from parley.store.fold import fold
from parley.store.snapshot import StoredForm

BACKFILLED_OWNERS = 1000
"""How many tasks a migration looks at together."""

_Artifacts = tuple[Artifact, ...]
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


def task_of_before(
    task_id: str, body: bytes | None, artifacts: bytes | None, tail: bytes | None
) -> StoredForm:
    """Return the stored form of a task from a snapshot of an older schema and the records after it.

    ``body`` is the JSON of the task without its artifacts, ``artifacts`` is their JSON.
    """
    start = None
    if body is not None:
        start = replace(decode(body, Task), artifacts=decode(artifacts or b"[]", _Artifacts))
    return StoredForm.of(fold([record.event for record in records_in(task_id, tail)], start))
