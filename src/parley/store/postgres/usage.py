"""Usage and the amounts of limits in PostgreSQL: transactions of the writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec.structs import asdict

from parley.store.postgres.writer import PostgresBatchWriter
from parley.store.protocols.usage import QuotaAsk, QuotaGrant, UsageRow
from parley.store.usage import usage_key, usage_values

T = TypeVar("T")


def take(writer: PostgresBatchWriter, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
    """Take from amounts, each under its lock; locks are taken in the order of the keys."""
    return _within(writer, lambda: _take(writer, asks))


def _take(writer: PostgresBatchWriter, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
    grants: dict[int, QuotaGrant] = {}
    for index, ask in sorted(enumerate(asks), key=lambda each: each[1].key):
        values = {**asdict(ask), "name": ask.key}
        del values["key"]
        writer.connection.execute(writer.sql["lock_quota"], {"name": ask.key})
        [(given, before, first)] = writer.connection.rows(writer.sql["take_quota"], values)
        grants[index] = QuotaGrant(given, before + given, first)
    return [grants[index] for index in range(len(asks))]


def add(writer: PostgresBatchWriter, rows: Sequence[UsageRow]) -> None:
    """Add to what was used; rows are locked in the order of their keys."""

    def add_all() -> None:
        for row in sorted(rows, key=usage_key):
            writer.connection.execute(writer.sql["add_usage"], usage_values(row))

    _within(writer, add_all)


def prune(writer: PostgresBatchWriter, before_day: int, now: int) -> None:
    """Remove old usage, and slots that no longer count."""
    writer.connection.execute(writer.sql["prune_usage"], {"before_day": before_day})
    writer.connection.execute(writer.sql["prune_quota_slots"], {"now": now})


def _within(writer: PostgresBatchWriter, work: Callable[[], T]) -> T:
    connection = writer.connection
    connection.execute("BEGIN")
    try:
        connection.execute(writer.sql["limit_locks"], ("5s",))
        result = work()
        connection.execute("COMMIT")
    except BaseException:
        connection.roll_back()
        raise
    return result
