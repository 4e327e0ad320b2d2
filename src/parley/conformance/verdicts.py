"""What a check finds: a requirement, and whether it is met, with the reason where it is not."""

from __future__ import annotations

from typing import Literal

import msgspec

from parley.conformance.sections import link

Level = Literal["MUST", "SHOULD", "MAY"]
Outcome = Literal["passed", "failed", "skipped"]


class ConformanceViolation(Exception):
    """A requirement is not met; says what came, and what would be right."""


class NotApplicable(Exception):
    """A requirement cannot be tried here; says why, and how it could be."""


class ConformanceRequirement(msgspec.Struct, frozen=True, kw_only=True):
    """One requirement of the specification, as reports name it."""

    id: str
    level: Level
    section: str
    title: str

    @property
    def link(self) -> str:
        """The address of the section."""
        return link(self.section)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one requirement at one place: an interface, a scenario, or the card.

    ``reason`` is why it failed or was skipped; ``evidence`` the last exchange before a failure.
    """

    requirement: ConformanceRequirement
    where: str
    outcome: Outcome
    reason: str = ""
    evidence: str = ""

    @property
    def breaks(self) -> bool:
        """Whether a MUST is not met."""
        return self.outcome == "failed" and self.requirement.level == "MUST"


def chosen(id: str, only: tuple[str, ...], skip: tuple[str, ...]) -> bool:
    """Return whether a check takes part. ``only`` and ``skip`` have ids, or how they begin."""
    wanted = not only or any(id.upper().startswith(each.upper()) for each in only)
    return wanted and not any(id.upper().startswith(each.upper()) for each in skip)
