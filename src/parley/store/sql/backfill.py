"""Python functions of migrations: conversion of forms of earlier schema versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.model.parts import Artifact
from parley.model.service import caller_of
from parley.model.struct import decode
from parley.model.tasks import Task
from parley.security.api_keys import ApiKeyRecord
from parley.security.limits.usage import usage_row
from parley.store import tables
from parley.store.events import StoredCaller, records_in
from parley.store.fold import fold
from parley.store.snapshot import StoredForm

BACKFILLED_OWNERS = 1000
"""The number of tasks that a migration checks together."""

SMALL_TABLES = ("secrets", "api_keys", "usage", "quotas")
"""The small tables that were separate tables in earlier versions."""

_Artifacts = tuple[Artifact, ...]
_CLIENT = b'"client":'


class _FirstTurn(msgspec.Struct, frozen=True):
    caller: StoredCaller | None = None


_DECODER = msgspec.json.Decoder(_FirstTurn)


def is_of_application(owner: str, first_turn: bytes | None) -> bool:
    """Return whether a task of an owner, in the form of earlier versions, is an application's.

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
    """Return the stored form of a task from a snapshot of an older schema and later records.

    ``body`` is the JSON of the task without its artifacts, ``artifacts`` is their JSON.
    """
    start = None
    if body is not None:
        start = replace(decode(body, Task), artifacts=decode(artifacts or b"[]", _Artifacts))
    return StoredForm.of(fold([record.event for record in records_in(task_id, tail)], start))


def small_rows(table: str, found: Iterable[Sequence[Any]]) -> Iterator[tuple[str, str, bytes, Any]]:
    """Yield rows of the query ``small_<table>`` as rows of ``rows``, grouped by key."""
    match table:
        case "secrets":
            for name, value in found:
                yield tables.SECRETS, name, bytes(value), None
        case "api_keys":
            for id, digest, owner, label, scopes, created_at, expires_at, revoked_at in found:
                record = ApiKeyRecord(
                    id=id,
                    digest=digest,
                    owner=owner,
                    label=label,
                    scopes=tuple(scopes.split()),
                    created_at=created_at,
                    expires_at=expires_at,
                    revoked_at=revoked_at,
                )
                yield tables.API_KEYS, id, *tables.api_key_row(record)
        case "usage":
            for each in found:
                for key, row in tables.usage_rows([usage_row(each)]).items():
                    yield tables.USAGE, key, *row
        case "quotas":
            for name, slots in groupby(found, key=itemgetter(0)):
                taken = {slot: (taken, ends_at) for _, slot, taken, ends_at in slots}
                yield tables.QUOTAS, name, *tables.quota_row(taken)
