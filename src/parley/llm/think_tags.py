"""Thinking in the text of a reply: ``<think>`` tags, also where a stream splits them."""

from __future__ import annotations

import re
from typing import NamedTuple

_TAG = re.compile(r"(?<!`)<(/?)(?:think|thinking)>", re.IGNORECASE)

_BEGUN = re.compile(r"<(?:/?[a-z]{0,9})?$", re.IGNORECASE)

_NAMES = ("think>", "thinking>")


class Piece(NamedTuple):
    """A piece of a reply. ``all_before`` says that all text before it was thinking, too."""

    text: str = ""
    thinking: str = ""
    all_before: bool = False


class ThinkTags:
    """Splits the text of one reply into the answer and the thinking.

    A closing tag without an opening one means that all before it was thinking: some templates put
    the opening tag into the request. A tag behind a backtick is text about the tag.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_thinking = False
        self._has_tags = False
        self._has_text = False
        self._last = ""

    def add(self, text: str) -> list[Piece]:
        """Add a piece of text, and return what is certain now."""
        return self._split(self._held + text, is_end=False)

    def end(self) -> list[Piece]:
        """Return what is left at the end of the reply."""
        return self._split(self._held, is_end=True)

    def _split(self, text: str, *, is_end: bool) -> list[Piece]:
        found: list[Piece] = []
        at, context = 0, self._last
        whole = context + text
        for tag in _TAG.finditer(whole, len(context)):
            start, end = tag.start() - len(context), tag.end() - len(context)
            closes = bool(tag[1])
            if closes and not self._is_thinking and self._has_tags:
                continue  # neither open nor the first: text
            if not closes and self._is_thinking:
                continue
            if closes and not self._is_thinking:
                found.append(Piece(thinking=text[at:start], all_before=True))
                self._has_text = False
            else:
                found.append(self._piece(text[at:start]))
            self._is_thinking, self._has_tags = not closes, True
            at = end
        rest = text[at:]
        begun = None if is_end else _BEGUN.search(rest)
        if begun is not None and _may_become_tag(begun[0]):
            self._held = rest[begun.start() :]
            rest = rest[: begun.start()]
        else:
            self._held = ""
        found.append(self._piece(rest))
        used = text[: len(text) - len(self._held)]
        self._last = (context + used)[-1:]
        return [each for each in found if each.text or each.thinking or each.all_before]

    def _piece(self, text: str) -> Piece:
        if self._is_thinking:
            return Piece(thinking=text)
        if not self._has_text:  # models begin with blank lines, most of all after thinking
            text = text.lstrip()
            self._has_text = bool(text.strip())
        return Piece(text=text)


def _may_become_tag(text: str) -> bool:
    name = text[1:].removeprefix("/").lower()
    return any(each.startswith(name) for each in _NAMES)
