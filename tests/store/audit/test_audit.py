"""The audit, on every store: one chain, in which every change is detected."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import asdict, replace

from parley.database.postgres.connection import Address
from parley.host.store_urls import open_admin
from parley.store.audit import trail
from parley.store.audit.reading import fact_of
from parley.store.audit.trail import (
    GENESIS,
    PRUNED,
    Anchor,
    AuditEntry,
    AuditFilter,
    AuditLine,
    AuditPrune,
    Verification,
    canonical,
    checkpoint,
    hash_of,
    line_columns,
    line_in,
    lines_after,
    text_of,
    verify,
)
from parley.store.events import LoggedEvent, RecordKind, StepResult
from parley.store.memory import MemoryLogs, MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.waiting import Clock

pytestmark = pytest.mark.anyio


EVERYTHING = AuditFilter()


def entry(kind: str = "key.created", **given: Any) -> AuditEntry:
    return AuditEntry(kind=kind, **({"issuer": "os", "actor": "ada@host"} | given))


def pruning(before: int, **given: Any) -> AuditPrune:
    return AuditPrune(before=before, by=entry(""), **given)


async def verified(store: TaskStore, *anchors: str) -> Verification:
    lines = await store.read_audit(EVERYTHING, limit=100_000)
    return verify(lines, [Anchor.of(each) for each in anchors])


async def test_an_append_that_is_repeated_counts_once(store: TaskStore) -> None:
    given = entry()
    await asyncio.gather(*[store.append_audit([given]) for _ in range(3)])
    await store.append_audit([given, entry()])
    assert len(await store.read_audit(EVERYTHING)) == 2
    assert (await verified(store)).is_intact


async def test_a_limit_above_their_number_leaves_out_no_lines(store: TaskStore) -> None:
    await store.append_audit([entry(), entry()])
    newest = await store.read_audit(EVERYTHING, limit=9, newest=True)
    assert [line.seq for line in newest] == [1, 2]


async def test_times_may_go_back_and_the_chain_holds(store: TaskStore, clock: Clock) -> None:
    for now in (5000, 4000, 6000, 1):
        clock.now = now
        await store.append_audit([entry()])
    assert [line.at for line in await store.read_audit(EVERYTHING)] == [5000, 4000, 6000, 1]
    assert (await verified(store)).is_intact


async def test_a_prune_leaves_a_checkpoint_from_which_the_chain_goes_on(
    store: TaskStore, clock: Clock
) -> None:
    for now in range(1, 11):
        clock.now = now
        await store.append_audit([entry()])
    old = (await store.read_audit(EVERYTHING, after=5, limit=1))[0].anchor
    clock.now = 20
    assert await store.prune_audit(pruning(7)) == 6
    lines = await store.read_audit(EVERYTHING)
    assert [line.seq for line in lines] == [7, 8, 9, 10, 11]
    assert (lines[-1].kind, lines[-1].actor) == (PRUNED, "ada@host")
    assert lines[-1].details["removed"] == 6
    assert (await verified(store)).is_intact
    assert (await verified(store, old, lines[-1].anchor)).is_intact  # the checkpoint names line 6
    assert not (await verified(store, f"3:{'0' * 64}")).is_intact
    assert await store.prune_audit(pruning(7)) == 0
    assert await store.prune_audit(pruning(1000)) == 5
    assert [line.seq for line in await store.read_audit(EVERYTHING)] == [12]
    await store.append_audit([entry()])
    assert (await verified(store)).is_intact


async def test_a_prune_removes_so_many_lines_at_once(
    store: TaskStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trail, "LINES_PER_PRUNE", 4)
    clock.now = 1
    await store.append_audit([entry() for _ in range(10)])
    clock.now = 20
    given = pruning(7)
    assert [await store.prune_audit(given) for _ in range(4)] == [4, 4, 2, 0]
    assert [line.seq for line in await store.read_audit(EVERYTHING)] == [11, 12, 13]
    assert (await verified(store)).is_intact


async def append_many(store: TaskStore, name: str) -> None:
    for n in range(20):
        entries = [entry(actor=name, subject=f"{n}.{i}") for i in range(3)]
        await store.append_audit(entries)


async def check_shared(stores: list[TaskStore]) -> None:
    await asyncio.gather(*[append_many(each, f"r{n}") for n, each in enumerate(stores)])
    assert (await verified(stores[0])).lines == 60 * len(stores)
    assert (await verified(stores[0])).is_intact
    lines = await stores[0].read_audit(EVERYTHING, limit=1000)
    for n in range(len(stores)):
        own = [line.subject for line in lines if line.actor == f"r{n}"]
        assert own == [f"{k}.{i}" for k in range(20) for i in range(3)]


async def test_replicas_in_memory_append_to_one_chain() -> None:
    logs = MemoryLogs()
    stores: list[TaskStore] = [MemoryTaskStore(logs=logs) for _ in range(2)]
    for each in stores:
        await each.open(lambda records: None)
    await check_shared(stores)
    for each in stores:
        await each.close()


@pytest.mark.service
async def test_replicas_append_to_one_chain(postgres_url: str) -> None:
    stores: list[TaskStore] = [PostgresTaskStore(postgres_url) for _ in range(3)]
    for each in stores:
        await each.open(lambda records: None)
    operator = open_admin(postgres_url)
    adding = asyncio.to_thread(lambda: [operator.append_audit([entry("op")]) for _ in range(10)])
    await asyncio.gather(adding, *[append_many(each, f"r{n}") for n, each in enumerate(stores)])
    assert (await verified(stores[0])).lines == 190
    assert (await verified(stores[0])).is_intact
    for each in stores:
        await each.close()


CHANGES = {
    "a change": ("UPDATE {audit} SET actor = 'eve' WHERE seq = 3", 3, "changed"),
    "a change of the time": ("UPDATE {audit} SET at = at + 1 WHERE seq = 3", 3, "changed"),
    "a change of details": ("UPDATE {audit} SET details = '{\"n\":9}' WHERE seq = 3", 3, "changed"),
    "what is no JSON": ("UPDATE {audit} SET details = 'x' WHERE seq = 3", 3, "changed"),
    "a removal": ("DELETE FROM {audit} WHERE seq = 3", 3, "missing"),
    "a removal at the begin": ("DELETE FROM {audit} WHERE seq <= 2", 1, "no prune accounts"),
    "an exchange": (
        "UPDATE {audit} SET seq = CASE seq WHEN 3 THEN 104 WHEN 4 THEN 103 ELSE seq END;"
        "UPDATE {audit} SET seq = seq - 100 WHERE seq > 100",
        3,
        "does not follow",
    ),
    "a new hash": ("UPDATE {audit} SET hash = previous WHERE seq = 3", 3, "changed"),
}
REFUSED = [
    "UPDATE {audit} SET actor = 'eve' WHERE seq = 3",
    "DELETE FROM {audit} WHERE seq = 6",
    "DELETE FROM {audit}",
]


class Intruder:
    """An attacker with the store owner's rights: on statements, and on triggers."""

    def __init__(self, place: str) -> None:
        self.is_postgres = place.startswith("postgres")
        self.place = place

    def run(self, sql: str) -> None:
        if not self.is_postgres:
            connection = sqlite3.connect(self.place)
            try:
                connection.executescript(sql.replace("{audit}", "audit"))
            finally:
                connection.close()
            return
        address = Address.of(self.place)
        with psycopg.connect(address.conninfo, autocommit=True) as connection:
            connection.execute(sql.replace("{audit}", f"{address.schema}.audit").encode())

    def disarm(self) -> None:
        if self.is_postgres:
            self.run("ALTER TABLE {audit} DISABLE TRIGGER ALL")
        else:
            for name in ("in_order", "unchanged", "kept"):
                self.run(f"DROP TRIGGER audit_{name}")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service)])
