"""The plan (docs/internals/architecture.md) lists each room of the house, on its floor."""

from __future__ import annotations

import re
import tomllib

from tests.house.sizes import ROOT

PLAN = (ROOT / "docs" / "internals" / "architecture.md").read_text("utf-8")
HOUSE = ROOT / "src" / "parley"


def rooms() -> dict[str, int]:
    """Return the rooms of the plan and the floor of each."""
    rows = re.findall(r"^\| (\d+) \| `(\w+)/` \|", PLAN, flags=re.MULTILINE)
    return {room: int(floor) for floor, room in rows}


def folders() -> set[str]:
    """Return the folders of the house that hold code."""
    return {path.parent.name for path in HOUSE.glob("*/*.py")}


def test_the_plan_names_every_room() -> None:
    assert rooms().keys() == folders()


def test_the_floors_of_the_plan_are_those_that_are_held() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    [floors] = [each["layers"] for each in contracts if each["type"] == "layers"]
    held = {
        name.strip().removeprefix("parley."): number
        for number, floor in enumerate(reversed(floors), 1)
        for name in floor.split("|")
    }
    assert rooms() == held


def test_every_file_that_the_plan_names_is_there() -> None:
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", PLAN))
    assert named
    here = {name for name in named if (HOUSE / name).is_file() or (ROOT / name).is_file()}
    assert named - here == set()
