"""Small tables of a store, written once for all engines.

An engine implements ``TableRows``: the rows of all tables, within a transaction. A row is bytes
under a text key. Parley's own small tables (secrets, API keys, usage, amounts of limits) are
functions of these; ``SmallTables`` makes them the methods of a store. ``Tables`` is the same for
other packages, each in a separate namespace.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import reduce
from itertools import groupby, takewhile
from typing import Final, Literal, TypeVar

import msgspec
from msgspec.structs import replace

from parley.model.ids import RIGHT_ID, may_be_id
from parley.security.api_keys import ApiKeyRecord, checked
from parley.security.limits.declaration import DAY_MS
from parley.security.limits.usage import (
    NO_USAGE,
    USAGE_KEPT_DAYS,
    QuotaAsk,
    QuotaGrant,
    UsageKey,
    UsageQuery,
    UsageRow,
    added,
    counts_of,
    usage_key,
    usage_row,
)
from parley.store.protocols.tables import (
    ENDED_KEPT,
    MAX_API_KEYS,
    SECRET_BYTES,
    ApiKeyChanged,
    DuplicateApiKey,
    TooManyApiKeys,
)

T = TypeVar("T")

MAX_ROW_BYTES = 256 * 1024
"""The maximum size of a row."""

PAGE = 1000
"""The maximum number of rows in one scan."""

EXPIRED_PER_PUT = 100
"""The number of expired rows that are removed with each new expiring row."""

_HOUSE = "parley"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")

Row = tuple[bytes, int | None]
"""The bytes of a row, and the time (ms) of its expiry."""


class TableRows(ABC):
    """The rows of all tables, within one transaction. Keys are ordered by their characters.

    A row that has expired by ``now`` (ms) does not exist.
    """

    now: int

    @abstractmethod
    def lock(self, table: str, keys: Iterable[str]) -> None:
        """Keep others from locking these keys until the transaction ends.

        A change must lock its rows before it reads them.
        """

    @abstractmethod
    def get(self, table: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the existing rows."""

    @abstractmethod
    def scan(
        self, table: str, first: str = "", *, after: str = "", limit: int = PAGE
    ) -> Sequence[tuple[str, bytes]]:
        """Return rows from the key ``first`` on, and after a key, in the order of the keys."""

    @abstractmethod
    def put(self, table: str, rows: Mapping[str, Row]) -> None:
        """Store rows, replacing those with the same keys."""

    @abstractmethod
    def remove(self, table: str, keys: Iterable[str]) -> None:
        """Remove rows, if they exist."""


class _Any(Enum):
    ANY = 0


ANY: Final = _Any.ANY
"""Any row, or none: the default expectation of ``Tables.put``."""

Expected = bytes | None | Literal[_Any.ANY]


