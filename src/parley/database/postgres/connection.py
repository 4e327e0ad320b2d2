"""Connections to PostgreSQL: by URL, with bounded waits, directly or through a pooler.

Error messages never contain the URL, which may have a password. The arrays at the end are
parameters that are cheaper to send than lists.
"""

from __future__ import annotations

import logging
import re
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode
from uuid import uuid4

import msgspec
import psycopg
from psycopg import adapt, conninfo, pq

from parley.database.errors import StoreUnavailable
from parley.database.sql import SqlFiles

logger = logging.getLogger(__name__)

SCHEMA = "parley"
"""The schema of a task store's tables, unless the URL names another."""

OLDEST = 13
CONNECT_SECONDS = 5

STALE_SECONDS = 1.0
"""The time that a connection to a read-only server is used; another server may have replaced it."""

Connection = psycopg.Connection[tuple[Any, ...]]

_newest: dict[str, tuple[str, int]] = {}
"""By connection string: the database system, and its newest timeline that this process saw."""
_newest_lock = threading.Lock()


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """The location of tables. ``name`` is shown to people, without user and password."""

    conninfo: str
    schema: str
    name: str

    def __repr__(self) -> str:
        return f"<Address {self.name}>"

    @classmethod
    def of(cls, url: str, *, schema: str = SCHEMA) -> Address:
        """Return the address in a URL, whose ``?schema=`` may name another schema.

        Raises ``ValueError``, which does not contain the password.
        """
        usual = schema
        try:
            location, _, query = url.partition("?")
            options = parse_qsl(query, keep_blank_values=True)
            schemas = [value for name, value in options if name == "schema"]
            others = [(name, value) for name, value in options if name != "schema"]
            plain = location + (f"?{urlencode(others, quote_via=quote)}" if others else "")
            known = conninfo.conninfo_to_dict(plain)
        except (ValueError, psycopg.Error):
            raise ValueError(
                "the address of a PostgreSQL store is not a URL that libpq knows, like "
                "postgresql://user:password@host:5432/database?sslmode=require"
            ) from None
        schema = schemas[-1] if schemas else usual
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema) or schema.startswith("pg_"):
            raise ValueError(
                f"a schema's name is of small letters, digits and _, not {schema!r}: "
                f"postgresql://.../database?schema={usual}"
            )
        host = known.get("host") or known.get("hostaddr") or "localhost"
        port = f":{known['port']}" if known.get("port") else ""
        name = f"postgresql://{host}{port}/{known.get('dbname', '')}"
        if schema != usual:
            name += f"?schema={schema}"
        settings: dict[str, str | int] = {
            "connect_timeout": CONNECT_SECONDS,
            "application_name": "parley",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        }
        more: dict[str, Any] = {k: v for k, v in settings.items() if k not in known}
        return cls(conninfo=conninfo.make_conninfo(plain, **more), schema=schema, name=name)

    def orders(self) -> list[str]:
        """Return the connection string with each of its hosts first."""
        known = conninfo.conninfo_to_dict(self.conninfo)
        lists = {name: str(known.get(name, "")).split(",") for name in ("host", "hostaddr", "port")}
        lists = {name: values for name, values in lists.items() if len(values) > 1}
        return [
            conninfo.make_conninfo(
                self.conninfo, **{k: ",".join(v[n:] + v[:n]) for k, v in lists.items()}
            )
            for n in range(max(map(len, lists.values()), default=1))
        ]

    def was_replaced(self, history: tuple[str, int | None] | None) -> bool:
        """Return whether a server's ``history`` ends before the newest that this process saw.

        Only a promotion begins a new timeline. ``None`` is a standby's, or a service that hides it.
        """
        system, timeline = history or ("", None)
        if timeline is None:
            return False
        with _newest_lock:
            known = _newest.get(self.conninfo)
            if known and known[0] == system and timeline < known[1]:
                return True
            _newest[self.conninfo] = (system, timeline)
        return False


