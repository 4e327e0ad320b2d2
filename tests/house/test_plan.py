"""The plan of the house (docs/architecture.md) names the rooms that there are, on their floors."""

from __future__ import annotations

import re
import tomllib

from tests.house.file_sizes import ROOT

PLAN = (ROOT / "docs" / "architecture.md").read_text("utf-8")
HOUSE = ROOT / "src" / "parley"
CROWDED = 20
"""Files in one folder that ask for sub-rooms, whatever they hold."""


def rooms() -> dict[str, int]:
    """Return the rooms of the plan and the floor of each."""
    rows = re.findall(r"^\| (\d+) \| `(\w+)/` \|", PLAN, flags=re.MULTILINE)
    return {room: int(floor) for floor, room in rows}


def sub_rooms() -> set[str]:
    """Return the sub-rooms of the plan."""
    return set(re.findall(r"^\| `(\w+(?:/\w+)+)/` \|", PLAN, flags=re.MULTILINE))


def folders(depth: int) -> set[str]:
    """Return the folders so deep in the house that hold code."""
    found = {path.parent.relative_to(HOUSE) for path in HOUSE.rglob("*.py")}
    return {"/".join(folder.parts) for folder in found if len(folder.parts) == depth}


def test_the_plan_names_every_room() -> None:
    assert rooms().keys() == folders(1)


def test_the_plan_names_every_sub_room() -> None:
    assert sub_rooms() == folders(2) | folders(3)
    assert folders(4) == set()


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


def test_no_folder_is_crowded() -> None:
    files = {folder: len(list((HOUSE / folder).glob("*.py"))) for folder in folders(1) | folders(2)}
    assert {folder: count for folder, count in files.items() if count > CROWDED} == {}
