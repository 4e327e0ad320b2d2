"""Opens files with user data: through no link, and readable by their owner only."""

from __future__ import annotations

import errno
import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger(__name__)

_FLAGS = (
    os.O_RDWR
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # or a named pipe would wait for its other end
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_LINK_ERRORS = (errno.ELOOP, errno.EMLINK)


class UnsafeFile(Exception):
    """The path is not a file to write to. The message says why, and what to do."""


def open_private(path: Path, *, creates: bool) -> int:
    """Open the regular file at a path for reading and writing; return its descriptor.

    A file that others may access is made private to its owner, whatever the umask; the log says so
    when that fails. Raises ``UnsafeFile`` for a symbolic link, for anything but a regular file, and
    for a file with a second name; ``FileNotFoundError`` without ``creates``; ``OSError``.
    """
    descriptor = _open(path, creates=creates)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnsafeFile(f"{path} is not a regular file; move it away")
        if status.st_nlink > 1:
            raise UnsafeFile(
                f"{path} is a hard link: the file has {status.st_nlink} names, and what one "
                "protects another does not; remove the others, or replace it by a copy"
            )
        _make_private(descriptor, path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open(path: Path, *, creates: bool) -> int:
    if path.is_symlink():  # where opening follows links (Windows)
        raise _is_link(path)
    while True:
        try:
            return os.open(path, _FLAGS)
        except FileNotFoundError:
            if not creates:
                raise
        except OSError as error:
            raise _explained(error, path) from error
        try:
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            continue  # another process has just created it
        except OSError as error:
            raise _explained(error, path) from error
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)  # the umask may have taken the owner's rights too
        return descriptor


def _explained(error: OSError, path: Path) -> Exception:
    if error.errno in _LINK_ERRORS:
        return _is_link(path)
    if error.errno == errno.ENXIO:
        return UnsafeFile(f"{path} is not a regular file; move it away")
    return error


def _is_link(path: Path) -> UnsafeFile:
    return UnsafeFile(f"{path} is a symbolic link, which is not followed; remove it")


def _make_private(descriptor: int, path: Path, status: os.stat_result) -> None:
    if not hasattr(os, "geteuid"):
        return  # Windows has other permissions
    mode = stat.S_IMODE(status.st_mode)
    if not mode & 0o077:
        return
    if status.st_uid == os.geteuid():
        try:
            os.fchmod(descriptor, mode & 0o700)
        except OSError as error:
            reason = error.strerror
        else:
            logger.warning("%s was open to others (mode %o); it is private now", path, mode)
            return
    else:
        reason = f"it belongs to user {status.st_uid}"
    logger.warning(
        "%s is open to others (mode %o) and cannot be made private (%s): chmod 600", path, mode,
        reason,
    )  # fmt: skip