async def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Intruder]:
    if request.param == "sqlite":
        url, place = f"sqlite:///{tmp_path / 'tasks.db'}", str(tmp_path / "tasks.db")
    else:
        url = place = request.getfixturevalue("postgres_url")
    admin = open_admin(url)
    admin.migrate()
    admin.append_audit([entry(details={"n": n}) for n in range(6)])
    return url, Intruder(place)


def problems(url: str, *anchors: str) -> list[tuple[int, str]]:
    with open_admin(url).audit() as reading:
        result = verify(reading.chain(), [Anchor.of(each) for each in anchors])
    return [(each.seq, each.text) for each in result.problems]


@pytest.mark.parametrize("sql", REFUSED)
async def test_statements_that_change_the_audit_are_refused(
    attacked: tuple[str, Intruder], sql: str
) -> None:
    url, intruder = attacked
    with pytest.raises((sqlite3.Error, psycopg.Error), match="append-only"):
        intruder.run(sql)
    assert problems(url) == []


@pytest.mark.parametrize("what", CHANGES)
async def test_what_an_intruder_changes_shows_with_its_place(
    attacked: tuple[str, Intruder], what: str
) -> None:
    url, intruder = attacked
    sql, seq, text = CHANGES[what]
    intruder.disarm()
    intruder.run(sql)
    found = problems(url)
    assert found[0][0] == seq
    assert text in found[0][1]


