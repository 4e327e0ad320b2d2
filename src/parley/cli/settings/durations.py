"""Durations in text: 2s, 500ms, 1m, 1m30s."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_TERM = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_PLAIN = re.compile(r"\d+(?:\.\d+)?")


def parse_duration(text: str) -> float:
    """Return ``text`` in seconds; a plain number is in seconds. Raises ``ValueError``."""
    normal = text.strip().lower()
    if _PLAIN.fullmatch(normal):
        return float(normal)
    if not normal or _TERM.sub("", normal):
        raise ValueError(f"{text!r} is not a duration such as 2s, 500ms, 1m or 1m30s")
    return sum(float(number) * _UNITS[unit] for number, unit in _TERM.findall(normal))


def parse_span(text: str) -> float:
    """Return a span of days or less in seconds: 30d, 12h, 1h30m. Raises ``ValueError``."""
    days = re.fullmatch(r"(\d+(?:\.\d+)?)d", text.strip().lower())
    return float(days[1]) * 86_400 if days else parse_duration(text)


def format_duration(seconds: float) -> str:
    """Return ``seconds`` in a form for ``parse_duration``."""
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit in ("h", "m"):
        if seconds % _UNITS[unit] == 0:
            return f"{seconds / _UNITS[unit]:g}{unit}"
    return f"{seconds:g}s"
