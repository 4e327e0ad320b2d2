"""The report of what the command does of its specification is true."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
REPORT = HERE.parents[1] / "docs" / "cli-compliance.md"
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
ROW = re.compile(
    r"\| `(A2ACLI_[A-Z_]+_\d{3})` \|.*\| (✅ Pass|— N/A|◐ Partial|❌ Fail) \| (.*?) \| (.*?) ?\|"
)


def rows():
    return [match.groups() for line in REPORT.read_text("utf-8").splitlines()
            if (match := ROW.match(line))]  # fmt: skip


def rows_of_tier_1():
    return rows()[:39]


def files_by_requirement():
    found: dict[str, set[str]] = {}
    for file in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for name in re.findall(r"A2ACLI_[A-Z_]+_\d{3}", ast.get_docstring(node) or ""):
                    found.setdefault(name, set()).add(file.relative_to(HERE).as_posix())
    return found


def test_every_requirement_of_tier_1_is_in_the_report_once():
    wanted = [f"A2ACLI_{a}_{n:03}" for a, count in TIER_1.items() for n in range(1, count + 1)]
    assert len(wanted) == 39
    assert sorted(name for name, *_ in rows_of_tier_1()) == sorted(wanted)


def test_every_requirement_of_tier_2_is_in_the_report_though_not_all_are_met():
    wanted = {f"A2ACLI_{a}_{n:03}" for a, numbers in TIER_2.items() for n in numbers}
    assert len(wanted) == 15
    names = [name for name, *_ in rows()]
    assert len(names) == len(set(names))
    assert wanted <= set(names)


def test_what_is_marked_as_passed_is_shown_by_the_tests_that_are_named():
    shown = files_by_requirement()
    for name, status, files, note in rows():
        if status == "✅ Pass":
            assert set(re.findall(r"tests/cli/([\w/]*test_\w+\.py)", files)) == shown[name], name
        else:
            assert note, f"{name} needs a reason"
    assert set(shown) <= {name for name, *_ in rows()}


def test_the_count_of_the_report_is_that_of_its_rows():
    statuses = [status for _, status, *_ in rows_of_tier_1()]
    counts = f"| 39 | {statuses.count('✅ Pass')} | 0 | 0 | 0 | {statuses.count('— N/A')} | yes |"
    assert counts in REPORT.read_text("utf-8")
