"""From what a caller has in hand to a message."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from parley.client.message import compose, to_message
from parley.model.operations import SendMessageConfiguration, TaskPushNotificationConfig
from parley.model.parts import Message, Part, Role
from parley.model.tasks import Task, TaskState, TaskStatus


def task(state: TaskState) -> Task:
    return Task(id="t-1", context_id="c-1", status=TaskStatus(state=state))


def test_a_text_becomes_a_message_of_the_user_with_an_id_of_its_own() -> None:
    first, second = to_message("hello"), to_message("hello")
    assert first.parts == (Part(text="hello"),)
    assert first.role is Role.USER
    assert first.message_id != second.message_id
    assert (first.task_id, first.context_id, first.metadata) == ("", "", None)


def test_everything_becomes_the_part_that_it_is_in_order(tmp_path: Path) -> None:
    picture = tmp_path / "boat.png"
    picture.write_bytes(b"\x89PNG")
    strange = tmp_path / "boat.unknown-suffix"
    strange.write_bytes(b"?")
    message = to_message(
        ["look", picture, b"raw", {"a": None}, Part(url="https://x/y")],
        files=[str(picture), strange, b"more"],
        data=[1, 2],
    )
    png = Part(raw=b"\x89PNG", filename="boat.png", media_type="image/png")
    raw = {"media_type": "application/octet-stream"}
    assert message.parts == (
        Part(text="look"),
        png,
        Part(raw=b"raw", **raw),
        Part(data={"a": None}),
        Part(url="https://x/y"),
        png,
        Part(raw=b"?", filename="boat.unknown-suffix", **raw),
        Part(raw=b"more", **raw),
        Part(data=[1, 2]),
    )


def test_no_text_is_needed_beside_files_or_data() -> None:
    assert to_message(None, data=None).parts == (Part(data=None),)
    assert to_message("", data=0).parts == (Part(data=0),)


def test_nothing_and_the_impossible_cannot_be_sent(tmp_path: Path) -> None:
    for nothing in (None, "", []):
        with pytest.raises(ValueError, match="nothing to send"):
            to_message(nothing)
    with pytest.raises(TypeError, match="a set cannot be sent"):
        to_message({1, 2})
    for lost in ({"data": [float("nan")]}, {"metadata": {"a": {"b": float("-inf")}}}):
        with pytest.raises(ValueError, match="JSON has no"):
            to_message("x", **lost)
    with pytest.raises(FileNotFoundError):
        to_message(tmp_path / "missing")


def test_a_running_task_is_continued_and_an_ended_one_is_referred_to() -> None:
    message = to_message("Paris", task=task(TaskState.INPUT_REQUIRED))
    assert (message.task_id, message.context_id) == ("t-1", "c-1")
    assert message.reference_task_ids == ()
    message = to_message("make it red", task=task(TaskState.COMPLETED), references=["t-0"])
    assert (message.task_id, message.context_id) == ("", "c-1")
    assert message.reference_task_ids == ("t-1", "t-0")
    message = to_message("see", references=[task(TaskState.WORKING), "t-2"])
    assert message.reference_task_ids == ("t-1", "t-2")


def test_a_ready_message_is_sent_as_it_is_and_completed_by_what_is_given_beside() -> None:
    ready = Message(message_id="m-1", role=Role.USER, parts=(Part(text="x"),), context_id="c-0")
    assert to_message(ready) == ready
    changed = to_message(ready, context_id="c-1", metadata={"skill": "s"}, data=5)
    assert changed == msgspec.structs.replace(
        ready, context_id="c-1", metadata={"skill": "s"}, parts=(Part(text="x"), Part(data=5))
    )


@pytest.mark.anyio
async def test_only_what_was_asked_for_is_configured() -> None:
    bare = await compose("x")
    assert (bare.configuration, bare.metadata, bare.message.metadata) == (None, None, None)
    asked = await compose(
        "x",
        history_length=0,
        accepted_output_modes=["image/png"],
        push="https://hooks.example/1",
        metadata={"of": "request"},
        message_metadata={"of": "message"},
    )
    assert asked.configuration == SendMessageConfiguration(
        history_length=0,
        accepted_output_modes=("image/png",),
        task_push_notification_config=TaskPushNotificationConfig(url="https://hooks.example/1"),
    )
    assert (asked.metadata, asked.message.metadata) == ({"of": "request"}, {"of": "message"})
    with pytest.raises(ValueError, match="JSON has no nan"):
        await compose("x", metadata={"a": [float("nan")]})


@pytest.mark.anyio
async def test_files_are_read_beside_the_event_loop(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a")
    part = Part(raw=b"a", filename="a.txt", media_type="text/plain")
    for content, files in ((file, []), (["x", file], []), ("x", [str(file)]), (None, [file])):
        assert (await compose(content, files=files)).message.parts[-1] == part
