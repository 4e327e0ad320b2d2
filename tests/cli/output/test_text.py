"""The text format: an agent's content is labelled, and credentials are left out."""

import io
import json
from urllib.parse import quote

import pytest
from msgspec.structs import replace

from parley.cli.output.redaction import HIDDEN, Redactor
from parley.cli.output.rendering import EventWriter, write_message, write_page, write_task
from parley.cli.output.text import (
    TextWriter,
    json_text,
    one_line,
    shell_words,
    visible,
    visible_json,
)
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


@pytest.mark.parametrize("cut", range(12))
def test_a_block_reads_the_same_however_it_is_cut(cut, out):
    whole = "a\r\n\r\nb\n\nc\r\n"
    write = TextWriter(out.write)
    write.begin("Text", "key")
    write.more(whole[:cut])
    write.more(whole[cut:])
    write.close()
    assert out.getvalue() == "Text:\na\n \nb\n \nc\n\n"


def test_control_sequences_are_shown_and_not_sent():
    assert visible("\x1b[31mred\x07\x9b1m\x00") == "\\x1b[31mred\\x07\\x9b1m\\x00"
    assert visible("a\u2028b") == "a\\u2028b"
    assert visible("tabs\tand\nlines stay") == "tabs\tand\nlines stay"
    assert one_line("\x1b]0;title\x07") == "\\x1b]0;title\\x07"


def test_json_keeps_its_value_whatever_is_in_it():
    value = {"\x9b\x7f": ["\u202e\U000e0041\\", "שלום"]}
    assert json_text(value) == '{"\\u009b\\u007f": ["\\u202e\\udb40\\udc41\\\\", "שלום"]}'
    assert json.loads(json_text(value)) == value
    assert visible_json('"\\\\\x9b"') == '"\\\\\\u009b"'


def test_a_command_is_on_one_line_and_reads_as_it_was_meant():
    assert shell_words(["send", "it's", ""]) == "send 'it'\"'\"'s' ''"
    assert shell_words(["a\n\x9b  '"]) == (
        "$'a\\U0000000a\\U0000009b\\U00000020\\U00000020\\U00000027'"
    )


# -- content from an agent, as labelled text -------------------------------------------------------


def said(*parts, role=Role.AGENT):
    return Message(message_id="m", role=role, parts=parts)


def finished(*parts):
    return Task(
        id="t",
        context_id="c",
        status=TaskStatus(state=TaskState.COMPLETED, message=said(Part(text="Done."))),
        artifacts=(Artifact(artifact_id="a", name="thing", parts=parts),),
    )


def test_a_text_that_was_streamed_in_pieces_is_shown_in_one(write, out):
    pieces = (Part(text="One "), Part(text="two\n"), Part(data=1), Part(text="three"))
    write_task(write, finished(*pieces), verbose=False)
    assert out.getvalue().endswith("Name: thing\nText: One two\nData: 1\nText: three\n")
    write_task(write, finished(*pieces), verbose=True)
    assert "Text: One \nText: two\nData: 1\nText: three\n" in out.getvalue()


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


# -- credentials stay out of diagnostics -----------------------------------------------------------


def test_a_secret_is_hidden_in_every_way_of_writing_it():
    secret = 'to"ken é/+='
    redact = Redactor([secret, None])
    for written in (
        secret,
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        quote(secret, safe=""),
        f"https://host/?key={quote(secret, safe='')}&x=1",
    ):
        shown = redact(f"before {written} after")
        assert "ken" not in shown
        assert HIDDEN in shown
        assert shown.startswith("before")


def test_the_credential_in_a_service_parameter_is_hidden_with_and_without_its_scheme():
    redact = Redactor((), ["Authorization: Bearer s3cret-token", "x-debug: 1"])
    assert redact("s3cret-token") == HIDDEN
    assert "s3cret" not in redact("Bearer s3cret-token")
    assert redact("1 of 11") == "1 of 11"


def test_a_password_in_an_address_is_hidden():
    assert Redactor()("http://me:word@host/x") == f"http://{HIDDEN}@host/x"


def test_a_secret_inside_another_leaves_nothing_behind():
    assert Redactor(["abc", "abcdef"])("abcdef") == HIDDEN
