"""Callers, timestamps, ids, retry delays, articles, and repeated work."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import uuid
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.backoff import Backoff
from parley.model.bounded import Bounded
from parley.model.concurrency import Done, KeyedLocks, Periodic, outcome_of
from parley.model.errors import an
from parley.model.ids import MAX_CLOCK_STEP, may_be_name, milliseconds_of, new_id
from parley.model.service import ANONYMOUS, Caller, caller_of
from parley.model.struct import Timestamp
from tests.kit.strategies import timestamps
from tests.kit.waiting import until

pytestmark = pytest.mark.anyio


NAMES = st.text(st.characters(exclude_categories=["Cs"])).filter(may_be_name)
CALLERS = st.builds(Caller, id=NAMES.filter(bool), issuer=NAMES, authenticated=st.booleans())


def test_nobody_is_owner_of_nothing() -> None:
    assert ANONYMOUS.owner == Caller(authenticated=True).owner == ""
    assert caller_of("") == ANONYMOUS


@pytest.mark.slow
@given(CALLERS, CALLERS)
def test_an_owner_is_one_caller_alone(one: Caller, other: Caller) -> None:
    assert (one.owner == other.owner) == (one == other)


@pytest.mark.slow
@given(CALLERS)
def test_an_owner_says_who_it_is(caller: Caller) -> None:
    assert caller_of(caller.owner) == caller


def test_claims_do_not_make_another_caller() -> None:
    bob = Caller(id="bob", authenticated=True, claims={"team": "a"})
    assert bob.owner == Caller(id="bob", authenticated=True).owner


def test_a_name_has_no_control_characters() -> None:
    for wrong in (*map(chr, range(0x20)), "\x7f"):
        assert not may_be_name(f"b{wrong}ob")
    for right in ("bob", "", "https://login.example/a b", "Zoë", "a\u2028b", "x" * 512):
        assert may_be_name(right)
    assert not may_be_name("x" * 513)


# -- timestamps are in UTC and whole milliseconds, whatever the input ------------------------------


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.000Z"),
        ("2026-01-31T12:00:00.1Z", "2026-01-31T12:00:00.100Z"),
        ("2026-01-31T12:00:00.123456789Z", "2026-01-31T12:00:00.123Z"),
        ("2026-01-31T12:00:00.999999999Z", "2026-01-31T12:00:00.999Z"),
        ("2026-01-31T12:00:00+05:30", "2026-01-31T06:30:00.000Z"),
        ("2026-01-31T12:00:00.5-00:00", "2026-01-31T12:00:00.500Z"),
        ("2026-01-31t12:00:00.1z", "2026-01-31T12:00:00.100Z"),
        ("2026-01-31t12:00:00+05:30", "2026-01-31T06:30:00.000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000Z"),
        ("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_timestamp_of_any_offset_and_precision_is_read(text, written):
    assert str(Timestamp.parse(text)) == written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-01-31 12:00:00Z",
        "20260131T120000Z",
        "2026-W05-6T12:00:00Z",
        "2026-02-30T12:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00.0123456789Z",
        "2026-01-31T12:00:00+24:00",
        "2026-01-31T12:00:00+0100",
        "２026-01-31T12:00:00Z",
        " 2026-01-31T12:00:00Z",
        "x" * 100_000,
    ],
)
def test_what_is_no_timestamp_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="not a timestamp such as 2026") as e:
        Timestamp.parse(text)
    assert len(str(e.value)) < 120


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-01:00"])
def test_a_moment_that_falls_out_of_the_calendar_in_utc_is_refused(text):
    with pytest.raises(ValueError, match="no counterpart in UTC"):
        Timestamp.parse(text)


@given(timestamps)
def test_a_timestamp_survives_its_text_and_its_milliseconds(moment):
    assert Timestamp.parse(str(moment)) == moment
    assert Timestamp.from_milliseconds(moment.milliseconds) == moment
    assert type(Timestamp.from_milliseconds(moment.milliseconds)) is Timestamp


@given(st.datetimes(min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1)))
def test_a_datetime_in_any_zone_is_the_same_moment(naive):
    moment = naive.replace(tzinfo=timezone(timedelta(hours=5, minutes=45)))
    stamp = Timestamp.of(moment)
    assert stamp.tzinfo is UTC
    assert timedelta(0) <= moment - stamp < timedelta(milliseconds=1)


def test_a_datetime_without_a_zone_is_refused_with_what_to_use():
    with pytest.raises(ValueError, match=r"use datetime\.now\(timezone\.utc\)"):
        Timestamp.of(datetime(2026, 1, 31))


def test_now_is_in_utc_and_whole_milliseconds():
    now = Timestamp.now()
    assert now.tzinfo is UTC
    assert now.microsecond % 1000 == 0
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)


def test_a_timestamp_moved_to_another_zone_is_still_written_in_utc():
    moved = Timestamp.parse("2026-01-31T12:00:00Z").astimezone(timezone(timedelta(hours=2)))
    assert str(moved) == "2026-01-31T12:00:00.000Z"


# -- identifiers: unique, ordered, and of the claimed form -----------------------------------------


def test_ids_are_uuids_of_version_7_in_order() -> None:
    made = [new_id() for _ in range(20_000)]  # several times the number of ids per millisecond
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(len(one) == 32 for one in made)
    parsed = uuid.UUID(made[0])
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)


def test_the_moment_in_an_id_is_the_one_that_was_given() -> None:
    moments = [5_000, 5_000, 4_000, 10_000, 10_000 + MAX_CLOCK_STEP, 9_000]
    made = [new_id(at) for at in moments]
    # After a small step back of the clock, ids wait for it; after a large one they do not.
    assert [milliseconds_of(one) for one in made] == [
        5_000,
        5_000,
        5_000,
        10_000,
        10_000 + MAX_CLOCK_STEP,
        9_000,
    ]
    assert made[:5] == sorted(made[:5])
    assert milliseconds_of(new_id()) > milliseconds_of(made[4])


def test_threads_do_not_make_the_same_id() -> None:
    made: list[list[str]] = [[] for _ in range(4)]

    def make(mine: list[str]) -> None:
        mine.extend(new_id() for _ in range(5_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for mine in made for one in mine}) == 20_000


# -- retry delays ----------------------------------------------------------------------------------


def test_delays_grow_from_the_first_to_the_longest() -> None:
    delays = [Backoff(0.1, 5.0).delay(failures) for failures in range(1, 9)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
    slow = Backoff(2.0, 6.0, factor=1.2)
    assert [slow.delay(failures) for failures in (1, 2, 40)] == pytest.approx([2.0, 2.4, 6.0])


def test_a_row_of_failures_may_be_very_long() -> None:
    assert Backoff(0.1, 5.0).delay(10**9) == 5.0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked there")
def test_forked_processes_draw_other_numbers() -> None:
    """Otherwise all workers of one process would retry at the same time."""
    program = (
        "import os\n"
        "from parley.model.backoff import uniform\n"
        "for _ in range(3):\n"
        "    if not (child := os.fork()):\n"
        "        os.write(1, f'{uniform(0, 1)}\\n'.encode())\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )  # a process without threads, unlike this test's process
    drawn = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    assert len({*drawn.split()}) == 3


# -- the article of a noun in a message ------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "an EVENT", "a RESPONSE", "a HEARTBEAT", "an ERROR", "an int", "an AgentCard", "a list",
        "an hour", "a minute", "a URL", "a UUID", "a UserDict", "a Union", "an Unset", "a NoneType",
        "an OPTIONS", "an unspecified",
    ],
)  # fmt: skip
def test_a_noun_has_the_article_of_its_first_sound(words: str) -> None:
    assert an(words.partition(" ")[2]) == words


# -- work that repeats, and work that excludes other work; maps with room for a number of
# -- entries ---------------------------------------------------------------------------------------


log = logging.getLogger("parley.test")


def test_the_entry_that_was_set_longest_ago_goes_first() -> None:
    kept: Bounded[str, int] = Bounded(2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    kept["c"] = 4
    assert kept == {"a": 3, "c": 4}
    assert kept.setdefault("d", 5) == 5
    assert list(kept) == ["c", "d"]


def test_an_entry_that_is_used_stays() -> None:
    kept: Bounded[str, int] = Bounded(2)
    kept["a"], kept["b"] = 1, 2
    assert kept.use("a") == 1
    assert kept.use("x") is None
    kept["c"] = 3
    assert list(kept) == ["a", "c"]


async def test_failures_end_no_repetition_and_an_expected_one_is_a_single_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = 0
    enough = asyncio.Event()

    async def step() -> None:
        nonlocal calls
        calls += 1
        if calls in (1, 2, 5):
            raise OSError("away")
        if calls == 3:
            raise ValueError("a fault")
        if calls > 5:
            enough.set()

    periodic = Periodic("sweeping", step, 0, log=log, expected=OSError)
    periodic.start()
    periodic.start()
    await asyncio.wait_for(enough.wait(), 5)
    await periodic.stop()
    await periodic.stop()
    assert not periodic.is_running
    told = [record.getMessage() for record in caplog.records if record.name == log.name]
    assert told == ["sweeping: away", "sweeping failed", "sweeping: away"]


async def test_a_step_that_has_more_to_do_is_called_again_at_once() -> None:
    left = [True, True, False]
    done = asyncio.Event()

    async def step() -> bool:
        more = left.pop(0)
        if not more:
            done.set()
        return more

    periodic = Periodic("emptying", step, 3600, log=log)
    periodic.start()
    await asyncio.wait_for(done.wait(), 5)
    await periodic.stop()
    assert left == []


async def test_a_lock_that_is_not_held_takes_no_memory() -> None:
    locks = KeyedLocks()
    async with locks.of("a"):
        assert locks.of("a").locked()
        assert not locks.of("b").locked()
    gc.collect()
    assert len(locks._locks) == 0


@pytest.mark.parametrize("first", ["outcome", "cancellation"])
async def test_a_coroutine_that_its_caller_did_not_live_to_await_is_run_to_its_end(
    first: str,
) -> None:
    begun: list[Done] = []
    ended = asyncio.Event()

    async def outcome() -> None:
        ended.set()  # it would release the resources of the work

    waiting = asyncio.create_task(outcome_of(begun.append))
    await until(lambda: bool(begun))
    if first == "cancellation":
        waiting.cancel()
        await asyncio.wait([waiting])
    begun[0](outcome())
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    async with asyncio.timeout(10):
        await ended.wait()