class _TimedConnection(psycopg.Connection[Any]):
    """A connection that waits for an answer for up to ``timeout`` seconds."""

    timeout: float = 30.0
    is_stopped: Callable[[], bool] = bool

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        until = _until(gen, time.monotonic() + self.timeout, self.is_stopped)
        return super().wait(until, *args, **options)


def _until(
    gen: Generator[Any, Any, Any], deadline: float, is_stopped: Callable[[], bool]
) -> Generator[Any, Any, Any]:
    """Run ``gen`` until the deadline or ``stop``. Raises ``OperationalError`` then."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > deadline:
                raise psycopg.OperationalError("the database does not answer")
            if not ready and is_stopped():
                raise psycopg.OperationalError("the store is closed")
            state = gen.send(ready)
    except StopIteration as end:
        return end.value


_SQL = SqlFiles("parley.database").queries("postgres", "connection.sql")

INDEXED = _SQL["configure_session"]
"""Settings of a session whose queries all use an index, and are planned once."""

HISTORY = _SQL["history"]
NO_HISTORY = (psycopg.ProgrammingError, psycopg.NotSupportedError)
"""The errors of services that hide it."""

REPLACED = "the server was replaced by the promotion of another; rebuild it as a standby"

_UNUSABLE = (pq.TransactionStatus.ACTIVE, pq.TransactionStatus.UNKNOWN)


class BoundedConnection:
    """A connection that is opened on first use, and again after it was lost.

    It is used by one thread. ``timeout`` is the number of seconds that it waits for an answer.
    ``session`` is the SQL that configures a session if there is no pooler.
    """

    def __init__(self, address: Address, *, timeout: float, session: str = INDEXED) -> None:
        self._address = address
        self.timeout = timeout
        self._session = session
        self._connection: _TimedConnection | None = None
        self._stale_at = 0.0
        self._stopped = threading.Event()

    @property
    def is_connected(self) -> bool:
        """True if there is a connection, as far as known."""
        return self._connection is not None and not self._connection.closed

    @property
    def in_transaction(self) -> bool:
        """True if a transaction is open that has not failed."""
        connection = self._connection
        return (
            connection is not None
            and connection.pgconn.transaction_status == pq.TransactionStatus.INTRANS
        )

    def connect(self) -> None:
        """Connect, if there is no connection. Raises ``psycopg.Error``.

        A server that another replaced is passed over: its timeline is older. A process that
        begins asks all hosts which one is the newest.
        """
        if self.is_connected:
            return
        self.disconnect()
        orders = self._address.orders()
        if len(orders) > 1 and self._address.conninfo not in _newest:
            for order in orders:
                with suppress(psycopg.OperationalError), _TimedConnection.connect(order) as one:
                    one.timeout = self.timeout
                    self._address.was_replaced(_history(one))
        for order in orders:
            connection = _TimedConnection.connect(order, autocommit=True)
            if self._configure(connection):
                self._connection = connection
                is_stale = is_read_only(connection)
                self._stale_at = time.monotonic() + STALE_SECONDS if is_stale else 0.0
                return
            connection.close()
        raise psycopg.OperationalError(REPLACED)

    def _configure(self, connection: _TimedConnection) -> bool:
        """Configure a new connection; return false if another server replaced its server."""
        connection.timeout = self.timeout
        connection.is_stopped = self._stopped.is_set
        for kind, dumper in _DUMPERS.items():
            connection.adapters.register_dumper(kind, dumper)
        try:
            if self._address.was_replaced(_history(connection)):
                return False
            is_direct = _is_direct(connection)
            if is_direct and self._session:
                # Behind a pooler the session must not be configured.
                connection.execute(self._session, prepare=False)
            if is_direct or _prepared_are_safe(connection):
                connection.prepare_threshold = 2
                connection.prepared_max = None
            else:
                connection.prepare_threshold = None
        except BaseException:
            connection.close()
            raise
        return True

    def execute(self, sql: str, values: Any = None) -> psycopg.Cursor[tuple[Any, ...]]:
        """Execute a statement. Raises ``psycopg.Error``.

        It disconnects when the connection is broken, and when the server has become read-only: its
        data may be stale, as other replicas write to the server that replaced it.
        """
        self.connect()
        assert self._connection is not None
        self._connection.timeout = self.timeout
        try:
            cursor = self._connection.execute(sql, values, binary=True)
            if is_read_only(self._connection) and time.monotonic() > self._stale_at:
                raise psycopg.errors.ReadOnlySqlTransaction("the server no longer accepts writes")
            return cursor
        except BaseException as error:
            status = self._connection.pgconn.transaction_status
            state = getattr(error, "sqlstate", None) or ""
            if status in _UNUSABLE or state.startswith(("08", "57P", "25006", "26000", "42P05")):
                self.disconnect()
            raise

    def rows(self, sql: str, values: Any = None) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.execute(sql, values).fetchall()

    def execute_script(self, sql: str) -> None:
        """Execute several statements. Raises ``psycopg.Error``."""
        self.connect()
        assert self._connection is not None
        # Without parameters, psycopg sends the text unchanged.
        self._connection.execute(sql, prepare=False)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the changes of the block, or roll back if it raises. Raises ``psycopg.Error``."""
        self.execute("BEGIN")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            self.roll_back()
            raise

    def stop(self) -> None:
        """Stop waiting for answers, now and later. Thread-safe."""
        self._stopped.set()

    def roll_back(self) -> None:
        """End a transaction that failed."""
        if self.is_connected:
            try:
                self.execute("ROLLBACK")
            except psycopg.Error:
                self.disconnect()

    def disconnect(self) -> None:
        """Close the connection at once."""
        if self._connection is not None:
            self._connection.pgconn.finish()
            self._connection = None


