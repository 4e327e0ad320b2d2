"""Parley and an official SDK in one process: both define the same protobuf packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import command_of

SCRIPT = Path(__file__).parent / "beside_the_official_sdk.py"


@pytest.mark.parametrize("version", ["1.3", "0.3"])
def test_messages_are_exchanged_over_grpc_with_the_official_sdk_in_the_same_process(version):
    python = command_of(f"python-{version}", "clients")[0]
    where = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = subprocess.run(
        [python, "-c", where], capture_output=True, text=True, check=True, timeout=30
    ).stdout.strip()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), packages, version], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "both", done.stderr
