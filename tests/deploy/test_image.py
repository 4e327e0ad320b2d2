"""The image's commands, run without a container."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.deploy.files import DOCKERFILE, ROOT, command_of
from tests.kit.processes import Running, free_port


def test_what_is_copied_from_the_clone_suffices_to_build_parley(tmp_path: Path) -> None:
    for line in re.findall(r"^COPY ([^-$].*)$", DOCKERFILE, re.M):
        *names, place = line.split()
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name, tmp_path / place / name if len(names) > 1 else tmp_path / place
                )
            else:
                shutil.copy(ROOT / name, tmp_path / place)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "made"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = (tmp_path / "made").iterdir()
    assert "parley/cli/deploy/Dockerfile" in zipfile.ZipFile(wheel).namelist()


@pytest.mark.parametrize(
    ("file", "text", "installed"),
    [
        ("requirements.txt", "humanize\n", "humanize\n"),
        (
            "pyproject.toml",
            '[project]\nname = "a"\ndependencies = ["one", "two>1"]\n',
            "one\ntwo>1\n",
        ),
        ("agent.py", "", None),
    ],
)
@pytest.mark.skipif(os.name != "posix", reason="a shell runs it")
def test_the_requirements_of_the_agent_are_installed(
    tmp_path: Path, file: str, text: str, installed: str | None
) -> None:
    (tmp_path / file).write_text(text)
    step = re.findall(r"^RUN --mount=\S+ \\\n((?:.*\\\n)*.*requirements.*)$", DOCKERFILE, re.M)[-1]
    pip = tmp_path / "pip"
    pip.write_text('#!/bin/sh\n[ "$1 $2" = "install -r" ] && cat "$3" > installed\n')
    pip.chmod(0o755)
    script = step.replace("/opt/parley/bin/pip", str(pip)).replace(
        "python -c", f"{sys.executable} -c"
    )
    subprocess.run(["/bin/sh", "-e", "-c", script], cwd=tmp_path, check=True)
    found = tmp_path / "installed"
    assert (found.read_text() if found.exists() else None) == installed


ONLY_READS = "=-all,+dac_read_search"
CAPABILITIES = [f"--{each}{ONLY_READS}" for each in ("bounding-set", "inh-caps", "ambient-caps")]
SETPRIV = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", *CAPABILITIES]
CONTAINED = """
mount --bind / / && mount -o remount,ro,bind / && mount -t tmpfs tmpfs /mnt && cd "$0" && exec "$@"
"""


def contains() -> bool:
    """Return whether this machine lets the test make a read-only file system and be nobody."""
    if not (shutil.which("unshare") and shutil.which("setpriv")):
        return False
    tried = ["unshare", "-m", "sh", "-c", CONTAINED, "/", *SETPRIV, "true"]
    return subprocess.run(tried, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not contains(), reason="no file system can be made read-only here")
def test_the_agent_runs_as_nobody_on_a_read_only_file_system(tmp_path: Path) -> None:
    """The user may read all files, because the interpreter of the tests may be root's."""
    port = str(free_port())
    (user,) = re.findall(r"^USER (\d+:\d+)$", DOCKERFILE, re.M)
    assert user == "10001:10001"
    entry = [port if word == "9999" else word for word in command_of("ENTRYPOINT")]
    served = [
        sys.executable,
        "-m",
        "parley.cli",
        *entry[1:],
        *command_of("CMD"),
        "--allow-anonymous",
    ]
    folder = str(ROOT / "examples/starter")
    contained = ["unshare", "-m", "sh", "-c", CONTAINED, folder, *SETPRIV]
    environment = {
        "PARLEY_STORE": "memory:", "TMPDIR": "/mnt", "HOME": "/mnt", "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    with Running(served, tmp_path, command=contained, **environment) as agent:
        agent.until("Ctrl-C stops the server")
        check = command_of("HEALTHCHECK")
        asked = [word.replace("9999", port) for word in check[1:]]
        assert subprocess.run([sys.executable, *asked]).returncode == 0
        status = Path(f"/proc/{agent.process.pid}/status").read_text()
        assert re.search(r"^Uid:\s+10001\s+10001", status, re.M)
        # The shell and setpriv have become the agent, which so gets the signal itself.
        assert agent.end(signal.SIGTERM) == 0
        assert subprocess.run([sys.executable, *asked], capture_output=True).returncode != 0