def is_read_only(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Return whether the server was read-only at its last answer (PostgreSQL 14 and later)."""
    setting = connection.pgconn.parameter_status
    return b"on" in (setting(b"default_transaction_read_only"), setting(b"in_hot_standby"))


def _history(connection: psycopg.Connection[Any]) -> tuple[str, int | None] | None:
    with suppress(*NO_HISTORY):
        return connection.execute(HISTORY, prepare=False).fetchone()
    return None


def _is_direct(connection: Connection) -> bool:
    """Return whether there is no pooler, which would report its own process id."""
    found = connection.execute(_SQL["backend_pid"]).fetchone()
    return found is not None and bool(found[0] == connection.pgconn.backend_pid)


def _prepared_are_safe(connection: Connection) -> bool:
    """Return whether a pooler separates the prepared statements of its clients.

    Other poolers let a client run a statement of another client with the same name. A pooler that
    separates them renames them.
    """
    raw = connection.pgconn
    name = f"parley_{uuid4().hex}"
    with connection.transaction():
        raw.prepare(name.encode(), _SQL["probe"].encode())
        rows = connection.execute(_SQL["count_prepared"], (name,), prepare=False).fetchone()
        is_apart = rows is not None and rows[0] == 0
        if not is_apart:
            connection.execute(_SQL["deallocate"].replace("{name}", name), prepare=False)
    if not is_apart:
        logger.info("there is a pooler without prepared statements: not using them")
    return is_apart


_PERMANENT = (
    psycopg.errors.DiskFull,
    psycopg.errors.OutOfMemory,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.ConfigurationLimitExceeded,
    psycopg.errors.InvalidAuthorizationSpecification,
    psycopg.errors.InvalidPassword,
)
_TRANSIENT = (
    psycopg.OperationalError,
    psycopg.errors.ReadOnlySqlTransaction,
    psycopg.errors.InvalidSqlStatementName,
    psycopg.errors.DuplicatePreparedStatement,
)


def is_transient(error: BaseException) -> bool:
    """Return whether a statement may succeed later, or on another connection."""
    return isinstance(error, _TRANSIENT) and not isinstance(error, _PERMANENT)


_LIBPQ_ERRORS = (
    ("does not exist", "database ", "3D000"),
    ("does not exist", "role ", "28000"),
    ("password authentication failed", "", "28P01"),
    ("no password supplied", "", "28P01"),
    ("no pg_hba.conf entry", "", "28000"),
    ("too many clients already", "", "53300"),
    ("connection slots are reserved", "", "53300"),
)
"""Texts of connection errors, and their codes, which libpq does not provide."""


def explain(error: BaseException, address: Address) -> StoreUnavailable:
    """Return an error that names the fault of the database, and the remedy."""
    text = " ".join(str(error).split()) or type(error).__name__
    state = getattr(error, "sqlstate", None) or ""
    reasons = {
        "53100": "the disk is full; make room on it",
        "25006": "the server is read only (a standby?); name the primary server, or all "
        "of them: postgresql://one,other/database?target_session_attrs=read-write",
        "28P01": "the user or the password is wrong",
        "28000": "the user may not use it",
        "3D000": "there is no such database; create it",
        "42501": "the user has no right to do this; grant it",
        "53300": "the server has too many connections; raise max_connections, or use a pooler",
    }
    if not state:
        state = next((code for a, b, code in _LIBPQ_ERRORS if a in text and b in text), "")
    reason = reasons.get(state)
    if reason is None:
        is_away = isinstance(error, psycopg.OperationalError)
        reason = "the database cannot be reached" if is_away else "PostgreSQL reports an error"
    return StoreUnavailable(f"{address.name}: {reason} ({text})")


def advisory_lock_key(address: Address, purpose: str) -> int:
    """Return the key of an advisory lock that all users of the schema share."""
    name = f"parley {purpose} {address.schema}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big", signed=True)


class Ints(bytes):
    """An array of integers, in PostgreSQL's binary format."""


class Texts(bytes):
    """An array of texts."""


class Blobs(bytes):
    """An array of bytes."""


class Flags(bytes):
    """An array of truth values."""


def _dumper(oid: int) -> type[adapt.Dumper]:
    class Dumper(adapt.Dumper):
        format = pq.Format.BINARY

        def dump(self, obj: Any) -> bytes:
            return bytes(obj)

    Dumper.oid = oid
    return Dumper


_DUMPERS = {Ints: _dumper(1016), Texts: _dumper(1009), Blobs: _dumper(1001), Flags: _dumper(1000)}


_SIZE = struct.Struct(">i").pack


def ints(values: Sequence[int | None]) -> Ints:
    """Return integers as one parameter. The driver takes ten times as long for a list."""
    count, has_null = len(values), None in values
    if has_null:
        body = b"".join(
            [b"\xff\xff\xff\xff" if v is None else struct.pack(">iq", 8, v) for v in values]
        )
    else:
        pairs: list[Any] = [8] * (2 * count)
        pairs[1::2] = values
        body = struct.pack(">" + "iq" * count, *pairs)
    return Ints(_header(20, count, has_null) + body)


def flags(values: Sequence[bool]) -> Flags:
    """Return booleans as one parameter."""
    body = b"".join([b"\x00\x00\x00\x01\x01" if v else b"\x00\x00\x00\x01\x00" for v in values])
    return Flags(_header(16, len(values)) + body)


def texts(values: Sequence[str]) -> Texts:
    """Return texts as one parameter."""
    return Texts(_header(25, len(values)) + _sized([value.encode() for value in values]))


def blobs(values: Sequence[bytes]) -> Blobs:
    """Return bytes as one parameter."""
    return Blobs(_header(17, len(values)) + _sized(values))


def _sized(values: Sequence[bytes]) -> bytes:
    parts = [b""] * (2 * len(values))
    parts[::2] = map(_SIZE, map(len, values))
    parts[1::2] = values
    return b"".join(parts)


def _header(oid: int, count: int, has_null: bool = False) -> bytes:
    if not count:
        return struct.pack(">iii", 0, 0, oid)
    return struct.pack(">iiiii", 1, has_null, oid, count, 1)
