"""The text format, what an agent said in it, and what stays out of it."""

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


def test_a_field_is_one_line_whatever_is_in_it(write, out):
    write.field("Name", "two\nlines\r\nand\ttabs")
    assert out.getvalue() == "Name: two lines and tabs\n"


def test_a_text_of_one_line_is_a_field(write, out):
    write.content("Text", "It is noon.\n")
    assert out.getvalue() == "Text: It is noon.\n"


def test_a_longer_text_is_a_block_closed_by_an_empty_line(write, out):
    write.content("Text", "one\ntwo")
    write.field("State", "x")
    assert out.getvalue() == "Text:\none\ntwo\n\nState: x\n"


def test_an_empty_line_inside_a_block_does_not_close_it(write, out):
    write.block("Text", "one\n\n\ntwo\n")
    assert out.getvalue() == "Text:\none\n \n \ntwo\n\n"


def test_an_empty_text_is_an_empty_block(write, out):
    write.content("Text", "")
    assert out.getvalue() == "Text:\n\n"


@pytest.mark.parametrize("cut", range(12))
def test_a_block_reads_the_same_however_it_is_cut(cut, out):
    whole = "a\r\n\r\nb\n\nc\r\n"
    write = TextWriter(out.write)
    write.begin("Text", "key")
    write.more(whole[:cut])
    write.more(whole[cut:])
    write.close()
    assert out.getvalue() == "Text:\na\n \nb\n \nc\n\n"


def test_an_open_block_is_closed_by_the_next_field(write, out):
    write.begin("Text", "one")
    write.more("half a")
    assert write.open_block == "one"
    write.more(" line")
    write.field("State", "done")
    assert out.getvalue() == "Text:\nhalf a line\n\nState: done\n"


INVISIBLE = (
    "\u200b\ufeff\u2060\u2063\xad\u034f\u180e\u200c\u200d\u115f\u3164\uffa0\ufe00\ufe0f"
    "\U000e0101\U0001d173\U000e0061"
)
SPELT = (
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u2764\ufe0f\u200d\U0001f525",
    "1\ufe0f\u20e3",
    "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "\u0915\u094d\u200d\u0937",
    "\u8fbb\U000e0101",
)


@pytest.mark.parametrize("hidden", INVISIBLE)
def test_what_cannot_be_seen_is_shown(hidden):
    shown = visible(f"pay{hidden}pal")
    assert shown.isascii()
    assert shown != "paypal"
    assert visible(shown) == shown
    assert json.loads(visible_json(json.dumps(hidden, ensure_ascii=False))) == hidden


@pytest.mark.parametrize("text", SPELT)
def test_joiners_that_a_script_or_an_emoji_needs_stay(text, out):
    assert visible(text) == text
    for cut in range(len(text)):
        out.truncate(0)
        out.seek(0)
        write = TextWriter(out.write)
        write.begin("Text")
        write.more(text[:cut])
        write.more(text[cut:])
        write.close()
        assert out.getvalue() == f"Text:\n{text}\n\n"


def test_control_sequences_are_shown_and_not_sent():
    assert visible("\x1b[31mred\x07\x9b1m\x00") == "\\x1b[31mred\\x07\\x9b1m\\x00"
    assert visible("a\u2028b") == "a\\u2028b"
    assert visible("tabs\tand\nlines stay") == "tabs\tand\nlines stay"
    assert one_line("\x1b]0;title\x07") == "\\x1b]0;title\\x07"


def test_what_turns_or_hides_a_text_is_shown_and_what_spells_it_stays():
    assert visible("\x7f\u202e\u2066\u200f\ud800\U000e0041") == (
        "\\x7f\\u202e\\u2066\\u200f\\ud800\\U000e0041"
    )
    for text in ("שלום", "👩\u200d🚀", "क्\u200dष", "می\u200cخواهم"):
        assert visible(text) == text
    assert visible(visible("\x1b\\x1b")) == visible("\x1b\\x1b")


def test_json_keeps_its_value_whatever_is_in_it():
    value = {"\x9b\x7f": ["\u202e\U000e0041\\", "שלום"]}
    assert json_text(value) == '{"\\u009b\\u007f": ["\\u202e\\udb40\\udc41\\\\", "שלום"]}'
    assert json.loads(json_text(value)) == value
    assert visible_json('"\\\\\x9b"') == '"\\\\\\u009b"'


def test_a_label_is_on_the_line_of_its_field(write, out):
    write.field("Tasks of a\nb\x9b", 1)
    assert out.getvalue() == "Tasks of a b\\x9b: 1\n"


def test_a_command_is_on_one_line_and_reads_as_it_was_meant():
    assert shell_words(["send", "it's", ""]) == "send 'it'\"'\"'s' ''"
    assert shell_words(["a\n\x9b  '"]) == (
        "$'a\\U0000000a\\U0000009b\\U00000020\\U00000020\\U00000027'"
    )


# -- what an agent said, as labelled text ----------------------------------------------------------


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


def test_headers_show_only_what_the_protocol_itself_sends():
    redact = Redactor(["key-1"])
    assert redact.header("A2A-Version", "1.0") == "A2A-Version: 1.0"
    assert redact.header("X-Any", "else") == f"X-Any: {HIDDEN}"
    assert redact.header("Authorization", "Bearer x") == f"Authorization: {HIDDEN}"


def test_a_password_in_an_address_is_hidden():
    assert Redactor()("http://me:word@host/x") == f"http://{HIDDEN}@host/x"


def test_a_secret_inside_another_leaves_nothing_behind():
    assert Redactor(["abc", "abcdef"])("abcdef") == HIDDEN
