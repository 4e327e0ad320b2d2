"""Extensions of installed packages, found by name.

A package declares extensions in the entry-point group ``parley.extensions``. An entry point is a
class or function that is called without arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from parley.model.cards import AgentExtension
from parley.model.extensions import Extension

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "parley.extensions"
"""The group of entry points."""


def installed_extensions() -> dict[str, EntryPoint]:
    """Return the entry points of all installed extensions, by name."""
    from importlib.metadata import entry_points  # slow, and rarely needed

    return {point.name: point for point in entry_points(group=GROUP)}


def installed_extension(name: str) -> Extension:
    """Return a new object of an installed extension, with its defaults.

    Raises ``ValueError`` for a name that no installed package declares, and ``TypeError`` if the
    entry point does not return an ``Extension``.
    """
    points = installed_extensions()
    if name not in points:
        known = ", ".join(sorted(points)) or "none"
        raise ValueError(
            f"no installed package has an extension named {name!r}; installed are: {known}. "
            "An extension without a package is identified by its URI, which has a colon"
        )
    made = points[name].load()()
    if not isinstance(made, Extension):
        raise TypeError(
            f"the entry point {name!r} of {GROUP} gives {made!r:.200}, which is no Extension"
        )
    return made


def with_installed(
    given: Iterable[Extension | AgentExtension | str],
) -> list[Extension | AgentExtension | str]:
    """Return extensions, with names (texts without a colon) replaced by their objects.

    Raises ``ValueError`` and ``TypeError`` as ``installed_extension`` does.
    """
    return [
        installed_extension(each) if isinstance(each, str) and ":" not in each and each else each
        for each in given
    ]