async def test_a_missing_end_shows_with_an_anchor(attacked: tuple[str, Intruder]) -> None:
    url, intruder = attacked
    admin = open_admin(url)
    with admin.audit() as reading:
        last = reading.last()
    assert last is not None
    intruder.disarm()
    intruder.run("DELETE FROM {audit} WHERE seq >= 5")
    assert problems(url) == []  # nothing in the store shows it
    [(seq, text)] = problems(url, last.anchor)
    assert (seq, "the end is missing" in text) == (5, True)
    admin.append_audit([entry(), entry(), entry()])
    [(seq, text)] = problems(url, last.anchor)
    assert (seq, "another line" in text) == (6, True)


async def test_a_forged_prune_shows_with_an_anchor(attacked: tuple[str, Intruder]) -> None:
    url, _ = attacked
    admin = open_admin(url)
    with admin.audit() as reading:
        third = [*reading.chain()][2]
    admin.prune_audit(pruning(2**60))
    assert problems(url) == []
    [(seq, text)] = problems(url, third.anchor)
    assert (seq, "was pruned" in text) == (3, True)


async def test_a_store_says_what_it_migrated(tmp_path: Path) -> None:
    store = SqliteTaskStore(tmp_path / "tasks.db")
    await store.open(lambda records: None)
    assert "7 audit" in store.migrated
    await store.close()
    await store.open(lambda records: None)
    assert list(store.migrated) == []
    await store.close()


# -- the verifier detects and locates every change of a chain --------------------------------------


TEXTS = st.text(max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ENTRIES = st.builds(
    AuditEntry,
    kind=TEXTS,
    at=st.integers(1, 2**50),
    actor=TEXTS,
    issuer=TEXTS,
    subject=TEXTS,
    details=st.dictionaries(TEXTS, VALUES, max_size=4),
)
CHAINS = st.lists(ENTRIES, min_size=3, max_size=8).map(lambda given: lines_after(None, given, 1))
FIELDS = ("at", "kind", "actor", "issuer", "subject", "previous", "hash", "details", "id")


@pytest.mark.slow
@given(CHAINS)
def test_a_chain_as_it_was_made_is_intact(lines: list[AuditLine]) -> None:
    result = verify(lines, [Anchor.of(line.anchor) for line in lines])
    assert result.is_intact
    assert result.anchor == lines[-1].anchor
    assert [line_in(json.loads(text_of(line))) for line in lines] == lines


@pytest.mark.slow
@given(CHAINS, st.data())
def test_a_changed_line_shows(lines: list[AuditLine], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(lines) - 1))
    field = data.draw(st.sampled_from(FIELDS))
    before = getattr(lines[at], field)
    others: dict[str, Any] = {"at": before + 1 if field == "at" else 0}
    after = others.get(field, {"x": "y"} if field == "details" else f"{before}x")
    changed = [*lines[:at], replace(lines[at], **{field: after}), *lines[at + 1 :]]
    result = verify(changed)
    assert lines[at].seq in [problem.seq for problem in result.problems]


@pytest.mark.slow
@given(CHAINS, st.data())
def test_a_removed_line_shows(lines: list[AuditLine], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(lines) - 1))
    left = lines[:at] + lines[at + 1 :]
    result = verify(left, [Anchor.of(lines[-1].anchor)])
    assert lines[at].seq in [problem.seq for problem in result.problems]


