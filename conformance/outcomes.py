"""What came of each test of a run, and whether that is what is known to come of it."""

from __future__ import annotations

import tomllib
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree


class Outcome(NamedTuple):
    """What came of a test: passed, failed, error, skipped or xfailed, and what was said to it."""

    kind: str
    said: str = ""


Outcomes = dict[str, Outcome]
"""What came of each test, by its name."""

EXPECTED = Path(__file__).with_name("expected.toml")


class Known(NamedTuple):
    """Tests of a run of which it is known that they do not pass: whose doing that is, and why.

    ``tests`` are patterns for their names, ``said`` for what the kit says when it passes them over.
    """

    run: str
    outcome: str
    whose: str
    why: str
    tests: tuple[str, ...] = ()
    said: tuple[str, ...] = ()

    def covers(self, test: str, outcome: Outcome) -> bool:
        """Whether this speaks of a test; ``*`` in its patterns stands for anything."""
        return _matches(test, self.tests) or (
            outcome.kind == self.outcome and _matches(outcome.said, self.said)
        )


def _matches(text: str, patterns: tuple[str, ...]) -> bool:
    # Brackets are part of names, not of patterns.
    return any(fnmatchcase(text, pattern.replace("[", "[[]")) for pattern in patterns)


def known(path: Path = EXPECTED) -> list[Known]:
    """Return everything that is known, in the order in which it is written down."""
    entries = tomllib.loads(path.read_text("utf-8"))["known"]
    return [
        Known(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()})
        for entry in entries
    ]


def read_junit(path: Path) -> Outcomes:
    """Return the outcomes that a JUnit file tells."""
    outcomes: Outcomes = {}
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name')}"
        outcomes[name] = Outcome("passed")
        for tag, kind in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
            found = case.find(tag)
            if found is not None:
                expected = found.get("type") == "pytest.xfail"
                said = found.get("message", "")
                outcomes[name] = Outcome("xfailed" if expected else kind, said[:300])
    return outcomes


def differences(run: str, outcomes: Outcomes, entries: list[Known]) -> list[str]:
    """Return what is otherwise than it is known to be, a sentence each."""
    found = []
    mine = [entry for entry in entries if entry.run == run]
    met: set[Known] = set()
    for test, outcome in outcomes.items():
        about = [entry for entry in mine if entry.covers(test, outcome)]
        met.update(about)
        if len(about) > 1:
            found.append(f"{test}: several entries speak of it")
        wanted = about[0].outcome if about else "passed"
        if outcome.kind != wanted:
            found.append(f"{test}: {outcome.kind}, and known to be {wanted} ({outcome.said[:120]})")
    unmet = [entry for entry in mine if entry not in met]
    found += [f"nothing is like {', '.join(entry.tests + entry.said)}" for entry in unmet]
    if not outcomes:
        found.append("there was no test")
    return found


def summary(run: str, outcomes: Outcomes) -> str:
    """Return one line of numbers."""
    counts = Counter(outcome.kind for outcome in outcomes.values())
    told = ", ".join(f"{counts[kind]} {kind}" for kind in sorted(counts))
    return f"{run}: {len(outcomes)} tests: {told}"
