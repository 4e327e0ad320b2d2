"""What an agent said, as labelled text."""

import io

import pytest
from msgspec.structs import replace

from parley.cli.output.rendering import EventWriter, write_message, write_page, write_task
from parley.cli.output.text import TextWriter
from parley.model.operations import ListTasksResponse
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.tasks import (
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)


@pytest.fixture
def out():
    return io.StringIO()


@pytest.fixture
def write(out):
    return TextWriter(out.write)


def said(*parts, role=Role.AGENT):
    return Message(message_id="m", role=role, parts=parts)


def finished(*parts):
    return Task(
        id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.COMPLETED, message=said(Part(text="Done."))),
        artifacts=(Artifact(artifact_id="a", name="thing", parts=parts),),
    )


def test_a_task_names_itself_its_context_its_state_and_every_part(write, out):
    parts = (
        Part(text="# Title\n\nBody"),
        Part(data={"n": 1, "none": None}),
        Part(raw=b"12345", filename="boat.png", media_type="image/png"),
        Part(url="https://host/x.pdf"),
    )
    write_task(write, finished(*parts), verbose=False)
    assert out.getvalue() == (
        "Task: t\nContext: c\nState: TASK_STATE_COMPLETED\nStatus: Done.\n"
        "Artifact: a\nName: thing\n"
        "Text:\n# Title\n \nBody\n\n"
        'Data:\n{\n  "n": 1,\n  "none": null\n}\n\n'
        "File: boat.png (image/png, 5 bytes)\n"
        "File: unnamed (unknown type, https://host/x.pdf)\n"
    )


def test_a_text_that_was_streamed_in_pieces_is_shown_in_one(write, out):
    pieces = (Part(text="One "), Part(text="two\n"), Part(data=1), Part(text="three"))
    write_task(write, finished(*pieces), verbose=False)
    assert out.getvalue().endswith("Name: thing\nText: One two\nData: 1\nText: three\n")
    write_task(write, finished(*pieces), verbose=True)
    assert "Text: One \nText: two\nData: 1\nText: three\n" in out.getvalue()


@pytest.mark.parametrize("data", [None, 0, "", [], {}, False])
def test_data_that_looks_like_nothing_is_still_shown(data, write, out):
    write_message(write, said(Part(data=data)), verbose=False)
    assert "\nData: " in out.getvalue()


def test_verbose_shows_metadata_roles_and_media_types(write, out):
    part = Part(text="hi", media_type="text/markdown", metadata={"k": 1})
    message = Message(message_id="m", role=Role.AGENT, parts=(part,), metadata={"m": "x"})
    write_message(write, message, verbose=True)
    shown = out.getvalue()
    assert "Role: ROLE_AGENT\n" in shown
    assert "Media type: text/markdown\n" in shown
    assert 'Metadata: {"k": 1}\n' in shown
    assert 'Metadata: {"m": "x"}\n' in shown


def test_a_page_says_how_many_there_are_and_where_the_next_begins(write, out):
    page = ListTasksResponse(tasks=(finished(),), next_page_token="p2", page_size=1, total_size=7)
    write_page(write, page, verbose=False)
    assert out.getvalue().endswith("\n\nTotal: 7\nNext page: p2\n")


def chunk(text, *, append=True, last=False, id="a"):
    artifact = Artifact(artifact_id=id, name="report", parts=(Part(text=text),))
    return TaskArtifactUpdateEvent(
        task_id="t", context_id="c", artifact=artifact, append=append, last_chunk=last
    )


def test_a_streamed_text_grows_in_one_block_and_each_piece_is_flushed(write, out):
    seen = []
    events = EventWriter(write, lambda: seen.append(out.getvalue()), verbose=False)
    events.event(chunk("One ", append=False))
    events.event(chunk("two.\n"))
    events.event(chunk("Three", last=True))
    head = "Artifact: a\nName: report\nText:\n"
    assert seen == [f"{head}One ", f"{head}One two.\n", f"{head}One two.\nThree\n\n"]


def test_artifacts_that_stream_at_once_are_told_apart(write, out):
    events = EventWriter(write, lambda: None, verbose=False)
    for event in (chunk("x", append=False), chunk("y", id="b", append=False), chunk("z")):
        events.event(event)
    write.close()
    assert out.getvalue() == (
        "Artifact: a\nName: report\nText:\nx\n\n"
        "Artifact: b\nName: report\nText:\ny\n\n"
        "Artifact: a\nName: report\nText:\nz\n\n"
    )


def test_every_status_of_a_stream_names_its_task(write, out):
    events = EventWriter(write, lambda: None, verbose=False)
    events.event(chunk("x", append=False))
    status = TaskStatus(state=TaskState.INPUT_REQUIRED, message=said(Part(text="When?")))
    events.event(TaskStatusUpdateEvent(task_id="t", context_id="c", status=status))
    assert out.getvalue().endswith(
        "x\n\nTask: t\nContext: c\nState: TASK_STATE_INPUT_REQUIRED\nStatus: When?\n"
    )


def test_a_task_that_an_exception_failed_names_its_skill_and_the_reference(write, out):
    incident = {"urn:parley:incident:v1": {"reference": "0a1b", "skill": "pay"}}
    message = replace(said(Part(text="It failed. Reference: 0a1b")), metadata=incident)
    status = TaskStatus(state=TaskState.FAILED, message=message)
    write_task(write, Task(id="t", context_id="c", status=status), verbose=False)
    assert out.getvalue() == (
        "Task: t\nContext: c\nState: TASK_STATE_FAILED\nStatus: It failed. Reference: 0a1b\n"
        "Skill: pay\n"
    )


def progress(**shown):
    return TaskStatusUpdateEvent(
        task_id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.WORKING),
        metadata={"urn:parley:run-progress:v1": shown},
    )


@pytest.mark.parametrize("dims", [False, True])
def test_what_a_model_does_meanwhile_is_dim_on_a_terminal(out, dims) -> None:
    events = EventWriter(TextWriter(out.write, dims=dims), lambda: None, verbose=False)
    events.event(progress(kind="thinking", text="Where"))
    events.event(progress(kind="thinking", text=" is it?\x1b[31m"))
    events.event(progress(kind="toolCall", name="time", arguments={"city": "Oslo"}))
    events.event(progress(kind="toolProgress", name="time", text="1 of 2"))
    events.event(progress(kind="toolResult", name="time", result="x" * 300, isError=True))
    events.event(progress(kind="step", name="cut"))
    said = out.getvalue()
    assert ("\x1b[2m" in said) is dims
    assert "\x1b[31m" not in said
    plain = said.replace("\x1b[2m", "").replace("\x1b[22m", "")
    assert plain == (
        "Thinking:\nWhere is it?\\x1b[31m\n\n"
        'Tool: time {"city": "Oslo"}\n'
        "Tool: time: 1 of 2\n"
        f"Tool error: time: {'x' * 200}...\n"
        "Step: cut\n"
    )
