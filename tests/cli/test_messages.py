"""Messages made from part flags, and the handling of odd answers and invalid files."""

import pytest

from parley.cli.calls.messages import MAX_FILE, build_message
from parley.cli.output.failures import UsageFailure
from parley.cli.settings.options import PartFlag
from parley.model.struct import encode
from tests.cli.scripted import Answer, message, status_update, task


def parts(*flags, stdin=b""):
    message, _ = build_message(
        [PartFlag(*flag) for flag in flags], context_id=None, task_id=None, read_stdin=lambda: stdin
    )
    return message.parts


def test_a_media_type_binds_to_the_part_before_it(tmp_path):
    file = tmp_path / "report.bin"
    file.write_bytes(b"x")
    first, second = parts(
        ("file", str(file)), ("media_type", "application/pdf"), ("file", str(file))
    )
    assert first.media_type == "application/pdf"
    assert second.media_type == "application/octet-stream"


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ([], "empty"),
        ([("media_type", "text/plain"), ("text", "a")], "must follow a part"),
        ([("text", "a"), ("media_type", "a/b"), ("media_type", "a/c")], "two media types"),
        ([("text", "a"), ("media_type", "pdf")], "not a media type"),
        ([("file", "/no/such/file")], "cannot be read"),
        ([("data", "-")], "standard input is not JSON"),
        ([("data", '{"day": 1}')], "--data takes a JSON file"),
    ],
)
def test_what_cannot_be_sent_is_a_usage_error(flags, word):
    with pytest.raises(UsageFailure, match=word):
        parts(*flags)


def test_data_keeps_integers_and_nulls():
    (made,) = parts(("data", "-"), stdin=b'{"big": 12345678901234567890, "none": null}')
    assert encode(made) == b'{"data":{"big":12345678901234567890,"none":null}}'


def test_a_file_that_is_too_large_for_a_message_is_left_where_it_is(tmp_path):
    file = tmp_path / "large.pdf"
    with file.open("wb") as opened:
        opened.truncate(MAX_FILE + 1)
    flags = [PartFlag("file", str(file)), PartFlag("file", "https://a.example/b")]
    message, files = build_message(flags, text="Read", context_id=None, task_id=None)
    assert message.parts[1].url == file.as_uri()
    assert (message.parts[1].filename, message.parts[1].media_type) == (
        "large.pdf",
        "application/pdf",
    )
    assert files == {1: file}
    with pytest.raises(UsageFailure, match=r"large\.pdf is too large"):
        parts(("data", str(file)))


def test_ids_of_the_server_are_never_made_up():
    message, _ = build_message([PartFlag("text", "hi")], context_id=None, task_id=None)
    assert message.task_id == ""
    assert message.context_id == ""
    assert message.message_id


# -- the command with agents that answer oddly, and with paths that are not files ------------------


USER = {"messageId": "u", "role": "ROLE_USER", "parts": [{"text": "what time is it?"}]}


@pytest.mark.parametrize("history", [[USER, message("It is noon.")], []], ids=["kept", "not kept"])
@pytest.mark.parametrize("streaming", [True, False])
def test_text_that_came_only_on_the_way_is_shown(parley, agent, history, streaming):
    agent.card["capabilities"] = {"streaming": streaming}
    working = task("WORKING", "It is noon.")
    ended = task("COMPLETED", history=history)
    events = [{"task": task("WORKING")}, status_update("WORKING", "It is noon.")]
    agent.says("SendStreamingMessage", Answer(events=[*events, status_update("COMPLETED")]))
    agent.says("SendMessage", Answer(result={"task": task("SUBMITTED")}))
    looks = [Answer(result=ended)] if streaming else [Answer(result=working), Answer(result=ended)]
    agent.says("GetTask", *looks)
    ran = parley("send", "-a", agent.url, "what time is it?", "--poll-interval", "10ms")
    assert (ran.status, ran.field("Text")) == (0, "It is noon.")
    assert ran.field("State") == "TASK_STATE_COMPLETED"


def test_text_on_the_way_is_not_repeated_beside_other_text(parley, agent):
    agent.says("GetTask", Answer(result=task(text="Done.", history=[USER, message("Thinking")])))
    ran = parley("task", "get", "task-1", "-a", agent.url)
    assert ran.field("Status") == "Done."
    assert "Thinking" not in ran.stdout


def test_a_huge_configuration_file_is_refused_and_not_read(parley, tmp_path, agent):
    """The file is sparse: it needs no space on disk, and must need none in memory."""
    huge = tmp_path / ".env"
    with huge.open("wb") as file:
        file.truncate(3 * 1024**3)
    for flags in ((), ("--config", str(huge))):
        ran = parley("task", "get", "task-1", "-a", agent.url, *flags)
        assert ran.status == 2
        assert "is larger than 1,048,576 bytes" in ran.stderr
    assert not agent.asked


def test_a_nested_card_is_no_card(parley, tmp_path):
    file = tmp_path / "card.json"
    file.write_text('{"a":' * 100_000)
    ran = parley("card", "get", "-a", str(file), "-o", "json")
    assert (ran.status, ran.error["code"]) == (1, "A2ACLI_ERR_CARD_INVALID")


def test_a_card_shows_what_typed_skills_take_and_give(parley, agent):
    person = {"type": "object", "properties": {"name": {"type": "string"}}}
    given = {
        "type": "object",
        "properties": {
            "amount": {"type": "number"},
            "currency": {"enum": ["EUR", "USD"]},
            "day": {"type": "string", "format": "date"},
            "who": {"$ref": "#/$defs/Person"},
            "notes": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]},
            "odd": True,
        },
        "required": ["amount", "currency"],
        "$defs": {"Person": person},
    }
    schemas = {"pay": {"input": given, "output": {"type": "integer"}}}
    extension = {"uri": "urn:parley:skill-schemas:v1", "params": {"skills": schemas}}
    agent.card["capabilities"] = {"extensions": [extension]}
    agent.card["skills"] = [{"id": "pay", "name": "Pay", "description": "Pays", "tags": ["money"]}]
    ran = parley("card", "get", "-a", agent.url)
    assert ran.status == 0
    assert (
        "Input:\n"
        "amount: number\n"
        'currency: "EUR" or "USD"\n'
        "day: string (date), optional\n"
        "who: Person, optional\n"
        "notes: array of string or null, optional\n"
        "odd: any value, optional\n"
    ) in ran.stdout
    assert ran.field("Output") == "integer"
    assert '"$defs"' not in ran.stdout
    assert '"$defs"' in parley("card", "get", "-a", agent.url, "--verbose").stdout
