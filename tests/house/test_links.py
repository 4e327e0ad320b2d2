"""Every link of the documentation leads somewhere, and every page is reached."""

from __future__ import annotations

import pytest

from tests.house.documents import ROOT, anchors, links, pages

EVERY_PAGE = sorted(
    {*pages(), *(p.relative_to(ROOT).as_posix() for p in ROOT.glob("docs/**/*.md"))}
)


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_every_link_leads_somewhere(page: str) -> None:
    lost = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_page_of_the_documentation_is_linked_from_another() -> None:
    linked = {
        ((ROOT / page).parent / link.partition("#")[0]).resolve()
        for page in EVERY_PAGE
        for link in links(page)
        if "://" not in link
    }
    assert [p for p in EVERY_PAGE if p != "README.md" and (ROOT / p).resolve() not in linked] == []
