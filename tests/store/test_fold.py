"""What events make of a task."""

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
from tests.kit.records import chunk, message, received, status, task, turn_started

STATES = [state for state in TaskState if state is not TaskState.UNSPECIFIED]
TERMINAL = [state for state in STATES if state.is_terminal]


def folded(*events: Any) -> Task:
    return fold([task("t"), *events])


def refused(*events: Any, strict: bool = False) -> str:
    """Fold all but the last event, and return why that is refused; it changes nothing."""
    folding = Fold(strict=strict)
    for event in events[:-1]:
        folding.apply(event)
    before = folding.task if events[:-1] else None
    with pytest.raises(IllegalEvent) as refusal:
        folding.apply(events[-1])
    assert before is None or folding.task == before
    return str(refusal.value)


@pytest.mark.parametrize(
    "event", [status("t", TaskState.WORKING), chunk("t", "a"), received("a"), turn_started(1)]
)
def test_a_log_begins_with_its_task(event: Any) -> None:
    assert "begins with its Task" in refused(event)


def test_a_task_does_not_begin_unspecified() -> None:
    assert "TASK_STATE_SUBMITTED" in refused(task("t", TaskState.UNSPECIFIED))


def test_an_empty_fold_has_no_task_and_no_state() -> None:
    assert Fold().state is None
    with pytest.raises(IllegalEvent):
        _ = Fold().task


def test_a_log_has_one_task() -> None:
    assert "has its Task" in refused(task("t"), task("t"))


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


@pytest.mark.parametrize("before", [state for state in STATES if not state.is_terminal])
@pytest.mark.parametrize("after", list(TaskState))
def test_a_task_enters_every_state_but_submitted_and_unspecified(
    before: TaskState, after: TaskState
) -> None:
    if after in (TaskState.SUBMITTED, TaskState.UNSPECIFIED):
        assert after.value in refused(task("t", before), status("t", after))
    else:
        assert fold([task("t", before), status("t", after)]).state is after


def test_an_event_of_another_task_is_refused() -> None:
    assert "other" in refused(task("t"), status("other", TaskState.WORKING))
    assert "other" in refused(task("t"), chunk("other", "a"))


def test_a_status_message_that_is_replaced_joins_the_history() -> None:
    made = folded(
        status("t", TaskState.WORKING, "one"),
        status("t", TaskState.WORKING),
        status("t", TaskState.COMPLETED, "two"),
    )
    assert [m.text for m in made.history] == ["hello", "one"]
    assert made.status.message == message("two")


def test_a_turn_puts_what_was_asked_and_answered_into_the_history_in_order() -> None:
    made = folded(
        status("t", TaskState.INPUT_REQUIRED, "which?"), turn_started(2, "this", "and that")
    )
    assert [m.text for m in made.history] == ["hello", "which?", "this", "and that"]
    assert made.state is TaskState.INPUT_REQUIRED
    assert made.status.message is None


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


def test_pieces_of_a_text_are_one_part_and_an_empty_piece_is_none() -> None:
    def piece(*parts: Part) -> Any:
        made = chunk("t", "")
        return msgspec.structs.replace(
            made,
            artifact=msgspec.structs.replace(made.artifact, parts=parts),
            metadata={CONTINUES: True},
        )

    markdown, data = Part(text="d", media_type="text/markdown"), Part(data={})
    made = folded(
        chunk("t", "", append=False),
        *(piece(Part(text=text)) for text in ("", "a", "", "b")),
        chunk("t", "c"),
        piece(markdown),
        piece(markdown),
        chunk("t", "x"),
        piece(Part(text="y"), data),
        piece(Part(text="")),
        piece(Part(raw=b"")),
        piece(Part(text="z")),
    )
    assert made.artifacts[0].parts == (
        *(Part(text="ab"), Part(text="c"), Part(text="dd", media_type="text/markdown")),
        *(Part(text="xy"), data, Part(text="z")),
    )
    assert folded(chunk("t", "", append=False), piece(data)).artifacts[0].parts == (data,)


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


def test_what_others_send_may_append_to_nothing_and_after_the_end() -> None:
    made = folded(chunk("t", "a", last=True), chunk("t", "b"))
    assert [a.text for a in made.artifacts] == ["ab"]


def test_our_own_agents_may_not() -> None:
    assert "does not exist" in refused(task("t"), chunk("t", "a"), strict=True)
    whole = chunk("t", "a", append=False, last=True)
    assert "last chunk" in refused(task("t"), whole, chunk("t", "b"), strict=True)
    begun = chunk("t", "a", append=False)
    end = chunk("t", "b", last=True)
    assert "last chunk" in refused(task("t"), begun, end, chunk("t", "c"), strict=True)


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


def test_a_task_does_not_begin_with_two_artifacts_of_one_id() -> None:
    twice = (Artifact(artifact_id="a", parts=()), Artifact(artifact_id="a", parts=()))
    begun = msgspec.structs.replace(task("t"), artifacts=twice)
    with pytest.raises(IllegalEvent, match="is there twice"):
        Fold().apply(begun)
