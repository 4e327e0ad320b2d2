"""Which steps from line to line a call takes through Parley's own code.

Only ``sys.settrace`` is needed, so it works wherever Python does. Code in C is not seen: what
it made of its input shows in the lines that are run next.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import parley

ROOT = str(Path(parley.__file__).parent)


class Traced:
    """What one call did: the steps it took between lines, and how many lines it ran."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.lines = 0

    @property
    def features(self) -> set[int]:
        """The steps, each with the order of magnitude of how often it was taken."""
        return {step << 5 | min(count.bit_length(), 31) for step, count in self.steps.items()}


_ours: dict[str, bool] = {}
_places: dict[CodeType, int] = {}


def _place(code: CodeType) -> int:
    """Return the number of a function: the same in every process, as its address is not."""
    place = _places.get(code)
    if place is None:
        words = f"{code.co_filename.removeprefix(ROOT)} {code.co_firstlineno} {code.co_qualname}"
        place = _places[code] = zlib.crc32(words.encode()) << 12
    return place


def traced(call: Callable[[bytes], None], data: bytes) -> Traced:
    """Call a function and return what it did. Raises what the function raises."""
    seen = Traced()
    steps, before, lines = seen.steps, 0, 0

    def in_function(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal before, lines
        if event == "line":
            lines += 1
            here = _place(frame.f_code) + frame.f_lineno
            step = before * 31 ^ here
            steps[step] = steps.get(step, 0) + 1
            before = here
        return in_function

    def entering(frame: FrameType, event: str, arg: Any) -> Any:
        file = frame.f_code.co_filename
        ours = _ours.get(file)
        if ours is None:
            ours = _ours[file] = file.startswith(ROOT)
        return in_function if ours else None

    others = sys.gettrace()
    sys.settrace(entering)
    try:
        call(data)
    finally:
        sys.settrace(others)
        seen.lines = lines
    return seen
