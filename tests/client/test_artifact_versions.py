"""The versions of an artifact within a context, and the messages about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parley import (
    Agent,
    Artifact,
    ArtifactVersions,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    Turn,
)
from parley.model.struct import Timestamp
from tests.kit.servers import served

pytestmark = pytest.mark.anyio


def made(
    task_id: str,
    *artifacts: tuple[str, str],
    state: TaskState = TaskState.COMPLETED,
    about: Message | None = None,
    at: str = "",
    context_id: str = "c",
) -> Task:
    """A task with artifacts of these ids and names."""
    return Task(
        id=task_id,
        context_id=context_id,
        status=TaskStatus(state=state, timestamp=Timestamp.parse(at) if at else None),
        artifacts=tuple(
            Artifact(artifact_id=id, name=name, parts=(Part(text=task_id),))
            for id, name in artifacts
        ),
        history=(about,) if about is not None else (),
    )


def of(*tasks: Task) -> ArtifactVersions:
    versions = ArtifactVersions()
    for task in tasks:
        versions.add(task)
    return versions


def test_versions_are_counted_by_name() -> None:
    versions = of(
        made("t1", ("a", "boat.png"), ("b", "bill")),
        made("t2", ("a", "boat.png")),
        made("t3", ("x", "")),
    )
    assert versions.names == ("boat.png", "bill", "x")
    assert [(v.number, v.task_id) for v in versions.versions("boat.png")] == [(1, "t1"), (2, "t2")]
    latest = versions.latest("boat.png")
    assert latest is not None
    assert (latest.number, latest.artifact.text, latest.key) == (2, "t2", ("t2", "a"))
    assert versions.latest("car") is None
    assert versions.versions("car") == ()
    assert repr(latest) == "<version 2 of 'boat.png' by task t2>"


def test_the_next_message_is_about_the_latest() -> None:
    versions = of(made("t1", ("a", "boat.png")), made("t2", ("b", "boat.png")))
    message = versions.message("Make it red", "boat.png", metadata={"skill": "paint"})
    assert message.context_id == "c"
    assert message.task_id == ""
    assert message.reference_task_ids == ("t2",)
    assert message.metadata == {"skill": "paint"}
    assert message.parts == (
        Part(text="Make it red", metadata={"taskId": "t2", "artifactId": "b"}),
    )
    assert versions.references("boat.png") == ("t2",)


def test_a_message_may_be_about_several(tmp_path: Path) -> None:
    versions = of(made("t1", ("a", "boat.png"), ("b", "bill")), made("t2", ("c", "map")))
    names = ("boat.png", "bill", "map")
    message = versions.message("Put them together", *names, data={"in": "one"})
    assert message.reference_task_ids == ("t1", "t2")
    assert [part.metadata and part.metadata["artifactId"] for part in message.parts] == [*"abc"]
    assert [part.text for part in message.parts] == ["Put them together", None, "map"]
    assert versions.references(*names) == ("t1", "t2")


def test_an_accepted_version_is_the_base_until_a_newer_one_comes() -> None:
    versions = of(made("t1", ("a", "boat")), made("t2", ("a", "boat")))
    versions.accept(versions.versions("boat")[0])
    assert versions.references("boat") == ("t1",)
    latest = versions.latest("boat")
    assert latest is not None
    assert latest.task_id == "t2"
    versions.add(made("t3", ("a", "boat")))
    assert versions.references("boat") == ("t3",)
    versions.reject(("t3", "a"))
    assert versions.references("boat") == ("t1",)
    versions.reject(("t1", "a"))
    assert versions.references("boat") == ("t2",)


def test_a_predecessor_is_what_the_message_referred_to() -> None:
    versions = of(made("t1", ("a", "boat")), made("t2", ("a", "boat")))
    versions.accept(("t1", "a"))
    by_artifact = versions.message("Make it red", "boat")
    by_task = Message(
        message_id="m", role=Role.USER, parts=(Part(text="again"),), reference_task_ids=("t2",)
    )
    anew = Message(message_id="m", role=Role.USER, parts=(Part(text="Draw another"),))
    versions.add(made("t3", ("a", "boat"), about=by_artifact))
    versions.add(made("t4", ("a", "boat"), about=by_task))
    versions.add(made("t5", ("a", "boat"), about=anew))
    found = versions.versions("boat")
    before = [v.predecessor and v.predecessor.task_id for v in found]
    assert before == [None, None, "t1", "t2", None]


def test_events_are_taken_in_as_they_come() -> None:
    versions = ArtifactVersions()

    def chunk(text: str, **more: Any) -> TaskArtifactUpdateEvent:
        artifact = Artifact(artifact_id="a", name="boat", parts=(Part(text=text),))
        return TaskArtifactUpdateEvent(task_id="t1", context_id="c", artifact=artifact, **more)

    versions.add(made("t1", state=TaskState.WORKING))
    versions.add(chunk("one "))
    versions.add(chunk("two", append=True, last_chunk=True))
    assert versions.latest("boat") is None
    done = TaskStatusUpdateEvent(
        task_id="t1", context_id="c", status=TaskStatus(state=TaskState.COMPLETED)
    )
    versions.add(done)
    latest = versions.latest("boat")
    assert latest is not None
    assert latest.artifact.text == "one two"
    versions.add(done)  # a repeated task, as after a subscription
    versions.add(Message(message_id="m", role=Role.AGENT, parts=(Part(text="hello"),)))
    assert len(versions.versions("boat")) == 1


def test_events_of_a_task_that_was_not_seen_begin_it() -> None:
    versions = ArtifactVersions()
    artifact = Artifact(artifact_id="a", name="boat", parts=(Part(text="whole"),))
    versions.add(TaskArtifactUpdateEvent(task_id="t1", context_id="c", artifact=artifact))
    assert versions.context_id == "c"
    assert len(versions.versions("boat")) == 1


def test_they_are_made_again_from_a_list() -> None:
    listed = [
        made("t2", ("a", "boat"), at="2026-01-02T00:00:00Z"),
        made("t3", ("a", "boat"), at="2026-01-03T00:00:00Z"),
        made("t1", ("a", "boat"), at="2026-01-01T00:00:00Z"),
    ]
    versions = ArtifactVersions.of(listed)
    assert [v.task_id for v in versions.versions("boat")] == ["t1", "t2", "t3"]
    undated = ArtifactVersions.of([made("t2", ("a", "boat")), made("t1", ("a", "boat"))])
    assert [v.task_id for v in undated.versions("boat")] == ["t1", "t2"]


def test_misuse_is_refused_with_what_there_is() -> None:
    versions = of(made("t1", ("a", "boat.png")))
    with pytest.raises(ValueError, match=r"no artifact 'boat' in this context; there are: 'boat"):
        versions.message("Make it red", "boat")
    with pytest.raises(ValueError, match=r"there is no version .* <version 1 of 'boat.png'"):
        versions.accept(("t9", "a"))
    with pytest.raises(ValueError, match="make an ArtifactVersions for each context"):
        versions.add(made("t2", ("a", "boat.png"), context_id="other"))


# -- with an agent -----------------------------------------------------------------------------


def painter() -> Agent:
    agent = Agent("Painter")

    @agent.skill(replies="task")
    async def paint(turn: Turn) -> None:
        before = [artifact.text for artifact in await turn.referenced_artifacts()]
        await turn.artifact(" > ".join([*before, turn.text]), name="picture")

    return agent


async def test_an_agent_goes_on_from_the_version_that_is_meant() -> None:
    async with served(painter()) as remote:
        versions = ArtifactVersions()
        versions.add(await remote.send("a boat"))
        async for event in remote.stream(versions.message("make it red", "picture")):
            versions.add(event)
        red = versions.latest("picture")
        assert red is not None
        assert red.artifact.text == "a boat > make it red"
        versions.reject(red)
        versions.add(await remote.send(versions.message("make it blue", "picture")))
        blue = versions.latest("picture")
        assert blue is not None
        assert blue.artifact.text == "a boat > make it blue"
        assert blue.predecessor is not None
        assert blue.predecessor.number == 1

        tasks = remote.tasks(context_id=versions.context_id, include_artifacts=True)
        again = ArtifactVersions.of([task async for task in tasks])
        assert [v.key for v in again.versions("picture")] == [
            v.key for v in versions.versions("picture")
        ]
        rebuilt = again.latest("picture")
        assert rebuilt is not None
        assert rebuilt.predecessor is not None
        assert rebuilt.predecessor.number == 1
