"""Noticing that the files of an open database are no longer those that their names name."""

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
    what: str
    identity: tuple[int, int]


class FileWatch:
    """Looks whether files were removed, moved or replaced since this was made.

    ``data`` and ``others`` say what each file is called; the first of ``data`` is the database, the
    last its write-ahead log. ``unavailable_reason`` is what the last look found, empty when all
    is well; it is
    for everybody, so it names no path. When the very same files are there again, all is well again.
    A look is one system call for each file, and is to be made by one thread. Nothing is opened: to
    close a file of a SQLite database would drop this process's locks of it.

    Raises ``OSError`` when a file is not there.
    """

    def __init__(self, data: Mapping[Path, str], others: Mapping[Path, str]) -> None:
        self.unavailable_reason = ""
        self.size = 0
        """How many bytes the write-ahead log had at the last look."""
        self._data = [_file(path, what) for path, what in data.items()]
        self._all = self._data + [_file(path, what) for path, what in others.items()]
        self._is_linked = False

    @property
    def identity(self) -> tuple[int, int]:
        """The device and the inode of the database."""
        return self._data[0].identity

    def look(self) -> str:
        """Look at all files; return ``unavailable_reason``."""
        return self._look(self._all)

    def look_at_data(self) -> str:
        """Look at the files that hold what was written; return ``unavailable_reason``.

        It says of other files what the last look at all of them did.
        """
        return self._look(self._all if self.unavailable_reason else self._data)

    def _look(self, files: list[_File]) -> str:
        found = ""
        size = links = 0
        for number, (path, what, identity) in enumerate(files):
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                found = f"the {what} was removed or moved away while it is in use"
                break
            except OSError as error:
                found = f"the {what} cannot be looked at any more ({error.strerror})"
                break
            if (status.st_dev, status.st_ino) != identity:
                found = f"another file took the place of the {what} while it is in use"
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


def _file(path: Path, what: str) -> _File:
    status = os.lstat(path)
    return _File(str(path), what, (status.st_dev, status.st_ino))
