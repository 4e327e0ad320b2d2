"""Chance for waits, so that replicas do not all do the same thing at the same moment."""

from __future__ import annotations

import random

uniform = random.Random().uniform
"""Return a number between two others. An agent may seed Python's own generator, or test with it, so
it is not that one that is drawn from.
"""
