"""The package as users get it: built, and installed in its own environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.house.documents import ROOT
from tests.peers.environments import alone

# Extras that are installed together, and modules that need them.
EXTRAS = {
    "cli": "parley.cli.app parley.cli.rich_view",
    "grpc": "parley.client.bindings.grpc parley.server.grpc.server",
    "keyring": "keyring.errors",
    "llm": "parley.llm.openai_model openai",
    "mcp": "parley.mcp.bridge parley.mcp.http parley.mcp.session_http parley.mcp.tool_calls",
    "meaning": "safetensors.numpy tokenizers",
    "metrics": "prometheus_client.parser",
    "otel": "parley.observe.log_export parley.observe.recent prometheus_client",
    "postgres": "parley.store.postgres.store parley.store.bus.postgres_bus",
    "redis": "parley.store.bus.redis_bus limits.aio.strategies",
    "registry": "dns.asyncresolver publicsuffixlist",
    "reload": "watchfiles",
    "s3": "parley.files.s3",
}
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
            run(uv, "pip", "install", "--quiet", "--python", self.python, *packages)
        else:
            run(self.python, "-m", "pip", "install", "--quiet", *packages)


def build(folder: Path) -> Package:
    """Build sdist and wheel in ``folder``, unless they exist. Safe with concurrent processes."""
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / "lock"):
        if not (folder / "ready").exists():
            hatchling(ROOT, folder)
            (folder / "ready").touch()
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return Package(sdist, wheel)


def build_from_sdist(sdist: Path, folder: Path, **variables: str) -> Path:
    """Return the wheel that an sdist builds."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    hatchling(source, folder / "dist", "-t", "wheel", **variables)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def contents(archive: Path) -> dict[str, bytes]:
    """Return the files of a wheel or an sdist."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        files = {member.name: sdist.extractfile(member) for member in sdist}
        return {name: file.read() for name, file in files.items() if file}


def environment(
    home: Path, packages: Sequence[str] = (), python: str = sys.executable
) -> Environment:
    """Return an environment with packages, made if missing. Safe with concurrent processes.

    Raises ``subprocess.CalledProcessError`` when the packages are not available.
    """
    made = Environment(home)
    home.parent.mkdir(parents=True, exist_ok=True)
    with alone(home.with_suffix(".lock")):
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            if uv := shutil.which("uv"):
                run(uv, "venv", "--quiet", "--python", python, str(home))
            else:
                run(python, "-m", "venv", str(home))
            if packages:
                made.install(*packages)
            (home / "ready").touch()
    return made


def hatchling(source: Path, folder: Path, *options: str, **variables: str) -> None:
    """Build what ``source`` contains, with further environment variables."""
    words = (sys.executable, "-m", "hatchling", "build", "-d", str(folder), *options)
    run(*words, cwd=source, env=os.environ | variables)


def run(*words: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return what a command prints. Raises ``subprocess.CalledProcessError`` with the end of it."""
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=env)
    if done.returncode:
        said = f"{done.stdout}{done.stderr}".strip()[-500:]
        raise subprocess.CalledProcessError(done.returncode, words, said, said)
    return done.stdout
