"""Notices when the files of an open database are removed, moved or replaced."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

logger = logging.getLogger(__name__)

REMEDY = "put that very file back, or restart the server to go on with what is there now"


class _File(NamedTuple):
    path: str
    role: str
    identity: tuple[int, int]


class FileWatch:
    """Checks whether files were removed, moved or replaced since this was made.

    ``data`` and ``others`` give each file's role; the first of ``data`` is the database, the last
    its write-ahead log. ``unavailable_reason`` is what the last check found, empty when all is
    well; callers may see it, so it names no path. All is well again when the same files are back. A
    check is one system call for each file, and is made by one thread. It opens nothing: closing a
    file of a SQLite database would drop this process's locks on it.

    Raises ``OSError`` when a file is missing.
    """

    def __init__(self, data: Mapping[Path, str], others: Mapping[Path, str]) -> None:
        self.unavailable_reason = ""
        self.size = 0
        """The size of the write-ahead log in bytes, at the last check."""
        self._data = [_file(path, role) for path, role in data.items()]
        self._all = self._data + [_file(path, role) for path, role in others.items()]
        self._is_linked = False

    @property
    def identity(self) -> tuple[int, int]:
        """The device and the inode of the database."""
        return self._data[0].identity

    def check(self) -> str:
        """Check all files; return ``unavailable_reason``."""
        return self._check(self._all)

    def check_data(self) -> str:
        """Check the data files, or all after a failure; return ``unavailable_reason``."""
        return self._check(self._all if self.unavailable_reason else self._data)

    def _check(self, files: list[_File]) -> str:
        found = ""
        size = links = 0
        for number, (path, role, identity) in enumerate(files):
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                found = f"the {role} was removed or moved away while it is in use"
                break
            except OSError as error:
                found = f"the {role} cannot be looked at any more ({error.strerror})"
                break
            if (status.st_dev, status.st_ino) != identity:
                found = f"another file took the place of the {role} while it is in use"
                break
            if number < len(self._data):
                size = status.st_size
            links = links or status.st_nlink
        else:
            self.size = size
        if links > 1 and not self._is_linked:
            logger.warning(
                "%s has a second name now: to open it by that while it is in use damages it",
                self._data[0].path,
            )
        self._is_linked = links > 1
        if found and not self.unavailable_reason:
            logger.error("%s: %s; %s", self._data[0].path, found, REMEDY)
        elif self.unavailable_reason and not found:
            logger.warning("%s: the files are there again", self._data[0].path)
        self.unavailable_reason = found
        return found


def _file(path: Path, role: str) -> _File:
    status = os.lstat(path)
    return _File(str(path), role, (status.st_dev, status.st_ino))
