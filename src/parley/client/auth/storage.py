"""The storage of logins: the system's keyring, or files that only their owner can read.

Every origin has its own entry, so that programs that renew different logins do not disturb each
other. A file is replaced atomically. ``PARLEY_AUTH_STORAGE`` is ``keyring`` or ``file``, to allow
only that storage.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from parley.model.distribution import install_command

logger = logging.getLogger(__name__)

SERVICE = "parley"
_INDEX = "origins"
MAX_LOGINS = 1000
PASSPHRASE = "PARLEY_AUTH_PASSPHRASE"
"""An obsolete setting that encrypted the files. Without a keyring it causes an error."""

STORAGE = "PARLEY_AUTH_STORAGE"
FOLDER = "PARLEY_AUTH_FOLDER"


class StorageUnusable(Exception):
    """Logins cannot be stored or read. The message has the reason and a remedy."""


class LoginStorage:
    """Stored texts by origin. ``environment`` has the settings.

    Methods raise ``StorageUnusable``. They may block while the keyring asks the user.
    """

    _said = False  # set after the first log line about storage in files

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        self._keyring: Any = None
        self._chosen = False

    @property
    def place(self) -> str:
        """A description of the storage."""
        keyring = self._open()
        if keyring is not None:
            return f"the system's keyring ({_name_of(keyring)})"
        return f"{self.folder} (readable by you only)"

    @property
    def is_keyring(self) -> bool:
        """True if the system's keyring is used."""
        return self._open() is not None

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        named = self._environment.get(FOLDER)
        if named:
            return Path(named)
        try:
            return self._default_folder() / "parley" / "logins"
        except RuntimeError:
            raise StorageUnusable(
                f"this user has no home folder; set {FOLDER} to the folder of the logins"
            ) from None

    def _default_folder(self) -> Path:
        if sys.platform == "win32":
            return Path(self._environment.get("APPDATA") or Path.home() / "AppData" / "Roaming")
        return Path(self._environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")

    def get(self, origin: str) -> str | None:
        """Return the stored text for an origin."""
        keyring = self._open()
        if keyring is not None:
            text: str | None = _asked(keyring.get_password, SERVICE, origin)
            return text
        return self._read_file(self._file_of(origin), origin)

    def put(self, origin: str, text: str) -> None:
        """Store a text for an origin, replacing the previous one."""
        keyring = self._open()
        if keyring is not None:
            known = self._index(keyring)
            if origin not in known:
                if len(known) >= MAX_LOGINS:
                    raise StorageUnusable(f"there are {MAX_LOGINS:,} logins; log out of some")
                _asked(keyring.set_password, SERVICE, _INDEX, _encode([*known, origin]))
            _asked(keyring.set_password, SERVICE, origin, text)
            return
        self._say_once()
        self._write_file(self._file_of(origin), origin, text)

    def remove(self, origin: str) -> bool:
        """Remove the text for an origin. Return whether there was one."""
        keyring = self._open()
        if keyring is not None:
            known = self._index(keyring)
            if _asked(keyring.get_password, SERVICE, origin) is None:
                return False
            _asked(keyring.delete_password, SERVICE, origin)
            rest = [each for each in known if each != origin]
            _asked(keyring.set_password, SERVICE, _INDEX, _encode(rest))
            return True
        try:
            self._file_of(origin).unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StorageUnusable(f"{self._file_of(origin)}: {error.strerror}") from None
        return True

    def origins(self) -> list[str]:
        """Return the origins with a stored text."""
        keyring = self._open()
        if keyring is not None:
            return self._index(keyring)
        try:
            files = sorted(self.folder.glob("*.json"))
        except OSError:
            return []
        return [self._envelope_of(file)["origin"] for file in files[:MAX_LOGINS]]

    # -- the keyring ---------------------------------------------------------------------------

    def _open(self) -> Any:
        """Return the keyring backend, ``None`` to use files."""
        if self._chosen:
            return self._keyring
        wish = self._environment.get(STORAGE, "")
        if wish not in ("", "keyring", "file"):
            raise StorageUnusable(f"{STORAGE} is keyring or file, not {wish!r:.40}")
        backend = None if wish == "file" else _backend()
        if wish == "keyring" and backend is None:
            raise StorageUnusable(
                f"{STORAGE} is keyring, and there is none: this machine has no keyring service, or "
                f"the library is missing ({install_command('keyring')})"
            )
        if self._environment.get(PASSPHRASE):
            if backend is None:
                raise StorageUnusable(
                    f"{PASSPHRASE} is not supported any more: logins are kept in the system's "
                    f"keyring ({STORAGE}=keyring), or unencrypted in files that only you can read; "
                    "unset it"
                )
            logger.warning(
                "%s is not used: logins are kept in the system's keyring; unset it", PASSPHRASE
            )
        self._keyring, self._chosen = backend, True
        return backend

    @staticmethod
    def _index(keyring: Any) -> list[str]:
        text = _asked(keyring.get_password, SERVICE, _INDEX)
        try:
            return msgspec.json.decode(text, type=list[str]) if text else []
        except msgspec.MsgspecError:
            return []

    # -- files ---------------------------------------------------------------------------------

    def _file_of(self, origin: str) -> Path:
        return self.folder / f"{hashlib.sha256(origin.encode()).hexdigest()[:32]}.json"

    def _say_once(self) -> None:
        if not LoginStorage._said:
            LoginStorage._said = True
            logger.warning(
                "there is no keyring; logins are kept in %s, readable by you only, not encrypted",
                self.folder,
            )

    def _envelope_of(self, file: Path) -> dict[str, Any]:
        try:
            descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise StorageUnusable(f"{file} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as opened:
            _check_owner(file, os.fstat(opened.fileno()))
            data = opened.read(1024 * 1024)
        try:
            envelope = msgspec.json.decode(data)
        except msgspec.MsgspecError:
            envelope = None
        if not isinstance(envelope, dict) or not isinstance(envelope.get("origin"), str):
            raise StorageUnusable(f"{file} is not a login; delete it, and log in again")
        return envelope

    def _read_file(self, file: Path, origin: str) -> str | None:
        try:
            file.stat()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageUnusable(f"{file} cannot be read: {error.strerror}") from None
        envelope = self._envelope_of(file)
        if envelope["origin"] != origin:
            return None
        if "sealed" in envelope:
            raise StorageUnusable(
                f"{file} is encrypted, which is not supported any more; delete it, and log in again"
            )
        text = envelope.get("login")
        return text if isinstance(text, str) else None

    def _write_file(self, file: Path, origin: str, text: str) -> None:
        data = msgspec.json.encode({"origin": origin, "login": text})
        folder = file.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_owner(folder, folder.stat())
            # The file is private from the start, and complete before it gets its name.
            descriptor, name = tempfile.mkstemp(dir=folder, prefix=".new-")
            try:
                with os.fdopen(descriptor, "wb") as opened:
                    opened.write(data)
                    opened.flush()
                    os.fsync(opened.fileno())
                os.replace(name, file)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            raise StorageUnusable(f"{file} cannot be written: {error.strerror}") from None


def _check_owner(path: Path, found: os.stat_result) -> None:
    """Raise ``StorageUnusable`` for a path that others can read or own."""
    if sys.platform == "win32":  # files in a profile belong to its user
        return
    if found.st_uid != os.getuid():
        raise StorageUnusable(f"{path} belongs to another user; logins are not kept there")
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        right = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
        raise StorageUnusable(
            f"others can read {path}; logins in it are not used. chmod {right:o} {path}, and log "
            "in again if they may have been read"
        )


def _backend() -> Any:
    try:
        import keyring
        from keyring.backends import fail, null
    except ImportError:
        return None
    found = keyring.get_keyring()
    useless = isinstance(found, fail.Keyring | null.Keyring) or found.priority <= 0
    return None if useless or not _name_of(found) else found


def _name_of(keyring: Any) -> str:
    return str(getattr(keyring, "name", type(keyring).__name__))[:100]


def _asked(function: Any, *arguments: str) -> Any:
    from keyring.errors import KeyringError

    try:
        return function(*arguments)
    except (KeyringError, OSError) as error:
        # The message of a backend may contain secrets.
        raise StorageUnusable(
            f"the system's keyring failed ({type(error).__name__}); unlock it, or keep logins in a "
            f"file with {STORAGE}=file"
        ) from None


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()
