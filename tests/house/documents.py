"""A machine's view of the documentation: blocks of code, commands, links.

Meaning of the fences:

    ```python            run as a file, in a process of its own
    # name.py            ... with that name, if the block begins like this: imported below
    ```console           lines after "$ " are commands, the lines below them their output
    ```text              right after a ```python block: its output

In expected output, "..." and ids match anything, and lines may be missing. An id in a command is
the id of the task or context that was printed last. The comment
``<!-- serve: examples/hello.py -->`` starts an agent for the blocks below,
``<!-- continues -->`` before a fence appends that block to the file of the previous block, and
``<!-- not run: reason -->`` excludes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
UNTESTED = ("docs/internals/decisions", "docs/reference/cli-compliance.md", "docs/zh/")


class Block(msgspec.Struct, frozen=True):
    """One fenced block of a page, or a ``serve`` comment (then ``language`` is "serve")."""

    page: str
    line: int
    language: str
    text: str
    not_run: str = ""
    continues: bool = False

    @property
    def file(self) -> str:
        """The name of the file for a Python block, if it has one."""
        named = re.match(r"# ([\w/]+\.py)\n", self.text)
        return named[1] if named and self.language == "python" else ""


class Command(msgspec.Struct, frozen=True):
    """One command of a console block, and its expected output."""

    line: str
    printed: tuple[str, ...]


def pages() -> list[str]:
    """Return the pages whose code runs, by their paths from the root."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("skills/**/*.md")]
    names = sorted(path.relative_to(ROOT).as_posix() for path in found)
    return [name for name in names if not name.startswith(UNTESTED)]


def tutorial() -> list[str]:
    """Return the pages of the tutorial in order: each continues the one before."""
    return [name for name in pages() if re.match(r"docs/start/\d-", name)]


def translations() -> dict[str, str]:
    """Return each page in Chinese, and its original in English."""
    names = sorted(path.name for path in (ROOT / "docs/zh").iterdir())
    return {f"docs/zh/{n}": n if n == "README.md" else f"docs/start/{n}" for n in names}


def blocks(page: str, text: str | None = None) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    lines = (text if text is not None else (ROOT / page).read_text("utf-8")).splitlines()
    not_run = ""
    continues = False
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if serve := re.fullmatch(r"<!-- serve: (\S+) -->", line.strip()):
            yield Block(page, at, "serve", serve[1])
        elif skip := re.fullmatch(r"<!-- not run: (.+) -->", line.strip()):
            not_run = skip[1]
        elif line.strip() == "<!-- continues -->":
            continues = True
        elif fence := re.match(r"( *)```(\w*)", line):
            start, indent, body = at, fence[1], []
            while lines[at].strip() != "```":
                body.append(lines[at].removeprefix(indent))
                at += 1
            at += 1
            yield Block(page, start, fence[2], "\n".join(body) + "\n", not_run, continues)
            not_run = ""
            continues = False


def commands(block: Block) -> list[Command]:
    """Return the commands of a console block."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip() and found:
            found[-1][1].append(line)
    return [Command(line, tuple(printed)) for line, printed in found]


def missing(expected: tuple[str, ...] | list[str], printed: str) -> str:
    """Return the first expected line that is missing, in order, from ``printed``; or nothing."""
    lines = iter(printed.splitlines())
    for want in expected:
        parts = re.split(r"\.\.\.|…", want.strip())
        pattern = re.compile(".*".join(re.escape(part) for part in parts))
        if not any(pattern.fullmatch(line.strip()) for line in lines):
            return want if pattern.pattern.strip(".*") else ""
    return ""


def links(page: str) -> Iterator[str]:
    """Yield the targets of the links and pictures of a page, without code."""
    text = re.sub(r"`[^`\n]*`", "", prose(ROOT / page))
    for match in re.finditer(r"\[[^\]]*\]\(([^)\s]+)\)", text):
        yield match[1]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in headings}


def prose(page: Path) -> str:
    """Return a page without its blocks."""
    return re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.S)
