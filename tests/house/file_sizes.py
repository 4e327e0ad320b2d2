"""How long files may be: 400 lines is the aim, 800 the limit.

python tests/house/file_sizes.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
AIM, LIMIT = 400, 800


def lengths() -> dict[str, int]:
    """Return the number of lines of every Python file of the house, by its path from the root."""
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines())
        for room in ("src", "tests", "examples", "benchmarks", "conformance")
        for path in sorted((ROOT / room).rglob("*.py"))
    }


def main() -> int:
    """Name the files above the aim; return 1 when one is above the limit."""
    long = {path: lines for path, lines in lengths().items() if lines > AIM}
    for path, lines in long.items():
        what = (
            f"over the limit of {LIMIT}" if lines > LIMIT else f"longer than {AIM}; split it soon"
        )
        print(f"{path}: {lines} lines, {what}")
    return int(any(lines > LIMIT for lines in long.values()))


if __name__ == "__main__":
    sys.exit(main())
