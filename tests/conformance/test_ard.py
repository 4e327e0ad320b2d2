"""The official tool for Agentic Resource Discovery accepts the documents that servers publish."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from conformance.ard import SCENES, TEXT, TOOL, TOOL_SHA256, VERSION, checked
from conformance.kits import ARD, NotAtHand, files_of

from parley.registry.catalog.reading import catalog_problems
from parley.server.run import serving
from tests.kit.http import ask

pytestmark = pytest.mark.anyio

EVERY = [(name, path) for name, scene in SCENES.items() for path in scene.paths]


@pytest.fixture(scope="module")
def kit():
    try:
        return files_of(ARD)
    except (NotAtHand, OSError, subprocess.SubprocessError) as error:
        pytest.skip(str(error))


def test_the_tool_is_of_the_version_that_is_followed(kit):
    tool = (kit / TOOL).read_bytes()
    assert hashlib.sha256(tool).hexdigest() == TOOL_SHA256, "a new tool: read its text, follow it"
    assert f"specification ({VERSION})" in tool.decode()
    if (kit / TEXT).exists():  # the folder may contain the tool only
        assert f"**Version**: {VERSION}\n" in (kit / TEXT).read_text("utf-8")


def test_the_documentation_names_the_version_that_is_followed():
    for page in ("registry/index.md", "publish-a-catalog.md"):
        text = Path("docs", "guides", page).read_text("utf-8")
        assert f"ARD {VERSION.removeprefix('v')}" in text, page


@pytest.mark.parametrize("scene", SCENES)
async def test_the_official_tool_resolves_a_publisher(kit, scene):
    async with serving(SCENES[scene].app()) as url:
        assert await checked(kit, url, "publisher") == ("passed", "")


@pytest.mark.parametrize(("scene", "path"), EVERY)
async def test_the_official_tool_passes_a_catalog(kit, scene, path):
    async with serving(SCENES[scene].app()) as url:
        assert await checked(kit, url + path) == ("passed", "")


async def test_the_official_tool_fails_what_is_no_catalog(kit):
    async with serving(SCENES["one agent"].app()) as url:
        outcome = await checked(kit, f"{url}/.well-known/agent-card.json")
        assert outcome.kind == "failed"


@pytest.mark.parametrize(("scene", "path"), EVERY)
async def test_our_own_checks_pass_a_catalog(scene, path):
    async with serving(SCENES[scene].app()) as url:
        catalog = (await ask(url, "GET", path)).json
    problems = [each for each in catalog_problems(catalog) if each.is_error]
    assert problems == []
    for entry in catalog["entries"]:
        if "representativeQueries" in entry:
            assert 2 <= len(entry["representativeQueries"]) <= 5
