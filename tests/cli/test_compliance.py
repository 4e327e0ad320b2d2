"""The report of what the command does of its specification is true."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
REPORT = HERE.parents[1] / "docs" / "reference" / "cli-compliance.md"
TIER_1 = {
    "CARD_GET": 1, "SEND": 6, "TASK_GET": 1, "TASK_CANCEL": 1, "INTERACT": 5, "TASK_POLL": 4,
    "OUT": 6, "EXIT": 2, "AUTH": 4, "TX": 3, "VER": 1, "DEFAULT": 1, "CONFIG": 1, "CLI": 1,
    "SKILL": 2,
}  # fmt: skip
TIER_2 = {
    "CARD_GET": (2,), "TASK_LIST": (1,), "TASK_SUBSCRIBE": (1, 2), "AUTH": (5, 6, 7), "TX": (4,),
    "VER": (3,), "CONFIG": (2,), "DOWNLOAD": (1,), "OUT": (7,), "CONFORM": (1,), "CLI": (2,),
    "PUSH": (1,),
}  # fmt: skip
TIER_3 = {
    "CARD_GET": (3, 4, 5), "AUTH": (8, 9, 10, 11), "PUSH": (2,), "CHAT": (1,), "TX": (5,),
    "DEMO_SERVER": (1,), "VER": (2,),
}  # fmt: skip
TIERS = [{area: range(1, count + 1) for area, count in TIER_1.items()}, TIER_2, TIER_3]
"""The requirements of each tier, as the specification's COMPLIANCE.md lists them."""

ROW = re.compile(
    r"\| `(A2ACLI_[A-Z_]+_\d{3})` \|.*\| (✅ Pass|— N/A|◐ Partial|❌ Fail) \| (.*?) \| (.*?) ?\|"
)


def rows():
    return [match.groups() for line in REPORT.read_text("utf-8").splitlines()
            if (match := ROW.match(line))]  # fmt: skip


def files_by_requirement():
    found: dict[str, set[str]] = {}
    for file in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for name in re.findall(r"A2ACLI_[A-Z_]+_\d{3}", ast.get_docstring(node) or ""):
                    found.setdefault(name, set()).add(file.relative_to(HERE).as_posix())
    return found


def wanted(tier):
    return [f"A2ACLI_{area}_{n:03}" for area, numbers in tier.items() for n in numbers]


def test_the_report_names_all_requirements_of_the_specification_once_tier_by_tier():
    tiers = [wanted(tier) for tier in TIERS]
    assert [len(tier) for tier in tiers] == [39, 15, 12]
    names = [name for name, *_ in rows()]
    assert len(names) == 66
    for tier in tiers:
        assert sorted(names[: len(tier)]) == sorted(tier)
        del names[: len(tier)]


def test_what_is_marked_as_passed_is_shown_by_the_tests_that_are_named():
    shown = files_by_requirement()
    for name, status, files, note in rows():
        if status == "✅ Pass":
            assert set(re.findall(r"tests/cli/([\w/]*test_\w+\.py)", files)) == shown[name], name
        else:
            assert note, f"{name} needs a reason"
    assert set(shown) <= {name for name, *_ in rows()}


def test_the_counts_of_the_report_are_those_of_its_rows():
    left = [status for _, status, *_ in rows()]
    for number, tier in enumerate(TIERS, 1):
        total = len(wanted(tier))
        statuses, left = left[:total], left[total:]
        marks = ("✅ Pass", "◐ Partial", "❌ Fail", "⊘ Not measured", "— N/A")
        counts = [statuses.count(mark) for mark in marks]
        holds = "yes" if counts[0] + counts[4] == total else "no"
        cells = " | ".join(map(str, [total, *counts, holds]))
        found = re.search(rf"^\| Tier {number}, \w+ \| (.*) \|$", REPORT.read_text("utf-8"), re.M)
        assert found[1] == cells
