"""The package as users get it: built, and installed in its own environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.house.documents import ROOT
from tests.peers.environments import alone

EXTRAS = (
    "cli", "grpc", "keyring", "llm", "mcp", "meaning", "postgres", "redis", "registry", "reload",
    "s3",
)  # fmt: skip
SHOWN = ("fastapi", "pytest")  # further packages of the documentation


class Package(NamedTuple):
    """The two files of a release."""

    sdist: Path
    wheel: Path


class Environment(NamedTuple):
    """A virtual environment. ``scripts`` is where its commands are."""

    home: Path

    @property
    def scripts(self) -> Path:
        return self.home / ("Scripts" if os.name == "nt" else "bin")

    @property
    def python(self) -> str:
        return str(self.scripts / ("python.exe" if os.name == "nt" else "python"))

    @property
    def parley(self) -> str:
        return str(self.scripts / "parley")

    def install(self, *packages: str) -> None:
        """Install packages. Raises ``subprocess.CalledProcessError``."""
        if uv := shutil.which("uv"):
            _run(uv, "pip", "install", "--quiet", "--python", self.python, *packages)
        else:
            _run(self.python, "-m", "pip", "install", "--quiet", *packages)


def build(folder: Path) -> Package:
    """Build sdist and wheel in ``folder``, unless they exist. Safe with concurrent processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / "lock"):
        if not (folder / "ready").exists():
            _hatchling(ROOT, folder)
            (folder / "ready").touch()
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return Package(sdist, wheel)


def build_from_sdist(sdist: Path, folder: Path) -> Path:
    """Return the wheel that an sdist builds."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    _hatchling(source, folder / "dist", "-t", "wheel")
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def contents(archive: Path) -> dict[str, bytes]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(archive) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def environment(home: Path, packages: Sequence[str] = ()) -> Environment:
    """Return an environment with packages, made if missing. Safe with concurrent processes.

    Raises ``subprocess.CalledProcessError`` when the packages are not available.
    """
    made = Environment(home)
    home.parent.mkdir(parents=True, exist_ok=True)
    with alone(home.with_suffix(".lock")):
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            if uv := shutil.which("uv"):
                _run(uv, "venv", "--quiet", "--python", sys.executable, str(home))
            else:
                _run(sys.executable, "-m", "venv", str(home))
            if packages:
                made.install(*packages)
            (home / "ready").touch()
    return made


def _hatchling(source: Path, folder: Path, *options: str) -> None:
    _run(sys.executable, "-m", "hatchling", "build", "-d", str(folder), *options, cwd=source)


def _run(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        said = f"{done.stdout}{done.stderr}".strip()[-500:]
        raise subprocess.CalledProcessError(done.returncode, words, said, said)
