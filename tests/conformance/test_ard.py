"""The official tool of Agentic Resource Discovery passes what servers publish."""

from __future__ import annotations

import subprocess

import pytest
from conformance.ard import SCENES, checked
from conformance.kits import ARD, NotAtHand, files_of

from parley.registry.catalog.reading import catalog_problems
from parley.server.run import serving
from tests.server.raw_http import ask

pytestmark = pytest.mark.anyio

EVERY = [(name, path) for name, scene in SCENES.items() for path in scene.paths]


@pytest.fixture(scope="module")
def kit():
    try:
        return files_of(ARD)
    except (NotAtHand, OSError, subprocess.SubprocessError) as error:
        pytest.skip(str(error))


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
