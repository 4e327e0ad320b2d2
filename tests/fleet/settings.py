"""The amount of tests: small in CI, larger with an environment variable."""

from __future__ import annotations

import os


def schedules(few: int) -> int:
    """Return the number of fault schedules per test: ``PARLEY_FLEETS``, if set."""
    return int(os.environ.get("PARLEY_FLEETS", few))