class Tables:
    """The tables of a package in a store: bytes by text key, in any number of tables.

    Each call is durable when it returns, and visible to all replicas from then on. A call that is
    repeated because its answer was lost counts once. All raise ``StoreUnavailable``. Exports leave
    the tables out: another store has its own.
    """

    def __init__(self, store: SmallTables, namespace: str) -> None:
        if not isinstance(namespace, str) or not _NAME.fullmatch(namespace) or namespace == _HOUSE:
            raise ValueError(
                "a namespace is the name of a package, such as fleet_tools, but not parley: a-z, "
                f"0-9, _ and -, up to 63 of them and a letter first, not {namespace!r:.80}"
            )
        self._store = store
        self._namespace = namespace

    async def put(
        self,
        table: str,
        key: str,
        row: bytes,
        *,
        expected: Expected = ANY,
        expires_at: int | None = None,
    ) -> bool:
        """Store a row, and return whether that was done: the previous row was the ``expected`` one.

        ``None`` is no row: if any number of calls expect the same at once, on all replicas, one
        succeeds. The row expires at ``expires_at`` (ms by the store's clock). Raises ``ValueError``
        for values that cannot be stored.
        """
        name, row = self._table(table), bytes(row)
        if len(row) > MAX_ROW_BYTES:
            raise ValueError(f"a row has up to {MAX_ROW_BYTES} bytes, and this one has {len(row)}")
        _check_key(key)

        def put(rows: TableRows) -> bool:
            is_expected = _is_expected(rows, name, key, expected)
            if is_expected:
                rows.put(name, {key: (row, expires_at)})
            return is_expected

        return await self._store.change_rows(put)

    async def get(self, table: str, key: str) -> bytes | None:
        """Return a row."""
        name = self._table(table)
        _check_key(key)
        return await self._store.read_rows(lambda rows: rows.get(name, (key,)).get(key))

    async def scan(
        self, table: str, prefix: str = "", *, after: str = "", limit: int = PAGE
    ) -> Sequence[tuple[str, bytes]]:
        """Return up to ``limit`` rows (at most ``PAGE``) whose keys begin with ``prefix``.

        They are in the order of their keys; ``after`` is the last key of the previous page.
        """
        name, limit = self._table(table), min(limit, PAGE)
        for key in (prefix, after):
            if key:
                _check_key(key)
        found = await self._store.read_rows(
            lambda rows: rows.scan(name, prefix, after=after, limit=limit)
        )
        return [(key, row) for key, row in found if key.startswith(prefix)]

    async def remove(self, table: str, key: str, *, expected: Expected = ANY) -> bool:
        """Remove a row, and return whether it existed and was the ``expected`` one."""
        name = self._table(table)
        _check_key(key)

        def remove(rows: TableRows) -> bool:
            is_expected = _is_expected(rows, name, key, expected)
            is_there = is_expected and bool(rows.get(name, (key,)))
            if is_there:
                rows.remove(name, (key,))
            return is_there

        return await self._store.change_rows(remove)

    def _table(self, table: str) -> str:
        if not isinstance(table, str) or not _NAME.fullmatch(table):
            raise ValueError(
                f"the name of a table has a-z, 0-9, _ and -, up to 63 of them and a letter first, "
                f"not {table!r:.80}"
            )
        return f"{self._namespace}.{table}"


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not key or not may_be_id(key):
        raise ValueError(f"the key of a row has 1 character or more, {RIGHT_ID}")


def _is_expected(rows: TableRows, table: str, key: str, expected: Expected) -> bool:
    rows.lock(table, (key,))
    return expected is ANY or rows.get(table, (key,)).get(key) == expected


# -- Parley's own tables -------------------------------------------------------------------------

SECRETS = "parley.secrets"
API_KEYS = "parley.api_keys"
USAGE = "parley.usage"
QUOTAS = "parley.quotas"

QUOTA_SLACK_MS = 60_000
"""The extra time for which a slot is kept: the clocks of replicas may differ."""

_LAST_DAY = 99_999_999
_USAGE_KEY = msgspec.json.Decoder(tuple[str, str, str, str])
_COUNTS = msgspec.json.Decoder(list[int])
_API_KEY = msgspec.json.Decoder(ApiKeyRecord)

Slots = dict[int, tuple[int, int]]
"""The used amount and its expiry time (ms), by slot."""

_SLOTS = msgspec.json.Decoder(Slots)


def secret(rows: TableRows, name: str) -> bytes:
    """Return the secret with this name, created by the first call."""
    rows.lock(SECRETS, (name,))
    found = rows.get(SECRETS, (name,)).get(name)
    if found is None:
        found = os.urandom(SECRET_BYTES)
        rows.put(SECRETS, {name: (found, None)})
    return found


def api_key_row(record: ApiKeyRecord) -> Row:
    """Return a key as a row, which expires ``ENDED_KEPT`` after the key's end."""
    ended_at = record.ended_at()
    return msgspec.json.encode(record), None if ended_at is None else ended_at + ENDED_KEPT


def add_api_key(rows: TableRows, record: ApiKeyRecord) -> None:
    """Add a key. Raises ``TooManyApiKeys``, ``DuplicateApiKey``."""
    rows.lock(API_KEYS, ("", record.id))  # every addition of a key needs the first lock
    found = api_key(rows, record.id)
    if found is None:
        if len(rows.scan(API_KEYS, limit=MAX_API_KEYS)) >= MAX_API_KEYS:
            raise TooManyApiKeys
        rows.put(API_KEYS, {record.id: api_key_row(record)})
    elif found.digest != record.digest:
        raise DuplicateApiKey(record.id)


def api_key(rows: TableRows, id: str) -> ApiKeyRecord | None:
    """Return a key, expired and revoked keys included."""
    found = rows.get(API_KEYS, (id,)).get(id)
    return None if found is None else _API_KEY.decode(found)


def api_keys(rows: TableRows, owner: str) -> list[ApiKeyRecord]:
    """Return all keys, or the keys of an owner, the oldest first."""
    found = [_API_KEY.decode(row) for _, row in rows.scan(API_KEYS, limit=MAX_API_KEYS)]
    chosen = [key for key in found if owner in ("", key.owner)]
    return sorted(chosen, key=lambda key: (key.created_at, key.id))


