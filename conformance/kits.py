"""The public kits: where they come from, and what they need to run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.peers.environments import HOME, alone


class NotAtHand(Exception):
    """A kit could not be fetched; says which, and how to give it."""


class Kit(NamedTuple):
    """A kit at the commit that results are known for.

    ``variable`` names the environment variable that gives a copy of its repository, or a folder
    with its files. ``packages`` are what it runs with.
    """

    name: str
    repository: str
    commit: str
    variable: str
    packages: tuple[str, ...]


TCK_1_0 = Kit(
    "tck-1.0",
    "https://github.com/a2aproject/a2a-tck",
    "357c4a87afa2818731590647cccbea31c31733a2",
    "TCK_1_0",
    (
        "pytest==8.4.2",
        "pytest-asyncio==1.2.0",
        "pytest-html==4.1.1",
        "httpx==0.28.1",
        "grpcio>=1.76",
        "protobuf>=6.33",
        "googleapis-common-protos>=1.72",
        "jsonschema==4.25.1",
        "gherkin-official>=29,<40",
        "Jinja2==3.1.6",
    ),
)
TCK_0_3 = Kit(
    "tck-0.3",
    TCK_1_0.repository,
    "eb1f804c27ea25db8805264d9ed2d7ca077a7776",
    "TCK_0_3",
    (
        "pytest==8.4.2",
        "pytest-asyncio==1.2.0",
        "pytest-json-report==1.5.0",
        "httpx==0.28.1",
        "requests==2.32.5",
        "responses==0.25.8",
        "deepdiff==8.6.1",
        "jsonschema==4.25.1",
        "packaging>=25",
        "PyYAML>=6",
        "python-dotenv>=1.1",
        "grpcio>=1.76",
        "grpcio-tools>=1.76",
        "protobuf>=6.33",
        "googleapis-common-protos>=1.72",
        "pyOpenSSL>=25",
    ),
)
ITK = Kit(
    "itk",
    "https://github.com/a2aproject/a2a-itk",
    "cd1537f4035229839dd53a8a9fb49c1c4137ed12",
    "ITK",
    ("httpx==0.28.1", "httpx-sse==0.4.3", "fastapi>=0.115", "uvicorn>=0.30", "protobuf>=6.33"),
)
ARD = Kit(
    "ard",
    "https://github.com/ards-project/ard-spec",
    "04afa6cb03012020afc89a41d51b891bc5c5e7b6",
    "ARD",
    (),  # its tool takes jsonschema from the environment of the tests
)


def files_of(kit: Kit) -> Path:
    """Return the folder with a kit's files at its commit, fetched if it is not there.

    Raises ``NotAtHand``.
    """
    given = os.environ.get(kit.variable)
    if given and not _is_repository(Path(given)):
        return Path(given)
    home = HOME / f"{kit.name}@{kit.commit[:12]}"
    HOME.mkdir(exist_ok=True)
    with alone(HOME / f"{home.name}.lock"):
        if not (home / ".fetched").exists():
            shutil.rmtree(home, ignore_errors=True)
            try:
                _git("clone", "--quiet", "--no-checkout", given or kit.repository, str(home))
                if not _git(
                    "-C", str(home), "branch", "--all", "--contains", kit.commit, may_fail=True
                ):
                    _git("-C", str(home), "fetch", "--quiet", "origin", kit.commit)
                _git("-C", str(home), "checkout", "--quiet", "--detach", kit.commit)
            except (OSError, subprocess.CalledProcessError) as error:
                said = (getattr(error, "stderr", None) or str(error)).strip()
                raise NotAtHand(
                    f"{kit.name} could not be fetched from {given or kit.repository} "
                    f"({said.splitlines()[-1]}); {kit.variable} can name a copy of that repository"
                ) from error
            (home / ".fetched").touch()
    return home


def _is_repository(path: Path) -> bool:
    return (path / ".git").exists() or (path / "HEAD").exists()


def _git(*words: str, may_fail: bool = False) -> str:
    done = subprocess.run(["git", *words], check=not may_fail, capture_output=True, text=True)
    return done.stdout
