"""From part flags to the parts of a message."""

import base64

import pytest

from parley.cli.calls.messages import MAX_FILE, build_message
from parley.cli.output.failures import UsageFailure
from parley.cli.settings.options import PartFlag
from parley.model.struct import encode


def parts(*flags, stdin=b""):
    message, _ = build_message(
        [PartFlag(*flag) for flag in flags], context_id=None, task_id=None, read_stdin=lambda: stdin
    )
    return message.parts


def test_parts_keep_the_order_in_which_they_were_written(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_bytes(b"\x00\xff")
    made = parts(("text", "a"), ("data", "-"), ("file", str(file)), ("text", "b"), stdin=b"[1]")
    assert [p.text for p in made] == ["a", None, None, "b"]
    assert made[1].data == [1]
    assert made[2].raw == b"\x00\xff"
    assert made[2].filename == "notes.txt"
    assert base64.b64encode(b"\x00\xff") in encode(made[2])


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
        ([("media_type", "text/plain"), ("text", "a")], "belongs to the part before it"),
        ([("text", "a"), ("media_type", "a/b"), ("media_type", "a/c")], "two media types"),
        ([("text", "a"), ("media_type", "pdf")], "not a media type"),
        ([("file", "/no/such/file")], "cannot be read"),
        ([("data", "-")], "standard input is not JSON"),
        ([("data", '{"day": 1}')], "--data names a file of JSON"),
    ],
)
def test_what_cannot_be_sent_is_a_usage_error(flags, word):
    with pytest.raises(UsageFailure, match=word):
        parts(*flags)


def test_data_keeps_integers_and_nulls():
    (made,) = parts(("data", "-"), stdin=b'{"big": 12345678901234567890, "none": null}')
    assert encode(made) == b'{"data":{"big":12345678901234567890,"none":null}}'


def test_a_url_is_sent_as_a_reference_and_not_fetched():
    (made,) = parts(("file", "https://host.invalid/a%20b.pdf?x=1"))
    assert made.url == "https://host.invalid/a%20b.pdf?x=1"
    assert made.filename == "a b.pdf"
    assert made.media_type == "application/pdf"


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


def test_a_media_type_needs_a_part_flag_before_it_not_just_a_text():
    with pytest.raises(UsageFailure, match="belongs to the part before it"):
        build_message(
            [PartFlag("media_type", "text/plain")], text="hi", context_id=None, task_id=None
        )


def test_ids_of_the_server_are_never_made_up():
    message, _ = build_message([PartFlag("text", "hi")], context_id=None, task_id=None)
    assert message.task_id == ""
    assert message.context_id == ""
    assert message.message_id


def test_json_that_is_nested_without_end_is_refused_as_what_it_is(parley, tmp_path):
    deep = "[" * 100_000
    (tmp_path / "deep.json").write_text(deep)
    for words in (("--data", "deep.json"), ("hi", "--metadata", deep)):
        ran = parley("send", *words, "-o", "json")
        assert (ran.status, ran.error["code"]) == (2, "A2ACLI_ERR_USAGE")
        assert "not JSON: maximum recursion depth exceeded" in ran.error["message"]
