"""The built page is what its sources make."""

from __future__ import annotations

import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from tests.house.sizes import ROOT
from tests.peers.environments import NotMade, packages_of

SOURCES = ROOT / "web"


@pytest.mark.peer
def test_the_committed_page_is_what_its_sources_make(tmp_path: Path) -> None:
    try:
        node, home = packages_of(SOURCES)
    except NotMade as error:
        pytest.skip(str(error))
    web = tmp_path / "web"
    shutil.copytree(SOURCES, web, ignore=shutil.ignore_patterns("node_modules"))
    (web / "node_modules").symlink_to(home / "node_modules")
    for words in (("typescript/bin/tsc", "--noEmit"), ("vite/bin/vite.js", "build")):
        done = subprocess.run(
            [node, f"node_modules/{words[0]}", *words[1:]], cwd=web, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr
    committed = files("parley.server") / "page"
    for name in ("page.js", "page.css"):
        made = (tmp_path / "src/parley/server/page" / name).read_bytes()
        assert made == committed.joinpath(name).read_bytes(), f"{name} is older than web/: make web"


def test_the_lock_names_no_registry() -> None:
    assert '"resolved"' not in (SOURCES / "package-lock.json").read_text("utf-8")
