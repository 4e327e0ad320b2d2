"""The package, built once for all tests, and environments that contain it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import NOTHING_IS_SKIPPED
from tests.house.package import EXTRAS, SHOWN, Environment, Package, build, environment


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a test run share."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "package"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def package(workshop: Path) -> Package:
    """The files of a release: sdist and wheel."""
    return build(workshop / "dist")


@pytest.fixture(scope="session")
def with_everything(package: Package, workshop: Path) -> Environment:
    """An environment with the wheel and all extras, if the packages are available."""
    wanted = [f"{package.wheel}[{','.join(EXTRAS)}]", *SHOWN]
    try:
        return environment(workshop / "everything", wanted)
    except subprocess.CalledProcessError as error:
        if NOTHING_IS_SKIPPED:
            raise
        pytest.skip(f"the wheel cannot be installed with what it needs: {error.stderr}")
