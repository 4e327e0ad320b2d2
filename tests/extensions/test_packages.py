"""The packages in ``extensions/``, installed as a user installs them, and their own tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import parley
from parley import Agent
from parley.extensions import installed_extension
from tests.house.sizes import ROOT
from tests.peers.environments import python_with_extensions

FOLDER = ROOT / "extensions"


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return python_with_extensions(FOLDER)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"the extensions cannot be installed: {said[-300:]}")


@pytest.mark.peer
def test_the_packages_hold_what_their_pages_say(python: Path) -> None:
    """Each package runs its tests with real servers and clients, all in one process."""
    tests = [str(path) for path in sorted(FOLDER.glob("*/tests"))]
    assert len(tests) == 4
    options = ("-q", "-c", os.devnull, "-p", "no:cacheprovider", "--import-mode=importlib")
    ran = subprocess.run(
        [python, "-m", "pytest", *options, "--rootdir", str(FOLDER), *tests],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]


def test_a_name_that_nobody_installed_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="no installed package has an extension named 'nobody'"):
        Agent("Agent", extensions=["nobody"])
    with pytest.raises(ValueError, match="named 'nobody'"):
        parley.connect("http://localhost:1", extensions=["nobody"])
    with pytest.raises(ValueError, match="by its URI, which has a colon"):
        installed_extension("nobody")


def test_the_pages_of_the_packages_are_where_their_uris_lead() -> None:
    """Every URI names a page of this repository, with the version in it."""
    for package in sorted(FOLDER.glob("*/pyproject.toml")):
        page = f"extensions/{package.parent.name}/v1.md"
        uri = f"https://github.com/parley-agents/parley/blob/main/{page}"
        assert f"URI: `{uri}`" in (ROOT / page).read_text("utf-8")
        sources = "".join(p.read_text("utf-8") for p in package.parent.glob("src/*/*.py"))
        assert f'"{uri}"' in sources
        assert uri in package.read_text("utf-8")
