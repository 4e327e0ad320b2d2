"""The site shows every page as written, and each of its links resolves."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from posixpath import normpath
from urllib.parse import unquote

import pytest
import yaml
from markdown_it import MarkdownIt
from site_build import NAVIGATION, build, listed, llms, place, staged

from tests.conftest import NOTHING_IS_SKIPPED
from tests.house.documents import ROOT, links
from tests.peers.environments import alone

PAGES = [place(page) for page in staged() if page.endswith(".md")]
STRUCTURE = {"h1", "h2", "h3", "h4", "li", "ol", "pre", "table", "td", "th", "tr", "ul"}
COMMENT = re.compile(r"<!--.*?-->", re.S)


@pytest.fixture(scope="module")
def site(workshop: Path) -> Path:
    """The site, built once for all workers of a test run."""
    if find_spec("zensical") is None and not NOTHING_IS_SKIPPED:
        pytest.skip("zensical is not installed: make .venv/for-tests")
    folder = workshop / "site"
    with alone(workshop / "site.lock"):
        if not folder.exists():
            build(folder)
    return folder


class Shown(HTMLParser):
    """The text of HTML without blanks, and the positions of headings, items, code and cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.is_sign = False
        self.feed(COMMENT.sub("", html))
        self.text = "".join(self.pieces)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.is_sign = ("class", "headerlink") in attributes
        if tag in STRUCTURE:
            self.pieces.append(f"<{tag}>")

    def handle_endtag(self, tag: str) -> None:
        self.is_sign = False

    def handle_data(self, data: str) -> None:
        if not self.is_sign:
            self.pieces.extend(data.split())


def html_of(page: str) -> str:
    """Return the path of a page's HTML on the site."""
    folder = re.sub(r"(?:(?:^|/)(?:index|README))?\.md$", "/", page)
    return f"{folder}index.html".lstrip("/")


def values(html: str, attribute: str) -> list[str]:
    """Return the values of an attribute in all tags."""
    return re.findall(rf'<\w+\s(?:[^<>]*\s)?{attribute}="?([^"\s>]+)', html)


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(listed(NAVIGATION)) == sorted(PAGES)


def test_the_navigation_has_the_shelves_and_the_groups_of_the_index() -> None:
    shelves = {title: part for shelf in NAVIGATION for title, part in shelf.items()}
    text = (ROOT / "docs" / "index.md").read_text("utf-8")
    for shelf in re.split(r"^## ", text, flags=re.M)[1:]:
        groups = [
            each for part in shelves[shelf.split("\n")[0]] for each in part if "/" not in each
        ]
        wanted = re.findall(r"^- \*\*(.+)\*\*:", shelf, flags=re.M)
        assert [each for each in groups if each in wanted] == wanted


def test_the_list_for_language_models_is_that_of_the_pages() -> None:
    path = ROOT / "docs" / "llms.txt"
    assert path.read_text("utf-8") == llms(), "make site"
    assert [each for each in links("docs/llms.txt") if not (path.parent / each).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_site_shows_what_the_page_says(page: str, site: Path) -> None:
    """Pages are written for GitHub, with its rules for lists and indented code."""
    html = (site / html_of(page)).read_text("utf-8")
    article = re.search(r"<article.*?</article>", html, re.S)
    assert article
    written = (site / page).read_text("utf-8")
    rendered = MarkdownIt("commonmark").enable("table").render(written)
    assert Shown(article[0]).text == Shown(rendered).text


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Path) -> None:
    paths = [path for path in site.rglob("*.html") if path.name != "404.html"]
    texts = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in paths}
    anchors = {page: set(values(text, "id")) for page, text in texts.items()}
    lost = set()
    for page, text in texts.items():
        for found in {*values(text, "href"), *values(text, "src")}:
            path, _, anchor = unquote(unescape(found)).partition("#")
            target = normpath(f"{page}/../{path}") if path else page
            if (site / target).is_dir():
                target = normpath(f"{target}/index.html")
            is_there = (site / target).exists() and (not anchor or anchor in anchors[target])
            if not is_there and not re.match("[a-z]+:", found):
                lost.add((page, found))
    assert lost == set()


def test_every_page_can_be_searched(site: Path) -> None:
    items = json.loads((site / "search.json").read_text("utf-8"))["items"]
    found = {item["location"].partition("#")[0] for item in items}
    assert found == {html_of(page).removesuffix("index.html") for page in PAGES}
    fenced = {item["location"].partition("#")[0] for item in items if "fencing" in item["text"]}
    assert "guides/running-a-fleet/" in fenced


def test_the_skill_for_coding_agents_has_the_front_matter_of_the_format() -> None:
    """Agents read the front matter of all their skills, and the body only of skills in use."""
    path = ROOT / "skills" / "parley" / "SKILL.md"
    _, front, body = path.read_text("utf-8").split("---\n", 2)
    said = yaml.safe_load(front)
    assert said["name"] == path.parent.name
    assert 0 < len(said["description"]) <= 1024
    assert len(body.split()) <= 1200
