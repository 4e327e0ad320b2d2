"""The names of the envelope protocol, for who only has to recognise them."""

from __future__ import annotations

BINDING = "urn:parley:envelope:v1"
"""The name of the binding on A2A cards (A2A specification §12)."""
