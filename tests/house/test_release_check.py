"""The pieces of `make release-check`; the whole takes minutes."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

from tests.house.package import contents
from tests.house.release_check import assert_same, built_twice, checked, exported, needed_by
from tests.house.sizes import ROOT
from tests.house.test_package import KNOWN


@pytest.mark.slow
def test_two_builds_of_a_commit_have_the_same_bytes(tmp_path: Path) -> None:
    places = [exported("HEAD", tmp_path / name) for name in ("first", "second")]
    package = built_twice(*places, "1700000000")
    assert f"parley_a2a-{checked(package)}/PKG-INFO" in contents(package.sdist)
    with zipfile.ZipFile(package.wheel) as wheel:
        assert {each.date_time[:3] for each in wheel.infolist()} == {(2023, 11, 14)}


def test_a_build_that_differs_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    for name, text in (("one.whl", "1"), ("two.whl", "2")):
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            wheel.writestr("same.py", "")
            wheel.writestr("when.py", text)
    with pytest.raises(AssertionError, match=re.escape("differs between builds: ['when.py']")):
        assert_same(tmp_path / "one.whl", tmp_path / "two.whl")


def test_every_extra_has_modules_that_need_it() -> None:
    modules = [name for extra in KNOWN for name in needed_by(extra).split()]
    ours = [ROOT / "src" / name.replace(".", "/") for name in modules if name.startswith("parley.")]
    assert [p for p in ours if not p.with_suffix(".py").exists() and not p.is_dir()] == []
