"""The site of the documentation, and the list of its pages for language models.

    python site_build.py [FOLDER]    write docs/llms.txt, and the site into site/ or FOLDER

Zensical builds the site from zensical.toml. Here is what it cannot do: pages of the repository's
root come to the site too, links to files that are no pages lead into the repository, and each page
stands beside its HTML as Markdown, where docs/llms.txt (https://llmstxt.org) looks for it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
DOCS = ROOT / "docs"
ROOT_PAGES = {
    "README.md": "what-parley-is.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
NAVIGATION = tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"]
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.S)
NO_PROSE = re.compile(r"$|URI: |Install |`pip |[^\w`]")
TARGET = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def main() -> None:
    """Build the site."""
    (DOCS / "llms.txt").write_text(llms(), "utf-8")
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve())


def build(folder: Path) -> None:
    """Build the site into ``folder``, which is made anew."""
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary).resolve()
        shutil.copy(ROOT / "zensical.toml", work)
        shutil.copytree(DOCS, work / "docs")
        for source in ROOT_PAGES:
            shutil.copy(ROOT / source, work / "docs" / place(source))
        for page in staged():
            path = work / "docs" / place(page)
            path.write_text(moved(path.read_text("utf-8"), page), "utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--strict"]
        subprocess.run(command, cwd=work, check=True)
        for page in staged():
            shutil.copy(work / "docs" / place(page), work / "site" / place(page))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(work / "site", folder)


def staged() -> list[str]:
    """Return the files with links that go to the site, by their paths in the repository."""
    found = [*DOCS.rglob("*.md"), DOCS / "llms.txt"]
    return [*ROOT_PAGES, *sorted(path.relative_to(ROOT).as_posix() for path in found)]


def place(path: str) -> str:
    """Return where a file of the repository stands on the site, or nothing: it does not."""
    return ROOT_PAGES.get(path) or (path[5:] if path.startswith("docs/") else "")


def moved(text: str, page: str) -> str:
    """Return the text of a page with links as they are on the site."""

    def link(found: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(page), found[1]))
        if there := place(target):
            return os.path.relpath(there, os.path.dirname(place(page)))
        return f"{PROJECT['urls']['Source']}/blob/main/{target}"

    pieces = CODE.split(text)
    pieces[::2] = [TARGET.sub(link, piece) for piece in pieces[::2]]
    return "".join(pieces)


# -- the list of pages -------------------------------------------------------------------------


def llms() -> str:
    """Return the list of all pages, each with the sentence that it begins with."""
    lines = ["# Parley", "", f"> {PROJECT['description']}", ""]
    lines += [
        f"The Python package is `{PROJECT['name']}`; the import and the command are `parley`.",
        "The tests run every command and snippet of these pages. Coding agents begin with",
        "[the skill](../skills/parley/SKILL.md).",
    ]
    for shelf in NAVIGATION:
        for title, pages in shelf.items():
            lines += ["", f"## {'Optional' if title == 'Internals' else title}", ""]
            lines += [entry(page) for page in listed(pages) if page != "index.md"]
    return "\n".join(lines) + "\n"


def listed(nav: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation, by their places on the site."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from listed(each)


def entry(page: str) -> str:
    """Return the line of a page."""
    source = {there: path for path, there in ROOT_PAGES.items()}.get(page, f"docs/{page}")
    title, sentence = beginning((ROOT / source).read_text("utf-8"))
    link = os.path.relpath(source, "docs")
    return f"- [{title}]({link})" + (f": {sentence}" if sentence else "")


def beginning(text: str) -> tuple[str, str]:
    """Return the heading of a page, and the first sentence below it, without links."""
    text = re.sub(r"<!--.*?-->|```.*?```|\*\*", "", text, flags=re.S)
    text = re.sub(r"^\[[^\]]*\]\([^)]*\)$", "", text, flags=re.M)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    title, _, rest = text.removeprefix("# ").partition("\n")
    paragraphs = (" ".join(each.split()) for each in re.split(r"\n\s*\n", rest))
    paragraph = min(paragraphs, key=lambda each: bool(NO_PROSE.match(each)), default="")
    sentence = re.match(r"(.*?(?:[.!?](?= |$)|。))|[^:]*", paragraph.removeprefix("Decided. "))
    return title, sentence[1] or f"{sentence[0]}."


if __name__ == "__main__":
    main()
