"""How long files may be: 400 lines is the aim, 600 where one thing needs it, 800 the limit.

python tests/house/file_sizes.py
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
AIM, LONG, LIMIT = 400, 600, 800

ONE_THING = {
    "src/parley/agent/turn.py": "one class: all that an author's function can do in a turn",
    "src/parley/client/remote_agent.py": "one class: every call of an agent, with what it promises",
    "src/parley/engine/turn/task_runner.py": "one class: the life of a task's turns, in order",
    "src/parley/server/http1/connection.py": "one class: input, deadlines and budgets of a request",
}
"""Files above 600 lines, each with the reason why a cut would make two that are one."""


def lengths() -> dict[str, int]:
    """Return the number of lines of every Python file of the house, by its path from the root."""
    return {
        path.relative_to(ROOT).as_posix(): len(path.read_text("utf-8").splitlines())
        for room in ("src", "tests", "examples", "benchmarks", "conformance")
        for path in sorted((ROOT / room).rglob("*.py"))
    }


def main() -> int:
    """Name the files above the aim; return 1 when one is longer than it may be."""
    refused = False
    for path, lines in lengths().items():
        if lines > LIMIT:
            print(f"{path}: {lines} lines, over the limit of {LIMIT}")
        elif lines > LONG and path.startswith("src/") and path not in ONE_THING:
            print(f"{path}: {lines} lines; one above {LONG} is named with its reason in ONE_THING")
        elif lines > AIM:
            print(f"{path}: {lines} lines, above the aim of {AIM}")
            continue
        else:
            continue
        refused = True
    return int(refused)


if __name__ == "__main__":
    sys.exit(main())
