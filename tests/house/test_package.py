"""The install commands in all texts install Parley, by its package name."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import parley
from parley.model.distribution import DISTRIBUTION, install_command
from tests.house.package import EXTRAS, Package, build_from_sdist, contents
from tests.house.test_rooms import ROOT, texts

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
KNOWN = set(PROJECT["optional-dependencies"])
REPOSITORY = "https://github.com/parley-agents/parley"

# Commands that install. Some also run a program: the first word is then the package, unless an
# option names it.
INSTALLS = re.compile(
    r"(?:(?P<runs>\buvx|\buv tool run|\bpipx run|\bpip-run)"
    r"|\bpip[\d.]* install|\bpip[\d.]* download|\buv add|\buv tool install"
    r"|\bpipx install|\bpipx inject|\bpoetry add|\bpdm add|\bconda install)(?P<rest>[ \t]+\S.*)"
)
SPECS = {"--from", "--with", "--spec"}
TAKES_A_VALUE = {"-r", "-c", "-p", "--python", "--index-url", "-i", "--group", "-t", "--target"}
EXTRA = re.compile(r"(?<![\w.\[-])(parley[\w.-]*)\[([a-z][a-z0-9_, -]*)\]")
LOCAL = re.compile(r"(?<=[\"' ])\.\[([a-z0-9_, -]+)\]")
ASKED_OF = re.compile(r"\b(?:version|distribution|metadata|requires|from_name)\(\s*[\"']([^\"']+)")

# split, so that this file does not match itself
STRANGER = "par" + "ley"


def own_texts() -> Iterator[tuple[Path, str]]:
    here = Path(__file__)
    for path in texts():
        if path != here:
            yield path, path.read_text("utf-8", errors="replace").replace("\\\n", " ")


def wanted(line: str) -> Iterator[str]:
    """Yield the packages that the commands of a line install or remove, as written."""
    for found in INSTALLS.finditer(line):
        text = re.split(r"[`;|&#)]|\s{2,}|\\n", found["rest"])[0].replace("\\", "").strip()
        try:
            words = shlex.split(text)
        except ValueError:  # the text includes the closing quote of a string
            words = text.translate({ord(c): None for c in "\"'"}).split()
        specs, plain, skip = [], [], ""
        for word in words:
            option, equals, value = word.partition("=")
            if skip:
                (specs if skip in SPECS else []).append(word)
                skip = ""
            elif equals and option in SPECS:
                specs.append(value)
            elif word in SPECS or word in TAKES_A_VALUE:
                skip = word
            elif not word.startswith("-"):
                plain.append(word)
        if found["runs"]:
            yield from specs or plain[:1]
        else:
            yield from (*specs, *plain)


def ours(text: str) -> Requirement | None:
    """Return the package of a command, if its name could be meant for ours."""
    try:
        requirement = Requirement(text.strip("\"'.,:"))
    except InvalidRequirement:
        return None
    return requirement if canonicalize_name(requirement.name).startswith(STRANGER) else None


def wrong(requirement: Requirement) -> bool:
    return canonicalize_name(requirement.name) != DISTRIBUTION or not requirement.extras <= KNOWN


def test_every_install_line_names_this_package_and_extras_that_it_has() -> None:
    found: dict[str, list[str]] = {}
    for path, text in own_texts():
        for line in text.splitlines():
            for each in map(ours, wanted(line)):
                if each is not None:
                    found.setdefault(str(each), []).append(path.relative_to(ROOT).as_posix())
    assert f"{DISTRIBUTION}[cli]" in found
    assert {text: places for text, places in found.items() if wrong(Requirement(text))} == {}


def test_every_extra_that_is_named_anywhere_is_one_of_this_package() -> None:
    strange = [
        (path.relative_to(ROOT).as_posix(), found[0])
        for path, text in own_texts()
        for found in EXTRA.finditer(text)
        if found[1] != DISTRIBUTION or not {e.strip() for e in found[2].split(",")} <= KNOWN
    ]
    assert strange == []


def test_every_extra_of_an_install_from_a_clone_is_one_of_this_package() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): {each.strip() for each in local[1].split(",")}
        for path, text in own_texts()
        for local in LOCAL.finditer(text)
    }
    assert {"docs/start/install.md", "Makefile", "deploy/Dockerfile"} <= found.keys()
    assert {path: extras - KNOWN for path, extras in found.items() if extras - KNOWN} == {}


def test_nobody_asks_for_the_metadata_of_somebody_elses_package() -> None:
    asked = [
        (path.relative_to(ROOT).as_posix(), found[1])
        for path, text in own_texts()
        if path.suffix == ".py"
        for found in ASKED_OF.finditer(text)
        if canonicalize_name(found[1]) == STRANGER
    ]
    assert asked == []


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (f"$ pip install '{STRANGER}[cli]'", f"{STRANGER}[cli]"),
        (f"    uv add {STRANGER}", STRANGER),
        (f"uv pip install --python x {STRANGER}[grpc]  # so", f"{STRANGER}[grpc]"),
        (f'say("do: pip install \\"{STRANGER}[x]\\"")', f"{STRANGER}[x]"),
        (f"`pipx install {STRANGER}`, or", STRANGER),
        (f"uvx {STRANGER} demo", STRANGER),
        (f"uvx --from {STRANGER}[cli] {STRANGER} demo", f"{STRANGER}[cli]"),
        (f"uv tool run --from={DISTRIBUTION}[clo] {STRANGER} demo", f"{DISTRIBUTION}[clo]"),
        (f"python -m pip install {STRANGER}_a2a[none]", f"{STRANGER}_a2a[none]"),
    ],
)
def test_a_line_that_installs_a_strangers_package_is_found(line: str, named: str) -> None:
    found = [each for each in map(ours, wanted(line)) if each is not None]
    assert [str(each) for each in found] == [named]
    assert wrong(found[0])


@pytest.mark.parametrize(
    "line",
    [
        f'pip install "{DISTRIBUTION}[cli,grpc]"',
        f'uvx --from "{DISTRIBUTION}[cli]" {STRANGER} demo',
        f"uv add {DISTRIBUTION}",
        f'raise ValueError("it is missing: pip install \\"{DISTRIBUTION}[redis]\\"")',
    ],
)
def test_a_line_that_installs_ours_is_right(line: str) -> None:
    (found,) = [each for each in map(ours, wanted(line)) if each is not None]
    assert not wrong(found)


def test_hints_name_the_package_as_pyproject_does() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    sources = "".join(p.read_text("utf-8") for p in (ROOT / "src").rglob("*.py"))
    hinted = set(re.findall(r"install_command\([\"'](\w+)[\"']\)", sources))
    hinted |= set(re.findall(r"_need\(\"\w+\", \"(\w+)\"", sources))
    # The tests run each framework in its own environment.
    frameworks = set(re.findall(r"needs\([\"']([\w-]+)[\"']", sources))
    assert set(EXTRAS) | frameworks == KNOWN
    assert hinted | frameworks == KNOWN
    for extra in KNOWN:
        assert install_command(extra) == f'pip install "{DISTRIBUTION}[{extra}]"'


def test_the_command_is_not_installed_twice_under_two_names() -> None:
    assert PROJECT["scripts"] == {STRANGER: "parley.cli:main"}


# -- contents of the built files ---------------------------------------------------------------


def test_the_wheel_holds_all_of_the_package_and_nothing_else(package: Package) -> None:
    held = contents(package.wheel)
    source = ROOT / "src"
    files = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in (source / "parley").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "parley/py.typed" in files
    assert "parley/__main__.py" in files
    info = {name for name in held if ".dist-info/" in name}
    for name in ("examples", "deploy"):
        files |= {
            f"parley/cli/{path.relative_to(ROOT).as_posix()}": path.read_bytes()
            for path in (ROOT / name).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
    assert {name: held[name] for name in held.keys() - info} == files


def test_the_wheel_says_what_it_is(package: Package) -> None:
    held = contents(package.wheel)
    (name,) = [name for name in held if name.endswith(".dist-info/METADATA")]
    info = name.removesuffix("METADATA")
    said = message_from_bytes(held[name])
    assert said["Name"] == DISTRIBUTION
    assert said["Version"] == parley.__version__
    assert said["Summary"] == PROJECT["description"]
    assert said["License-Expression"] == "Apache-2.0"
    assert said["License-File"] == "LICENSE"
    assert held[f"{info}licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert said["Requires-Python"] == ">=3.11"
    assert said["Description-Content-Type"] == "text/markdown"
    assert "Typing :: Typed" in said.get_all("Classifier", ())
    assert set(said.get_all("Provides-Extra", ())) == KNOWN
    urls = dict(url.split(", ") for url in said.get_all("Project-URL", ()))
    assert urls.keys() == {"Source", "Changelog", "Issues", "Documentation"}
    assert urls["Source"] == REPOSITORY
    for url in urls.values():
        assert url.startswith(REPOSITORY)
        place = url.removeprefix(f"{REPOSITORY}/").partition("/main/")[2]
        assert (ROOT / place).exists()
    wanted_by = [Requirement(text) for text in said.get_all("Requires-Dist", ())]
    assert not [r.name for r in wanted_by if r.name.startswith(STRANGER)]


def test_links_of_the_readme_lead_somewhere_on_the_package_index(package: Package) -> None:
    held = contents(package.wheel)
    (name,) = [name for name in held if name.endswith(".dist-info/METADATA")]
    shown = message_from_bytes(held[name]).get_payload(decode=True).decode()
    whole = f"{REPOSITORY}/blob/main/"
    targets = re.findall(r"\]\(([^)]+)\)", shown)
    assert targets == [t for t in targets if t.startswith(("https://", "#"))]
    ours = {target.removeprefix(whole) for target in targets if target.startswith(whole)}
    assert {"docs/guides/write-an-agent.md", "examples", "CHANGELOG.md"} <= ours
    assert [place for place in ours if not (ROOT / place.partition("#")[0]).exists()] == []
    assert shown.replace(whole, "") == (ROOT / "README.md").read_text("utf-8")


def test_the_sdist_builds_the_same_wheel(package: Package, tmp_path: Path) -> None:
    again = build_from_sdist(package.sdist, tmp_path)
    assert again.name == package.wheel.name
    assert again.read_bytes() == package.wheel.read_bytes()
