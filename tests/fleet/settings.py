"""How much is tried: little in CI, as much as one likes by an environment variable."""

from __future__ import annotations

import os


def schedules(few: int) -> int:
    """Return how many schedules of faults a test runs: ``PARLEY_FLEETS`` if that is given."""
    return int(os.environ.get("PARLEY_FLEETS", few))
