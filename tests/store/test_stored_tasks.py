"""The JSON of a task, joined from stored pieces, and lists of tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from parley.model.parts import Artifact, Message, Part
from parley.model.struct import encode
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.store.events import Scope, TurnStarted
from parley.store.fold import CONTINUES, Fold, fold
from parley.store.memory import MemoryTaskStore
from parley.store.postgres.store import PostgresTaskStore
from parley.store.protocols.task_log import TaskPage, TaskQuery, TaskRecord
from parley.store.snapshot import StoredTask
from parley.store.sqlite.store import SqliteTaskStore
from parley.store.task_store import TaskStore
from tests.kit.records import SCOPE, addition, chunk, creation, status, status_of, task
from tests.kit.strategies import json_objects, texts, value_of

pytestmark = pytest.mark.anyio


OPEN = [state for state in TaskState if not state.is_terminal][2:]
IDS = st.sampled_from(["one", "zwei ☃", "\x1e\n\u2028"])

statuses = st.builds(
    lambda state, message, at: replace(status_of(state, at=at), message=message),
    st.sampled_from(OPEN),
    st.none() | value_of(Message),
    st.integers(-62135596800000, 253402300799999),
)
artifacts = st.builds(
    lambda artifact, id: replace(artifact, artifact_id=id), value_of(Artifact), IDS
)
tasks = st.builds(
    lambda context_id, status, artifacts, history, metadata: Task(
        id="-", context_id=context_id, status=status, artifacts=artifacts, history=history,
        metadata=metadata,
    ),
    texts.map(lambda context_id: context_id.replace("\0", "")),  # the server rejects it
    statuses,
    st.lists(artifacts, max_size=2, unique_by=lambda artifact: artifact.artifact_id),
    st.lists(value_of(Message), max_size=3),
    st.none() | json_objects,
)  # fmt: skip
events = st.one_of(
    st.builds(
        lambda artifact, append: TaskArtifactUpdateEvent(
            task_id="-", context_id="c", artifact=artifact, append=append
        ),
        artifacts,
        st.booleans(),
    ),
    st.builds(
        lambda texts, media_type, id, append: TaskArtifactUpdateEvent(
            task_id="-",
            context_id="c",
            artifact=Artifact(
                artifact_id=id, parts=[Part(text=each, media_type=media_type) for each in texts]
            ),
            append=append,
            metadata={CONTINUES: True},
        ),
        st.lists(texts | st.just(""), min_size=1, max_size=2),
        st.sampled_from(["", "text/markdown"]),
        IDS,
        st.sampled_from([True, True, True, False]),
    ),
    st.builds(lambda s: TaskStatusUpdateEvent(task_id="-", context_id="c", status=s), statuses),
    st.builds(
        lambda said: TurnStarted(turn=1, messages=tuple(said)),
        st.lists(value_of(Message), max_size=2),
    ),
)
appends = st.lists(st.tuples(st.lists(events, min_size=1, max_size=3), st.booleans()), max_size=4)
"""The events of further appends; the boolean also stores the missing parts of artifacts."""


class Opened:
    """An open store, used from a test that is not async."""

    def __init__(self, store: TaskStore) -> None:
        self.store = store
        self.runner = asyncio.Runner()
        self.count = 0
        self.runner.run(store.open(lambda _: None))

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()

    def write(self, first: Task, more: Sequence[tuple[Sequence[Any], bool]]) -> Task:
        """Write a log; return the fold of its events, computed without the store."""
        self.count += 1
        id = f"task {self.count:03}"
        first = replace(first, id=id)
        folding, written = Fold(), [first]
        folding.apply(first)

        async def work() -> None:
            made = creation(id, first=first, artifacts=folding.take_unsaved())
            seq = await self.store.append(
                msgspec.structs.replace(made, context_id=first.context_id)
            )
            for group, saves in more:
                named = [replace(e, task_id=id) if hasattr(e, "task_id") else e for e in group]
                for event in named:
                    folding.apply(event)
                kept = folding.take_unsaved() if saves else None
                seq = await self.store.append(addition(id, seq, *named, artifacts=kept))
                written.extend(named)

        self.runner.run(work())
        return fold(written)

    def load(self, id: str, **options: Any) -> TaskRecord:
        record = self.runner.run(self.store.load(id, **options))
        assert record is not None
        return record


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    store: TaskStore
    if request.param == "memory":
        store = MemoryTaskStore()
    elif request.param == "sqlite":
        store = SqliteTaskStore(tmp_path / "tasks.db", synchronous="OFF")
    else:
        store = PostgresTaskStore(request.getfixturevalue("postgres_url"))
    opened = Opened(store)
    yield opened
    opened.close()


def shown(whole: Task, length: int | None, has_artifacts: bool) -> Task:
    """Return a task in the form for callers."""
    history = whole.history if length is None else whole.history[-length:] if length else ()
    return replace(whole, history=history, artifacts=whole.artifacts if has_artifacts else ())


def assert_is(stored: StoredTask, expected: Task) -> None:
    """Check that the joined pieces equal the encoder's JSON of a task, and decode to it."""
    assert json.loads(stored.json()) == json.loads(encode(expected))
    assert stored.task() == expected


