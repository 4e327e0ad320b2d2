"""Thinking in a reply's text is detected, wherever the stream splits it."""

from __future__ import annotations

import pytest

from parley.llm.model_run import ThinkTags


def split(pieces: list[str]) -> tuple[str, str]:
    tags, text, thinking = ThinkTags(), "", ""
    for piece in [p for each in pieces for p in tags.add(each)] + tags.end():
        if piece.all_before:
            thinking, text = thinking + text, ""
        text += piece.text
        thinking += piece.thinking
    return text, thinking


TEXTS = {
    "<think>Hm.\n</think>\n\nYes.": ("Yes.", "Hm.\n"),
    "Well. <think>Hm.</think>Yes.": ("Well. Yes.", "Hm."),
    "Hm. So.</think>\nYes.": ("Yes.", "Hm. So."),
    "<Thinking>a < b</Thinking>b > a": ("b > a", "a < b"),
    "<think>one</think><think>two</think>Yes.": ("Yes.", "onetwo"),
    "<think>never ends": ("", "never ends"),
    "if a <thin": ("if a <thin", ""),
    "Write `<think>` for it. 1 < 2": ("Write `<think>` for it. 1 < 2", ""),
    "\n\nYes.": ("Yes.", ""),
}


@pytest.mark.parametrize("text", TEXTS)
def test_tags_are_found_however_the_text_is_cut(text) -> None:
    expected = TEXTS[text]
    assert split([text]) == expected
    assert split(list(text)) == expected
    for at in range(len(text)):
        assert split([text[:at], text[at:]]) == expected, at
