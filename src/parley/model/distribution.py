"""The distribution: its name, its version, and how to install its extras."""

from __future__ import annotations

DISTRIBUTION = "parley-a2a"
"""The name on the package index, where ``parley`` is another project."""

VERSION = "0.1.0"


def install_command(extra: str) -> str:
    """Return the command that installs an extra, quoted for every shell."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'
