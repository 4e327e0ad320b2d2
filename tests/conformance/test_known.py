"""The page lists the known results of the conformance kits, and a deviating run is detected."""

from __future__ import annotations

import pytest
from conformance.outcomes import Known, Outcome, differences, known, read_junit, summary
from conformance.pages import PAGE, TITLES, written

ENTRY = Known(
    "kit",
    "failed",
    "kit",
    "It asks for too much.",
    tests=("*.test_greedy[*]",),
    said=("no time for *",),
)
SKIPPED = Known("kit", "skipped", "setting", "Not here.", said=("no * here",))


def test_the_page_shows_what_is_known() -> None:
    page = PAGE.read_text("utf-8")
    assert page == written(page, known()), "run: python -m conformance.pages"


def test_every_entry_says_which_run_whose_doing_and_why() -> None:
    for entry in known():
        assert entry.run in TITLES
        assert entry.outcome in ("failed", "skipped", "xfailed", "error")
        assert entry.whose in ("specification", "kit", "setting", "ours")
        assert entry.why.endswith(".")
        assert entry.tests or entry.said


def test_a_run_that_comes_out_as_known_has_no_differences() -> None:
    outcomes = {
        "a.test_fine": Outcome("passed"),
        "a.test_greedy[grpc]": Outcome("failed", "too little"),
        "a.test_far": Outcome("skipped", "no network here"),
    }
    assert differences("kit", outcomes, [ENTRY, SKIPPED]) == []
    assert summary("kit", outcomes) == "kit: 3 tests: 1 failed, 1 passed, 1 skipped"


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ({"a.test_fine": Outcome("failed", "oh")}, "a.test_fine: failed, and known to be passed"),
        ({"a.test_far": Outcome("skipped", "no luck")}, "a.test_far: skipped"),
        ({"a.test_greedy[x]": Outcome("passed")}, "known to be failed"),
        ({"a.test_fine": Outcome("passed")}, "nothing is like *.test_greedy[*], no time for *"),
        ({}, "there was no test"),
    ],
)
def test_a_run_that_comes_out_otherwise_is_told(outcomes: dict[str, Outcome], said: str) -> None:
    assert any(said in line for line in differences("kit", outcomes, [ENTRY]))


def test_outcomes_are_read_from_junit(tmp_path) -> None:
    report = tmp_path / "junit.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="tests.a" name="test_fine"/>'
        '<testcase classname="tests.a" name="test_bad"><failure message="oh"/></testcase>'
        '<testcase classname="tests.a" name="test_far"><skipped message="why"/></testcase>'
        '<testcase classname="tests.a" name="test_known">'
        '<skipped type="pytest.xfail" message="later"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert read_junit(report) == {
        "a.test_fine": Outcome("passed"),
        "a.test_bad": Outcome("failed", "oh"),
        "a.test_far": Outcome("skipped", "why"),
        "a.test_known": Outcome("xfailed", "later"),
    }
