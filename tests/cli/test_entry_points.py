"""Commands that other packages add, by an entry point."""

from __future__ import annotations

from pathlib import Path

from tests.kit.processes import Running

MODULE = """
import typer

def register(app):
    group = typer.Typer(rich_markup_mode=None)
    app.add_typer(group, name="fleet", help="Look at all of our agents.")

    @group.command("count")
    def count(names: list[str]):
        print(f"{len(names)} agents")

    @group.command("list")
    def list_all():
        pass

def more(group):
    @group.command("count")
    def count():
        print("no keys")
"""


ENTRIES = """
[parley.commands]
fleet = fleet_tools:register
send = fleet_tools:register
keys count = fleet_tools:more
broken = fleet_tools:missing
"""


def package(folder: Path) -> None:
    """Write an installed package that adds ``fleet``, and wants to replace ``send``."""
    (folder / "fleet_tools.py").write_text(MODULE, "utf-8")
    info = folder / "fleet_tools-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fleet-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES, "utf-8")


def said(folder: Path, *arguments: str) -> tuple[int, str]:
    with Running(arguments, folder, PYTHONPATH=str(folder)) as running:
        status = running.end()
    return status, running.output["stdout"] + running.output["stderr"]


def test_a_package_adds_a_command(tmp_path: Path) -> None:
    package(tmp_path)
    assert said(tmp_path, "fleet", "count", "a", "b") == (0, "2 agents\n")
    _, listed = said(tmp_path, "--help")
    table = listed.partition("Start here:")[2].partition("warning:")[0]
    commands = [line.split()[0] for line in table.splitlines() if line.startswith("  ")]
    assert commands[-1] == "fleet"
    assert "'broken' (fleet_tools:missing) cannot be loaded: AttributeError" in listed
    assert {"registry", "mcp", "conformance", "agents", "catalog"} <= set(commands)


def test_a_package_replaces_no_command_of_the_core(tmp_path: Path) -> None:
    package(tmp_path)
    status, text = said(tmp_path, "send", "--help")
    assert status == 0
    assert "Send a message" in text


def test_a_package_adds_a_command_to_a_group_of_the_core(tmp_path: Path) -> None:
    package(tmp_path)
    assert said(tmp_path, "keys", "count") == (0, "no keys\n")
    assert "share" in said(tmp_path, "keys", "--help")[1]


def test_an_unknown_command_is_refused_with_the_known_ones_in_mind(tmp_path: Path) -> None:
    status, text = said(tmp_path, "registri")
    assert status == 2
    assert "registry" in text
