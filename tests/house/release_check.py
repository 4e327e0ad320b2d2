"""The check of a release, of the last commit: `make release-check`.

    python -m tests.house.release_check [PYTHON ...]    on some versions only, such as 3.13

Builds wheel and sdist twice and compares their bytes. Installs both, and each extra alone, in new
environments of every supported Python of this machine (needs uv). The files go to dist/.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packaging.metadata import Metadata

from tests.house.package import EXTRAS, Package, build_from_sdist, contents, environment, hatchling
from tests.house.package import run as output
from tests.house.sizes import ROOT

ADAPTERS = {"a2a-sdk": "parley.integrations.a2a_sdk.official_sdk"}
PYTHON = "Programming Language :: Python :: "


def assert_same(one: Path, other: Path) -> None:
    """Assert that two archives have the same bytes; the error names the files that differ."""
    if one.read_bytes() != other.read_bytes():
        unpacked = contents(one), contents(other)
        differ = {name for name, _ in unpacked[0].items() ^ unpacked[1].items()}
        raise AssertionError(
            f"{one.name} differs between builds: {sorted(differ)[:5] or 'modes and dates'}"
        )


def exported(commit: str, folder: Path) -> Path:
    """Return a folder with the files of a commit."""
    output("git", "archive", "-o", f"{folder}.tar", commit, cwd=ROOT)
    with tarfile.open(f"{folder}.tar") as archive:
        archive.extractall(folder, filter="data")
    return folder


def built_twice(first: Path, second: Path, epoch: str) -> Package:
    """Build two copies of the sources; their place, mode and age, and the machine's zone, differ.

    Asserts that the archives are the same, and the wheel that the sdist builds.
    """
    for path in filter(Path.is_file, second.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o077)
        os.utime(path)
    for source, zone, seed in ((first, "UTC", "1"), (second, "Asia/Kathmandu", "2")):
        hatchling(source, source / "dist", SOURCE_DATE_EPOCH=epoch, TZ=zone, PYTHONHASHSEED=seed)
    sdist, wheel = sorted((first / "dist").iterdir(), key=lambda path: path.suffix)
    for file in (sdist, wheel):
        assert_same(file, second / "dist" / file.name)
    again = build_from_sdist(sdist, first.with_name("unpacked"), SOURCE_DATE_EPOCH=epoch)
    assert_same(wheel, again)
    return Package(sdist, wheel)


def checked(package: Package) -> str:
    """Return the version that the metadata states. Raises if something in it is wrong."""
    held = contents(package.wheel)
    (name,) = (name for name in held if name.endswith(".dist-info/METADATA"))
    version = str(Metadata.from_email(held[name], validate=True).version)
    log = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert f"\n## {version} " in log, f"CHANGELOG.md has no section for {version}"
    return version


def find_python(version: str) -> str:
    """Return the interpreter of a version, or nothing."""
    kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv", "versions")
    places = [*map(str, kept.glob(f"{version}*/bin")), os.environ["PATH"]]
    command = ["uv", "python", "find", "--system", "--no-python-downloads", version]
    variables = os.environ | {"PATH": os.pathsep.join(places)}
    return subprocess.run(command, env=variables, capture_output=True, text=True).stdout.strip()


def needed_by(extra: str) -> str:
    """Return the modules that need an extra."""
    adapter = f"parley.integrations.{extra.replace('-', '_')}" if extra else "parley"
    return EXTRAS.get(extra) or ADAPTERS.get(extra, adapter)


def installed(python: str, package: str, extra: str, *commands: tuple[str, ...]) -> str:
    """Install a package in a new environment and run commands there; return the last output."""
    with tempfile.TemporaryDirectory(prefix="parley-release-") as folder:
        made = environment(Path(folder) / "env", [f"{package}[{extra}]"], python)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PARLEY_"))}
        said = ""
        for word, *words in commands:
            said = output(str(made.scripts / word), *words, cwd=Path(folder), env=kept)
        return said


def main() -> int:
    """Check the release, a line for each step."""
    failed = []

    @contextmanager
    def step(name: str) -> Iterator[None]:
        try:
            yield
        except (AssertionError, subprocess.CalledProcessError, ExceptionGroup) as error:
            failed.append(name)
            reason = getattr(error, "stderr", "") or getattr(error, "exceptions", error)
            print(f"FAILED  {name}: {reason}", flush=True)
        else:
            print(f"ok      {name}", flush=True)

    if not shutil.which("uv"):
        raise SystemExit("release-check needs uv, which makes an environment in a second")
    if output("git", "status", "--porcelain", cwd=ROOT):
        print("changes without a commit are not checked")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = [c.removeprefix(PYTHON) for c in project["classifiers"] if c.startswith(f"{PYTHON}3.")]
    with tempfile.TemporaryDirectory(prefix="parley-release-") as folder:
        package, version = None, ""
        with step("two builds are the same, and the wheel from the sdist too"):
            places = [exported("HEAD", Path(folder) / name) for name in ("first", "second")]
            epoch = output("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()
            package = built_twice(*places, epoch)
        if package is None:
            return 1
        with step("metadata and changelog"):
            version = checked(package)
        missing = []
        for number in sys.argv[1:] or named:
            if not (python := find_python(number)):
                missing.append(number)
                print(f"MISSING Python {number}: uv python install {number}")
                continue
            for file in package:
                with step(f"Python {number}: {file.name} serves the examples"):
                    asked = ("parley", "--version"), ("parley", "demo", "--once", "--port", "0")
                    said = installed(python, str(file), "cli", *asked)
                    assert f"Parley {version}: " in said, said
            for extra in ("", *project["optional-dependencies"]):
                with step(f"Python {number}: {f'extra {extra}' if extra else 'no extra'}"):
                    code = f"import {needed_by(extra).replace(' ', ', ')}"
                    installed(python, str(package.wheel), extra, ("python", "-c", code))
        if not failed:
            (ROOT / "dist").mkdir(exist_ok=True)
            for file in package:
                print("dist/" + Path(shutil.copy(file, ROOT / "dist")).name)
    unchecked = f", but not checked with Python {', '.join(missing)}" if missing else ""
    print(f"failed: {', '.join(failed)}" if failed else f"the release is good{unchecked}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
