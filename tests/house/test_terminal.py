"""Only one module writes to a terminal; it escapes the text of peers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.house.sizes import ROOT

SOURCES = sorted((ROOT / "src" / "parley").rglob("*.py"))
PLACE = "cli/output/streams.py"

# Other modules that may name a stream, and why no raw text of peers reaches a terminal there.
MAY_NAME_A_STREAM = {
    "envelope/command_call.py": "flushes",
    "cli/calls/follow.py": "flushes",
    "cli/commands/auth.py": "asks, in words of its own, for what it is not to read from arguments",
    "cli/chat/terminal.py": "reads, with prompts on one line, escaped",
    "cli/doctor.py": "asks for its encoding",
    "conformance/commands.py": "asks whether it is a terminal",
    "cli/commands/push.py": "flushes",
    "server/workers.py": "flushes what agents have printed, before a worker exits",
    "cli/store/transfer.py": "writes the lines of an export, which it refuses to a terminal",
    "cli/commands/audit.py": "writes the lines of an export, which it refuses to a terminal",
    "cli/calls/messages.py": "reads",
    "host/banner.py": "writes addresses and the names of agents, unprintable characters escaped",
}
MAY_DRAW = {
    "cli/output/rich_answer.py": "on a console that shows what it is given as text",
    "cli/output/pictures.py": "half blocks",
    "cli/commands/top.py": "on the console of rich_answer",
    "cli/rich_view.py": "on the console of rich_answer",
    "cli/chat/terminal.py": "edits what is typed",
}

PRINTS = {"print", "pprint", "echo", "secho", "print_exc", "print_exception", "print_stack"}
PRINTS |= {"excepthook", "print_tb", "StreamHandler", "basicConfig", "showwarning"}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
DRAWS = {"rich", "curses", "readline"}


def name(path: Path) -> str:
    return path.relative_to(ROOT / "src" / "parley").as_posix()


def called(tree: ast.AST) -> Iterator[str]:
    """Yield the last name of each called function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name):
                yield function.id
            elif isinstance(function, ast.Attribute):
                yield function.attr


def streams(tree: ast.AST) -> set[str]:
    """Return the standard streams that a module names."""
    of_sys = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "sys"
    }
    taken = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "sys"
        for alias in node.names
    }
    return (of_sys | taken) & STREAMS


def imported(tree: ast.AST) -> set[str]:
    """Return the packages that a module imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_nothing_is_printed_but_through_the_one_place() -> None:
    for path in SOURCES:
        file, tree = name(path), ast.parse(path.read_text("utf-8"))
        if file == PLACE:
            continue
        by_console = {"print"} if file in MAY_DRAW else set()
        assert set(called(tree)) & PRINTS <= by_console, file
        assert not streams(tree) or file in MAY_NAME_A_STREAM, file
        assert not imported(tree) & DRAWS or file in MAY_DRAW, file


def test_what_may_name_a_stream_does() -> None:
    for listed in MAY_NAME_A_STREAM:
        source = (ROOT / "src" / "parley" / listed).read_text("utf-8")
        assert re.search(r"sys\.(__)?std", source), listed
