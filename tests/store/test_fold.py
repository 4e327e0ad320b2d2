"""Folding events into a task."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.model.parts import Artifact, Part
from parley.model.tasks import Task, TaskState
from parley.store.events import CancelRequested, StepResult
from parley.store.fold import CONTINUES, Fold, IllegalEvent, fold
from tests.kit.records import chunk, received, status, task, turn_started

STATES = [state for state in TaskState if state is not TaskState.UNSPECIFIED]
TERMINAL = [state for state in STATES if state.is_terminal]


def folded(*events: Any) -> Task:
    return fold([task("t"), *events])


def refused(*events: Any, strict: bool = False) -> str:
    """Fold all but the last event, and return why that one is rejected; it changes nothing."""
    folding = Fold(strict=strict)
    for event in events[:-1]:
        folding.apply(event)
    before = folding.task if events[:-1] else None
    with pytest.raises(IllegalEvent) as refusal:
        folding.apply(events[-1])
    assert before is None or folding.task == before
    return str(refusal.value)


@pytest.mark.parametrize("state", TERMINAL)
@pytest.mark.parametrize(
    "event",
    [
        status("t", TaskState.WORKING),
        chunk("t", "a"),
        task("t"),
        turn_started(2, "a"),
        received("a"),
        CancelRequested(),
    ],
)
@pytest.mark.L3
def test_nothing_follows_a_terminal_state(state: TaskState, event: Any) -> None:
    assert "terminal" in refused(task("t"), status("t", state), event)


def test_a_further_attempt_changes_nothing() -> None:
    before = folded(status("t", TaskState.WORKING, "one"))
    assert fold([turn_started(1)], before) == before


def test_records_that_wait_change_nothing() -> None:
    before = folded(status("t", TaskState.WORKING, "one"))
    notes = [received("a"), CancelRequested(), StepResult(key="k", value=b"1")]  # type: ignore[arg-type]
    assert fold(notes, before) == before


def test_an_artifact_grows_by_appended_parts() -> None:
    made = folded(
        chunk("t", "a", append=False, name="first", metadata={"x": 1, "y": 1}, extensions=("e",)),
        chunk("t", "b", name="second", description="said", metadata={"y": 2, "z": 2}),
        chunk("t", "c", extensions=("f", "e")),
    )
    assert made.artifacts == (
        Artifact(
            artifact_id="artifact",
            name="first",
            description="said",
            parts=(Part(text="a"), Part(text="b"), Part(text="c")),
            metadata={"x": 1, "y": 2, "z": 2},
            extensions=("e", "f"),
        ),
    )


def test_an_artifact_without_append_replaces_the_one_of_its_id_where_it_stands() -> None:
    made = folded(
        chunk("t", "a", append=False, artifact_id="one", name="old"),
        chunk("t", "b", append=False, artifact_id="two"),
        chunk("t", "c", append=False, artifact_id="one"),
    )
    assert [(a.artifact_id, a.name, a.text) for a in made.artifacts] == [
        ("one", "", "c"),
        ("two", "", "b"),
    ]


def test_a_finished_artifact_may_be_replaced_and_grow_again() -> None:
    folding = Fold(strict=True)
    for event in (
        task("t"),
        chunk("t", "a", append=False, last=True),
        chunk("t", "b", append=False),
        chunk("t", "c", last=True),
    ):
        folding.apply(event)
    assert folding.task.artifacts[0].text == "bc"


def test_a_task_that_was_handed_out_does_not_change() -> None:
    folding = Fold(task("t"))
    folding.apply(chunk("t", "a", append=False))
    before = folding.task
    folding.apply(chunk("t", "b"))
    folding.apply(status("t", TaskState.WORKING, "one"))
    assert before.artifacts[0].text == "a"
    assert folding.task is folding.task
    assert folding.task.artifacts[0].text == "ab"


artifact_ids = st.sampled_from(["one", "two", "three"])
texts = st.text(max_size=3)
changes = st.one_of(
    st.builds(
        lambda state, said: status("t", state, said),
        st.sampled_from([TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED]),
        texts,
    ),
    st.builds(
        lambda i, text, continues, append, last, name, meta: msgspec.structs.replace(
            chunk("t", text, artifact_id=i, append=append, last=last, name=name, metadata=meta),
            metadata={CONTINUES: True} if continues else None,
        ),
        artifact_ids,
        texts,
        st.booleans(),
        st.booleans(),
        st.booleans(),
        texts,
        st.none() | st.dictionaries(texts, st.integers(), min_size=1, max_size=2),
    ),
    st.builds(lambda words: turn_started(2, *words), st.lists(texts, max_size=2)),
    st.builds(received, texts),
)


@pytest.mark.slow
@given(st.lists(changes, max_size=20), st.data())
def test_a_task_and_the_events_after_it_make_the_same_as_all_of_them(
    events: list[Any], data: st.DataObject
) -> None:
    whole = folded(*events)
    cut = data.draw(st.integers(0, len(events)))
    assert fold(events[cut:], folded(*events[:cut])) == whole


@pytest.mark.slow
@given(st.lists(changes, max_size=20), st.sets(st.integers(0, 20)))
def test_looking_at_the_task_in_between_does_not_matter(events: list[Any], looks: set[int]) -> None:
    folding = Fold(task("t"))
    for n, event in enumerate(events):
        folding.apply(event)
        if n in looks:
            _ = folding.task
    assert folding.task == folded(*events)


def test_an_empty_chunk_adds_no_piece_to_the_stored_form() -> None:
    folding = Fold()
    pieces = []
    nothing = msgspec.structs.replace(chunk("t", ""), metadata={CONTINUES: True})
    for event in (task("t"), chunk("t", "x", append=False), nothing):
        folding.apply(event)
        pieces.append(len(folding.take_unsaved()))
    assert pieces == [0, 1, 0]
