"""Every link of the documentation resolves, and every page is linked."""

from __future__ import annotations

import os
import re

import pytest

from tests.house.documents import ROOT, anchors, blocks, links, pages, prose, translations

WHOLE = "https://github.com/parley-agents/parley/blob/main/"

EVERY_PAGE = sorted(
    {*pages(), *(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md"))}
)


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_link_leads_somewhere(page: str) -> None:
    lost = []
    for link in links(page):
        link = link.replace(WHOLE, os.path.relpath(ROOT, (ROOT / page).parent) + "/")
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def linked(page: str) -> set[str]:
    """Return the link targets of a page, without anchors."""
    found = {link.partition("#")[0] for link in links(page) if "://" not in link}
    resolved = (((ROOT / page).parent / link).resolve() for link in found)
    return {path.relative_to(ROOT).as_posix() for path in resolved}


def test_every_page_of_the_documentation_is_linked_from_another() -> None:
    everything = {link for page in EVERY_PAGE for link in linked(page)}
    assert [p for p in EVERY_PAGE if p != "README.md" and p not in everything] == []


def outline(page: str) -> list[object]:
    """Return the parts that translations keep: blocks, heading levels, code in the text.

    A diagram has translated labels, and the same number of lines.
    """
    shown = [(b.language, b.text) for b in blocks(page)]
    shown = [(of, str(text.count("\n")) if of == "mermaid" else text) for of, text in shown]
    text = prose(ROOT / page)
    return [shown, re.findall(r"^#+(?= )", text, flags=re.M), {*re.findall(r"`[^`\n]+`", text)}]


@pytest.mark.parametrize(("chinese", "english"), translations().items())
def test_a_translation_matches_its_page(chinese: str, english: str) -> None:
    """The blocks of a page in Chinese do not run; the same blocks run on the page in English."""
    assert outline(chinese) == outline(english)
    originals = translations()
    here, there = linked(chinese), linked(english)
    assert chinese in there
    assert here & {*originals.values()} == {english}  # the other links lead to Chinese pages
    assert {originals.get(p, p) for p in here} == {originals.get(p, p) for p in there}
