"""The name that Parley is installed by, and what to install for what is optional."""

from __future__ import annotations

DISTRIBUTION = "parley-a2a"
"""The name on the package index. What is called ``parley`` there is somebody else's."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra, as every shell takes it."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'
