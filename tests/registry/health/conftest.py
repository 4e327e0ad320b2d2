"""An index of each kind, for what looks after agents."""

from tests.registry.index.conftest import Clock, clock, index

__all__ = ["Clock", "clock", "index"]
