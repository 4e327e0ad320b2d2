"""Files that hold what people say: opened by no link, and for their owner only."""

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


class Unsafe(Exception):
    """What is at a path is not a file to write to. The message says what it is, and what to do."""


def open_private(path: Path, *, creates: bool) -> int:
    """Return a descriptor of the regular file at a path, to read and write. Its content stays.

    A file that others may read or write is made private to its owner, whatever the umask is; one
    that this process may not change is said in the log. Raises ``Unsafe`` for a symbolic link, for
    what is no regular file, and for a file that has a second name; ``FileNotFoundError`` when there
    is none and it is not to be created; ``OSError``.
    """
    descriptor = _open(path, creates=creates)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unsafe(f"{path} is not a regular file; move it away")
        if status.st_nlink > 1:
            raise Unsafe(
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
            continue  # made by another process meanwhile
        except OSError as error:
            raise _explained(error, path) from error
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)  # the umask may have taken the owner's rights too
        return descriptor


def _explained(error: OSError, path: Path) -> Exception:
    if error.errno in _LINK_ERRORS:
        return _is_link(path)
    if error.errno == errno.ENXIO:
        return Unsafe(f"{path} is not a regular file; move it away")
    return error


def _is_link(path: Path) -> Unsafe:
    return Unsafe(f"{path} is a symbolic link, which is not followed; remove it")


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
