"""The Python of the documentation is typed: ``mypy --strict`` and pyright accept every block.

The blocks of a page become the modules of a package. A block that continues another is checked
together with it; a file imports the files of its page. pyright runs as basedpyright, with pyright's
rules, since its package brings what it runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.documents import ROOT, blocks, pages, translations, tutorial


def write(folder: Path) -> None:
    """Write the Python of each page as a package."""
    of_tutorial: dict[str, str] = {}
    for page in [*pages(), *translations()]:
        package = folder / re.sub(r"\W", "_", page.removesuffix(".md"))
        package.mkdir()
        (package / "__init__.py").touch()
        modules = dict(of_tutorial) if page in tutorial() else {}
        text = ""
        for block in blocks(page):
            if block.language == "python" and not block.not_run:
                text = (text if block.continues else "") + block.text
                modules[Path(block.file).stem if block.file else f"line_{block.line}"] = text
        for name, text in modules.items():
            (package / f"{name}.py").write_text(within(package.name, text, modules), "utf-8")
        if page in tutorial():
            of_tutorial = {name: text for name, text in modules.items() if name[:5] != "line_"}


def within(package: str, text: str, modules: dict[str, str]) -> str:
    """Return a module that imports the other modules of its page from the page's package."""
    names = "|".join(map(re.escape, modules))
    text = re.sub(rf"^( *)from ({names}) import", rf"\1from {package}.\2 import", text, flags=re.M)
    return re.sub(rf"^( *)import ({names})$", rf"\1from {package} import \2", text, flags=re.M)


def mypy(folder: Path) -> list[str]:
    arguments = ["--strict", "--ignore-missing-imports", "--explicit-package-bases", "."]
    return run(folder, "mypy", *arguments, MYPYPATH=os.pathsep.join([str(ROOT / "src"), "."]))


def pyright(folder: Path) -> list[str]:
    settings = {
        "typeCheckingMode": "standard",
        "reportMissingImports": False,
        "reportMissingModuleSource": False,
        "extraPaths": [str(ROOT / "src"), "."],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    arguments = ["--project", ".", "--level", "error", "--pythonpath", sys.executable]
    return run(folder, "basedpyright", *arguments)


def run(folder: Path, module: str, *arguments: str, **environment: str) -> list[str]:
    """Run a type checker, and return its errors. A checker that finds nothing to check fails."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if re.search(r"\berror\b:? ", line)]


@pytest.mark.slow
@pytest.mark.parametrize("check", [mypy, pyright])
def test_every_block_of_the_documentation_is_typed(check, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "wrong.py").write_text('import parley\n\nparley.Agent(1)\nnumber: int = "a"\n')
    errors = check(tmp_path)
    wrong = [error for error in errors if "wrong.py" in error]
    assert len(wrong) == 2  # the checker knows Parley's types
    assert errors == wrong
