"""The text format: fields and blocks that cannot be mistaken for each other."""

import io
import json

import pytest

from parley.cli.output.text import (
    TextWriter,
    json_text,
    one_line,
    shell_words,
    visible,
    visible_json,
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