@pytest.mark.slow
@given(CHAINS, st.data())
def test_reordered_lines_show(lines: list[AuditLine], data: st.DataObject) -> None:
    moved = data.draw(st.permutations(lines))
    renumbered = [replace(line, seq=n) for n, line in enumerate(moved, 1)]
    assert verify(moved).is_intact == (moved == lines)
    assert verify(renumbered).is_intact == (moved == lines)


@pytest.mark.slow
@given(CHAINS, st.data())
def test_lines_that_are_written_anew_show_with_an_anchor(
    lines: list[AuditLine], data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(lines) - 1))
    head = (lines[at - 1].seq, lines[at - 1].hash)
    forged = lines_after(head, [replace_actor(line) for line in lines[at:]], 1)
    assert verify([*lines[:at], *forged]).is_intact
    result = verify([*lines[:at], *forged], [Anchor.of(lines[-1].anchor)])
    assert not result.is_intact


def replace_actor(line: AuditLine) -> AuditEntry:
    names = AuditEntry.__struct_fields__
    return AuditEntry(**{name: getattr(line, name) for name in names} | {"actor": "someone else"})


@pytest.mark.slow
@given(CHAINS, st.data())
def test_a_begin_without_a_checkpoint_that_fits_shows(
    lines: list[AuditLine], data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(lines) - 1))
    by = AuditEntry(kind="")
    prune = AuditPrune(before=1, by=by)
    head = (lines[-1].seq, lines[-1].hash)
    fitting = lines_after(head, [checkpoint(prune, lines[at - 1], at)], 1)
    assert verify([*lines[at:], *fitting]).is_intact
    assert not verify(lines[at:]).is_intact
    forged = replace(lines[at - 1], hash="0" * 64)
    other = lines_after(head, [checkpoint(prune, forged, at)], 1)
    assert not verify([*lines[at:], *other]).is_intact


def test_a_decision_in_a_log_is_a_fact_with_its_caller() -> None:
    decision = b'{"action":"read","resource":"r","allowed":false,"caller":{"id":"bob"}}'
    step = StepResult(key="authorize:1", value=Raw(decision))
    fact = fact_of(LoggedEvent("t", 2, 1, RecordKind.REMEMBERED, b"", step, 5, 1), "ada")
    assert fact == AuditEntry(
        id="task:t:2.1", kind="policy.decided", at=5, issuer="", actor="bob", subject="t",
        outcome="denied", details={"turn": 1, "action": "read", "resource": "r"},
    )  # fmt: skip


def test_the_faults_of_a_chain_come_in_the_order_of_its_lines() -> None:
    lines = lines_after(None, [AuditEntry(kind="a")] * 4, 1)
    given = [lines[2], replace(lines[3], actor="x")]
    found = verify(given, [Anchor(9, GENESIS)])
    assert (found.lines, found.first, found.anchor) == (2, 3, given[1].anchor)
    assert [(each.seq, each.text.split(":")[0]) for each in found.problems] == [
        (1, "lines 1 to 2 missing, and no prune accounts for it"),
        (4, "was changed"),
        (5, "the end is missing"),
    ]
    first = verify([replace(lines[0], previous="1" * 64)])
    assert [each.seq for each in first.problems] == [1, 1]


@pytest.mark.slow
@settings(max_examples=200)
@given(ENTRIES)
def test_lines_have_the_canonical_form_of_rfc_8785(entry: AuditEntry) -> None:
    rfc8785 = pytest.importorskip("rfc8785")
    [line] = lines_after(None, [entry], 1)
    fields = asdict(line)
    assert canonical(fields) == rfc8785.dumps(fields)
    del fields["hash"]
    assert line.hash == hash_of(line) == hashlib.sha256(rfc8785.dumps(fields)).hexdigest()
    assert json.loads(line_columns(line)["details"]) == line.details


def test_a_line_of_an_export_has_its_fields_and_no_others() -> None:
    [line] = lines_after(None, [AuditEntry(kind="a")], 1)
    document = json.loads(text_of(line))
    for changed in ({**document, "more": 1}, {**document, "seq": "1"}, [], {"seq": 1}):
        with pytest.raises(ValueError, match="not a line"):
            line_in(changed)
