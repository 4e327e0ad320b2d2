"""The error sentences of docs/guides/troubleshooting.md exist in the code."""

from __future__ import annotations

import ast
import re

import pytest

from tests.house.sizes import ROOT

PAGE = ROOT / "docs" / "guides" / "troubleshooting.md"
STATES = {"FAILED", "INPUT_REQUIRED", "SUBMITTED", "WORKING", "http://", "async def"}


def quoted_sentences() -> list[str]:
    """Return the quotations in the first column of the page's tables, without task states."""
    cells = re.findall(r"^\| (.+?) \|", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    quoted = [words for cell in cells for words in re.findall(r"`([^`]+)`", cell)]
    return [words for words in quoted if words not in STATES and " " in words]


def sentences() -> str:
    """Return all texts of the code; ``{}`` stands for a value within a text."""
    found = []
    for path in (ROOT / "src" / "parley").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
            elif isinstance(node, ast.JoinedStr):
                parts = (
                    str(part.value) if isinstance(part, ast.Constant) else "{}"
                    for part in node.values
                )
                found.append("".join(parts))
    return "\n".join(found)


def test_the_page_quotes_enough() -> None:
    assert len(quoted_sentences()) > 12


@pytest.mark.parametrize("sentence", quoted_sentences())
def test_the_code_says_the_sentence(sentence: str, said: str) -> None:
    words = sentence.replace("Connection refused", "...")  # the operating system's words
    pattern = r"[^\n]*?".join(re.escape(part.strip()) for part in words.split("...") if part)
    assert re.search(pattern.replace(r"\ ", " "), said), sentence


@pytest.fixture(scope="module")
def said() -> str:
    return sentences()
