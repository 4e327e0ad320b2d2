"""An index of each kind, for health monitoring."""

from tests.kit.waiting import Clock
from tests.registry.index.conftest import clock, index

__all__ = ["Clock", "clock", "index"]
