"""What is installed: its name, its version, and how to get what is optional."""

from __future__ import annotations

DISTRIBUTION = "parley-a2a"
"""The name on the package index. What is called ``parley`` there is somebody else's."""

VERSION = "0.1.0"


def install_command(extra: str) -> str:
    """Return the command that installs an extra, as every shell takes it."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'