def check(opened: Opened, whole: Task) -> None:
    for length in (None, 0, 1, 2, 99):
        for has_artifacts in (True, False):
            record = opened.load(whole.id, history=length, artifacts=has_artifacts)
            assert_is(record.stored, shown(whole, length, has_artifacts))
            query = TaskQuery(
                scope=SCOPE, context_id=whole.context_id, history=length, artifacts=has_artifacts
            )
            if whole.context_id == "listed":
                listed = opened.runner.run(opened.store.list(query)).stored[0]
                assert_is(listed, shown(whole, length, has_artifacts))


@pytest.mark.slow
@settings(
    max_examples=20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(first=tasks, more=appends)
def test_the_pieces_of_any_task_are_the_task(
    opened: Opened, first: Task, more: Sequence[tuple[Sequence[Any], bool]]
) -> None:
    check(opened, opened.write(first, more))


@pytest.mark.L4
def test_an_empty_text_after_other_parts_removes_none_of_them(opened: Opened) -> None:
    """An empty text gives way to the text that follows it only as the sole part of an artifact."""
    first = Task(
        id="-",
        context_id="",
        status=status_of(TaskState.WORKING, at=0),
        artifacts=(Artifact(artifact_id="one", parts=(Part(raw=b"x"),)),),
    )

    def continuing(*texts: str, media_type: str = "") -> TaskArtifactUpdateEvent:
        parts = tuple(Part(text=text, media_type=media_type) for text in texts)
        artifact = Artifact(artifact_id="one", parts=parts)
        return TaskArtifactUpdateEvent(
            task_id="-", context_id="c", artifact=artifact, append=True, metadata={CONTINUES: True}
        )

    updates = [continuing("", ""), continuing("0", media_type="text/markdown")]
    check(opened, opened.write(first, [(updates, False)]))
    check(opened, opened.write(first, [(updates[:1], True), (updates[1:], False)]))
    both = Artifact(artifact_id="one", parts=(Part(raw=b"x"), Part(text="")))
    check(opened, opened.write(replace(first, artifacts=(both,)), [(updates[1:], False)]))


def nested(depth: int) -> Any:
    value: Any = "☃"
    for _ in range(depth):
        value = {"<": [value]}
    return value


def test_what_a_tail_changes_is_the_fold_of_all_chunks(opened: Opened) -> None:
    """A chunk may add to an artifact, change its head, replace it, or begin one (FIELD rule 6)."""
    saved = chunk("-", "a", append=False, artifact_id="kept", metadata={"x": 1, "y": 1})
    tail = [
        chunk("-", "b", artifact_id="kept", name="named", metadata={"y": 2}, extensions=("e",)),
        chunk("-", "c", artifact_id="unknown"),
        chunk("-", "d", append=False, artifact_id="kept", description="anew"),
        chunk("-", "e", artifact_id="kept", name="late", last=True),
        status("-", TaskState.INPUT_REQUIRED, "?"),
        chunk("-", "f", artifact_id="unknown", name="known"),
    ]
    for end in range(len(tail) + 1):
        whole = opened.write(task("-"), [([saved], True), (tail[:end] or [saved], False)])
        check(opened, whole)
        changed = {each.artifact.artifact_id for each in tail[:end] if hasattr(each, "artifact")}
        assert opened.load(whole.id).unsaved == (changed or {"kept"})


# -- selection and order of listed tasks -----------------------------------------------------------


def ids(page: TaskPage) -> list[str]:
    return [task.id for task in page.tasks]


async def listed(store: TaskStore, **query: Any) -> TaskPage:
    return await store.list(TaskQuery(**{"scope": SCOPE, **query}))


async def test_pages_follow_one_another_without_gap_or_repetition(store: TaskStore) -> None:
    names = [f"t{n:02}" for n in range(25)]
    for name in names:
        await store.append(creation(name, at=1000 + int(name[1:]) // 4))
    found: list[str] = []
    before = None
    while True:
        page = await listed(store, limit=4, before=before)
        assert page.total == 25
        found += ids(page)
        assert page.more == (len(found) < 25)
        if not page.more:
            break
        last = page.tasks[-1]
        assert last.status.timestamp is not None
        before = (last.status.timestamp.milliseconds, last.id)
    assert found == names[::-1]


async def test_a_walk_is_bounded_to_what_was_there_when_it_began(store: TaskStore) -> None:
    for n in range(4):
        await store.append(creation(f"t{n}", at=n))
    first = await listed(store, limit=2, not_after=3)
    assert (ids(first), first.total) == (["t3", "t2"], 4)
    await store.append(creation("new", at=9))
    await store.append(addition("t3", 1, status("t3", TaskState.WORKING, at=10)))
    rest = await listed(store, limit=2, not_after=3, before=(2, "t2"))
    assert (ids(rest), rest.more) == (["t1", "t0"], False)


async def test_lists_can_be_narrowed(store: TaskStore) -> None:
    await store.append(creation("a", at=1, context_id="one"))
    await store.append(creation("b", at=2, context_id="one"))
    await store.append(creation("c", at=3, context_id="two"))
    await store.append(addition("b", 1, status("b", TaskState.WORKING, at=4)))
    assert ids(await listed(store, context_id="one")) == ["b", "a"]
    assert ids(await listed(store, state=TaskState.SUBMITTED)) == ["c", "a"]
    page = await listed(store, status_after=3)
    assert (ids(page), page.total, page.more) == (["b", "c"], 2, False)
    page = await listed(store, context_id="one", state=TaskState.SUBMITTED, status_after=1, limit=1)
    assert (ids(page), page.total, page.more) == (["a"], 1, False)
    page = await listed(store, context_id="one", limit=1)
    assert (ids(page), page.total, page.more) == (["b"], 2, True)
    page = await listed(store, context_id="one", limit=1, before=(4, "b"))
    assert (ids(page), page.total, page.more) == (["a"], 2, False)
    assert ids(await listed(store, context_id="none")) == []


@pytest.mark.parametrize("field", ["agent", "tenant", "owner"])
async def test_nothing_is_found_outside_its_scope(store: TaskStore, field: str) -> None:
    other = msgspec.structs.replace(SCOPE, **{field: "other"})
    await store.append(creation("mine", context_id="c"))
    await store.append(creation("theirs", scope=other, context_id="c"))
    for query in ({}, {"context_id": "c"}):
        page = await listed(store, **query)
        assert (ids(page), page.total) == (["mine"], 1)
        page = await listed(store, scope=other, **query)
        assert (ids(page), page.total) == (["theirs"], 1)
    assert (await listed(store, scope=Scope("nobody"))).total == 0
