"""The text format: fields and blocks that cannot be mistaken for each other."""

import io

import pytest

from parley.cli.text import TextWriter, one_line, visible


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


def test_control_sequences_are_shown_and_not_sent():
    assert visible("\x1b[31mred\x07\x9b1m\x00") == "\\x1b[31mred\\x07\\x9b1m\\x00"
    assert visible("a\u2028b") == "a\\u2028b"
    assert visible("tabs\tand\nlines stay") == "tabs\tand\nlines stay"
    assert one_line("\x1b]0;title\x07") == "\\x1b]0;title\\x07"