def end_api_key(
    rows: TableRows, id: str, expires_at: int | None, revoked_at: int | None
) -> ApiKeyRecord | None:
    """Let a key end earlier, and return it; its end is never postponed."""
    rows.lock(API_KEYS, (id,))
    found = api_key(rows, id)
    if found is not None:
        found = replace(
            found,
            expires_at=_earlier(found.expires_at, expires_at),
            revoked_at=_earlier(found.revoked_at, revoked_at),
        )
        rows.put(API_KEYS, {id: api_key_row(found)})
    return found


def _earlier(first: int | None, second: int | None) -> int | None:
    return min([at for at in (first, second) if at is not None], default=None)


def usage_rows(usage: Iterable[UsageRow]) -> dict[str, Row]:
    """Return usage as rows: the latest days first, expiring after ``USAGE_KEPT_DAYS``."""
    return {
        _row_key(usage_key(each)): (
            msgspec.json.encode(counts_of(each)),
            (each.day + 1 + USAGE_KEPT_DAYS) * DAY_MS,
        )
        for each in usage
    }


def _row_key(key: UsageKey) -> str:
    return f"{_LAST_DAY - key[0]:08}{msgspec.json.encode(key[1:]).decode()}"


def _usage(key: str, row: bytes) -> UsageRow:
    return usage_row((_LAST_DAY - int(key[:8]), *_USAGE_KEY.decode(key[8:]), *_COUNTS.decode(row)))


def add_usage(rows: TableRows, usage: Sequence[UsageRow]) -> None:
    """Add to the usage."""
    more = {_row_key(usage_key(each)): each for each in usage}
    rows.lock(USAGE, more)
    for key, row in rows.get(USAGE, more).items():
        more[key] = added(more[key], _usage(key, row))
    rows.put(USAGE, usage_rows(more.values()))


def select_usage(rows: TableRows, query: UsageQuery) -> Iterator[UsageRow]:
    """Yield the usage that a query selects, the latest days first; its ``limit`` is ignored."""
    wanted = (query.agent, query.tenant, query.caller)
    first, after = f"{max(0, _LAST_DAY - query.until):08}", ""
    known = [*takewhile(lambda value: value is not None, wanted)]
    if query.since == query.until and known:  # their rows are adjacent
        first += msgspec.json.encode(known).decode()[:-1] + ","
    while page := rows.scan(USAGE, first, after=after):
        for after, row in page:
            found = _usage(after, row)
            if found.day < query.since:
                return
            has = (found.agent, found.tenant, found.caller)
            if all([want in (None, value) for want, value in zip(wanted, has, strict=True)]):
                yield found


def find_usage(rows: TableRows, query: UsageQuery) -> list[UsageRow]:
    """Return the usage, the latest days first."""
    found: list[UsageRow] = []
    for _, day in groupby(select_usage(rows, query), key=lambda row: row.day):
        found += sorted(day, key=usage_key)
        if len(found) >= query.limit:
            break
    return found[: query.limit]


def sum_usage(rows: TableRows, query: UsageQuery) -> UsageRow:
    """Return the sum of all usage that is selected."""
    return reduce(added, select_usage(rows, query), NO_USAGE)


def quota_row(slots: Slots) -> Row:
    """Return the used parts of an amount as a row, which expires with its last slot."""
    last = max([ends_at for _, ends_at in slots.values()], default=0)
    return msgspec.json.encode(slots), last + QUOTA_SLACK_MS


def take_quotas(rows: TableRows, asks: Sequence[QuotaAsk]) -> list[QuotaGrant]:
    """Use units of amounts, one after another."""
    keys = {ask.key for ask in asks}
    rows.lock(QUOTAS, keys)
    found = rows.get(QUOTAS, keys)
    amounts = {key: _SLOTS.decode(found[key]) if key in found else {} for key in keys}
    changed: dict[str, Row] = {}
    grants = []
    for ask in asks:
        slots = amounts[ask.key]
        grants.append(_granted(ask, slots))
        if grants[-1].given:
            counted = [each for each, (_, at) in slots.items() if at + QUOTA_SLACK_MS > rows.now]
            amounts[ask.key] = {each: slots[each] for each in {*counted, ask.slot}}
            changed[ask.key] = quota_row(amounts[ask.key])
    if changed:
        rows.put(QUOTAS, changed)
    return grants


