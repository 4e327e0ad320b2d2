"""The size of the code by room, in a measure that no formatter changes.

    python tests/house/sizes.py            the sizes, and the budget of each room
    python tests/house/sizes.py --slices   the modules that only one neighbour imports
    python tests/house/sizes.py --write    lower the budgets to the sizes; none is raised

The counts are: Python tokens without comments, docstrings and line ends; modules; and slices:
modules of fewer than 120 code lines that exactly one other module of the same folder imports.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "parley"
BUDGETS = ROOT / "tests" / "house" / "budgets.toml"
SLICE_LINES = 120

IGNORED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}


class Measured(NamedTuple):
    """One module: its code, and the absolute names that it imports."""

    tokens: int
    lines: int
    imports: set[str]


class Slice(NamedTuple):
    """A module that belongs into its only importer."""

    path: str
    lines: int
    reader: str


def measure(path: Path) -> Measured:
    """Measure a module."""
    text = path.read_text("utf-8")
    docstrings: set[int] = set()
    imports: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                docstrings.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports.add(node.module)
            imports.update(f"{node.module}.{alias.name}" for alias in node.names)
    tokens = 0
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in IGNORED and token.start[0] not in docstrings:
            tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    return Measured(tokens, len(lines), imports)


def room_of(path: Path) -> str:
    """Return the room of a module, ``.`` for modules directly in the package."""
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else "."


@cache
def sizes() -> tuple[dict[str, Counter[str]], list[Slice]]:
    """Return tokens, modules and slices of each room, and the slices."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    modules: dict[str, tuple[Path, int]] = {}
    readers: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        measured = measure(path)
        rooms[room_of(path)].update(tokens=measured.tokens, modules=1, slices=0)
        name = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        modules[name] = path, measured.lines
        for imported in measured.imports:
            readers[imported].add(name)
    slices = []
    for name, (path, lines) in modules.items():
        reader = ", ".join(readers[name] - {name})
        is_beside = reader.rpartition(".")[0] == name.rpartition(".")[0]
        if lines < SLICE_LINES and path.name != "__init__.py" and reader and is_beside:
            slices.append(Slice(path.relative_to(SOURCE).as_posix(), lines, reader))
            rooms[room_of(path)]["slices"] += 1
    return rooms, slices


def budgets() -> dict[str, dict[str, int]]:
    """Return the budget of each room."""
    found: dict[str, dict[str, int]] = tomllib.loads(BUDGETS.read_text("utf-8"))
    return found


def write(rooms: dict[str, Counter[str]]) -> None:
    """Lower the budgets to the sizes. A room without a budget gets one; none is raised."""
    text = BUDGETS.read_text("utf-8")
    known = budgets()
    lines = text[: text.index("[")].splitlines() if "[" in text else text.splitlines()
    for room in sorted(rooms):
        lines += ["", f'["{room}"]' if room == "." else f"[{room}]"]
        for what, size in rooms[room].items():
            lines.append(f"{what} = {min(size, known.get(room, {}).get(what, size))}")
    BUDGETS.write_text(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n", "utf-8")


def main(arguments: list[str]) -> None:
    """Show the sizes, or lower the budgets."""
    rooms, slices = sizes()
    if "--write" in arguments:
        write(rooms)
    if "--slices" in arguments:
        for path, lines, reader in sorted(slices):
            print(f"{lines:5} {path}  only for {reader}")
        return
    known = budgets()
    total: Counter[str] = Counter()
    print(f"{'room':14}{'tokens':>10}{'may have':>10}{'modules':>9}{'may have':>10}{'slices':>8}")
    for room, size in sorted(rooms.items(), key=lambda item: -item[1]["tokens"]):
        total.update(size)
        allowed = known.get(room, {})
        print(
            f"{room:14}{size['tokens']:>10,}{allowed.get('tokens', 0):>10,}{size['modules']:>9}"
            f"{allowed.get('modules', 0):>10}{size['slices']:>8}"
        )
    print(
        f"{'all':14}{total['tokens']:>10,}{'':10}{total['modules']:>9}{'':10}{total['slices']:>8}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
