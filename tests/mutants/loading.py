"""Putting a mutant, or probes, into the product: here, and in processes that tests start.

In an imported module, functions get new code; another module is compiled from the changed syntax
tree at its import. Processes that tests start do the latter: the folder ``startup`` is on their
path, and its ``sitecustomize`` calls ``from_environment``.
"""

from __future__ import annotations

import builtins
import gc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
STARTUP = Path(__file__).parent / "startup"

MUTANT = "PARLEY_MUTANT"
"""Variable: the mutant to run with, as ``src/parley/x.py:17``."""

PROBES = "PARLEY_PROBES"
"""Variable: a file of probes, ``{path: {index: number}}`` as JSON."""

REACHED = "PARLEY_REACHED"
"""Variable: the folder where processes write the numbers of the probes that they reached."""

Compile = Callable[[str, str], CodeType]


class ModuleChanger(MetaPathFinder):
    """Compiles some modules from changed syntax trees; ``changes`` has a compiler for each path."""

    def __init__(self, changes: dict[str, Compile]) -> None:
        self.changes = changes

    def install(self) -> None:
        """Change the modules that are already imported, and later imports."""
        sys.meta_path.insert(0, self)
        for module in list(sys.modules.values()):
            path = _path_of(getattr(module, "__file__", None))
            if path in self.changes:
                swap(module, self.changes[path])

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the usual spec, with a loader that compiles the changed tree."""
        if not name.startswith("parley"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        at = _path_of(spec.origin) if spec else ""
        if spec is None or at not in self.changes:
            return None
        spec.loader = _Loader(name, str(spec.origin), self.changes[at])
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, compiler: Compile) -> None:
        super().__init__(name, path)
        self._compiler = compiler

    def get_code(self, fullname: str) -> CodeType:
        return self._compiler(Path(self.path).read_text("utf-8"), self.path)


def _path_of(file: str | None) -> str:
    """Return a file's path from the root, empty for a file outside."""
    if not file or not file.startswith(f"{ROOT}{os.sep}"):
        return ""
    return Path(file).relative_to(ROOT).as_posix()


def swap(module: ModuleType, compiler: Compile) -> None:
    """Give the functions of an imported module the code of its changed source."""
    path = str(module.__file__)
    source = Path(path).read_text("utf-8")
    new = _functions(compiler(source, path))
    for key, old in _functions(compile(source, path, "exec")).items():
        changed = new.get(key)
        if changed is None or changed == old:
            continue
        for function in _having(old, key[0]):
            if function.__code__.co_freevars == changed.co_freevars:
                function.__code__ = changed


def _functions(code: CodeType, *, inside: str = "") -> dict[tuple[str, int], CodeType]:
    """Return the code of a module's functions and methods, without nested functions.

    The key is the qualified name and the number of earlier functions of that name.
    """
    found: dict[tuple[str, int], CodeType] = {}
    for constant in code.co_consts:
        if not isinstance(constant, CodeType) or constant.co_name.startswith("<"):
            continue
        if constant.co_flags & 0x02:  # a function has fast locals, a class body has not
            count = sum(name == constant.co_qualname for name, _ in found)
            found[constant.co_qualname, count] = constant
        else:
            found.update(_functions(constant))
    return found


def _having(code: CodeType, qualname: str) -> list[FunctionType]:
    """Return the functions whose code equals this code but is another object."""
    return [
        function
        for function in _live().get((code.co_filename, code.co_firstlineno, qualname), ())
        if function.__code__ == code
    ]


_LIVE: dict[tuple[str, int, str], list[FunctionType]] = {}


def _live() -> dict[tuple[str, int, str], list[FunctionType]]:
    """Return the product's functions in this process, by file, line and name."""
    if not _LIVE:
        gc.unfreeze()
        for thing in gc.get_objects():
            if type(thing) is FunctionType and "parley" in thing.__code__.co_filename:
                code = thing.__code__
                key = (code.co_filename, code.co_firstlineno, code.co_qualname)
                _LIVE.setdefault(key, []).append(thing)
    return _LIVE


def load_mutant(name: str) -> None:
    """Run with a mutant from now on."""
    path, _, index = name.rpartition(":")

    def compiler(source: str, file: str) -> CodeType:
        from tests.mutants.mutations import mutated

        return compile(mutated(source, int(index)), file, "exec", dont_inherit=True)

    ModuleChanger({path: compiler}).install()


def load_probes(file: str, reached: Callable[[int], object]) -> None:
    """Call ``reached`` with the number of each probe that runs from now on."""
    builtins.__reached__ = reached  # type: ignore[attr-defined]
    probes = json.loads(Path(file).read_text("utf-8"))

    def changing(numbers: dict[str, int]) -> Compile:
        def compiler(source: str, file: str) -> CodeType:
            from tests.mutants.mutations import probed

            of_index = {int(index): number for index, number in numbers.items()}
            return compile(probed(source, of_index), file, "exec", dont_inherit=True)

        return compiler

    ModuleChanger({path: changing(numbers) for path, numbers in probes.items()}).install()


def from_environment() -> None:
    """Load, in a process that a test started, the mutant or probes of its environment."""
    if name := os.environ.get(MUTANT):
        load_mutant(name)
    elif folder := os.environ.get(REACHED):
        seen: set[int] = set()

        def reached(number: int) -> None:
            if number not in seen:
                seen.add(number)
                with Path(folder, str(os.getpid())).open("a", encoding="ascii") as file:
                    file.write(f"{number}\n")

        load_probes(os.environ[PROBES], reached)


def environment_of_children() -> str:
    """Return ``PYTHONPATH`` for processes that tests start."""
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join([str(STARTUP), str(ROOT), *filter(None, [given])])