def _granted(ask: QuotaAsk, slots: Slots) -> QuotaGrant:
    """Return the grant for an ask, given the used ``slots``, and use it."""
    counted = {slot: taken for slot, (taken, _) in slots.items() if slot >= ask.oldest}
    taken, of_slot = sum(counted.values()), slots.get(ask.slot, (0, 0))[0]
    given = min(ask.wanted, max(0, ask.amount - taken))
    if given < 0:
        given = -min(-given, of_slot)
    if given:
        counted[ask.slot] = of_slot + given
        slots[ask.slot] = (of_slot + given, ask.ends_at)
    return QuotaGrant(given, taken + given, min(counted, default=ask.slot))


class SmallTables(ABC):
    """The small tables of a store. Exports leave them out: another store has its own.

    Each call is durable when it returns, and visible to all replicas from then on. Amounts of
    limits are exact: all replicas together never get more.
    """

    def __init__(self) -> None:
        self._api_key_listeners: list[ApiKeyChanged] = []

    @abstractmethod
    async def change_rows(self, work: Callable[[TableRows], T]) -> T:
        """Call ``work`` in a transaction, and return its result once that is durable.

        It may be called again when nothing was written. When it raises ``StoreError``, it has
        changed nothing.
        """

    @abstractmethod
    async def read_rows(self, work: Callable[[TableRows], T]) -> T:
        """Call ``work``, which only reads, and return its result."""

    @abstractmethod
    def now(self) -> int:
        """Return the time by the store's clock, in ms."""

    def tables(self, namespace: str) -> Tables:
        """Return the tables of a package. Raises ``ValueError`` for a wrong name."""
        return Tables(self, namespace)

    async def secret(self, name: str) -> bytes:
        """Return the secret with this name, for signing: ``SECRET_BYTES`` random bytes, never
        logged.

        The first call creates it. Every call returns the same, on all replicas, for ever.
        """
        found = await self.read_rows(lambda rows: rows.get(SECRETS, (name,)))
        return found[name] if found else await self.change_rows(lambda rows: secret(rows, name))

    def listen_api_keys(self, changed: ApiKeyChanged) -> None:
        """Call ``changed`` whenever this process adds or ends an API key, also for operators.

        Changes by other processes must be looked up.
        """
        self._api_key_listeners.append(changed)

    async def add_api_key(self, record: ApiKeyRecord) -> None:
        """Store an API key. A call that is repeated because its answer was lost counts once.

        Keys that ended ``ENDED_KEPT`` ago are removed. Raises ``TooManyApiKeys``,
        ``DuplicateApiKey``, and ``ValueError`` for what cannot be stored.
        """
        checked(record)
        await self.change_rows(lambda rows: add_api_key(rows, record))
        self._api_key_changed(record.id)

    async def end_api_key(
        self, id: str, *, expires_at: int | None = None, revoked_at: int | None = None
    ) -> ApiKeyRecord | None:
        """End an API key at a time (ms), unless it ends earlier; return the resulting record.

        Returns ``None`` for an unknown key.
        """
        found = await self.change_rows(lambda rows: end_api_key(rows, id, expires_at, revoked_at))
        self._api_key_changed(id)
        return found

    def _api_key_changed(self, id: str) -> None:
        for changed in self._api_key_listeners:
            changed(id)

    async def api_key(self, id: str) -> ApiKeyRecord | None:
        """Return an API key, expired and revoked keys included."""
        return await self.read_rows(lambda rows: api_key(rows, id))

    async def api_keys(self, owner: str = "") -> Sequence[ApiKeyRecord]:
        """Return all API keys, or the keys of an owner, the oldest first."""
        return await self.read_rows(lambda rows: api_keys(rows, owner))

    async def take_quotas(self, asks: Sequence[QuotaAsk]) -> Sequence[QuotaGrant]:
        """Use units of limits."""
        return await self.change_rows(lambda rows: take_quotas(rows, asks))

    async def add_usage(self, rows: Sequence[UsageRow]) -> None:
        """Add to the usage."""
        await self.change_rows(lambda tables: add_usage(tables, rows))

    async def usage(self, query: UsageQuery) -> Sequence[UsageRow]:
        """Return the usage, the latest days first."""
        return await self.read_rows(lambda rows: find_usage(rows, query))

    async def sum_usage(self, query: UsageQuery) -> UsageRow:
        """Return the sum of all rows that are selected."""
        return await self.read_rows(lambda rows: sum_usage(rows, query))
