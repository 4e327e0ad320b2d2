"""The distribution: its name, its version, the command for its extras, and lazy imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

DISTRIBUTION = "parley-a2a"
"""The name on the package index, where ``parley`` is a different project."""

VERSION = "0.1.0"


def install_command(extra: str) -> str:
    """Return the command that installs an extra, quoted for all shells."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def loaded_when_used(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package with lazy imports.

    A public name is imported on first use, so that importing one module does not import the others.
    ``homes`` has the names in each module, separated by spaces.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    here = vars(sys.modules[package])

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = here[name] = getattr(importlib.import_module(home), name)
        return value

    return load, lambda: sorted({*here, *home_of})
