"""The examples and the files for deployment, which come with the package."""

from __future__ import annotations

from pathlib import Path


def shipped(name: str) -> Path:
    """Return the folder ``examples`` or ``deploy``: in the package, or in its repository."""
    installed = Path(__file__).parent / name
    return installed if installed.is_dir() else Path(__file__).parents[3] / name
