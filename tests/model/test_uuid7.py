"""Identifiers: unique, in order, and of the form that they claim."""

from __future__ import annotations

import threading
import uuid

from parley.model.ids import MAX_CLOCK_STEP, milliseconds_of, new_id


def test_ids_are_uuids_of_version_7_in_order() -> None:
    made = [new_id() for _ in range(20_000)]  # several times what a millisecond has numbers for
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(len(one) == 32 for one in made)
    parsed = uuid.UUID(made[0])
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)


def test_the_moment_in_an_id_is_the_one_that_was_given() -> None:
    moments = [5_000, 5_000, 4_000, 10_000, 10_000 + MAX_CLOCK_STEP, 9_000]
    made = [new_id(at) for at in moments]
    # A clock that is set back a little is waited for, by far it is not.
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
