"""``parley init`` begins a project; ``parley examples`` lists and copies the examples."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from parley.cli.command import Commands
from parley.cli.output.failures import UsageFailure
from parley.cli.output.streams import Output, print_line
from parley.cli.output.text import shell_words
from parley.cli.settings.options import Argument, CommandOption
from parley.cli.settings.table import CommandSettings
from parley.cli.shipped import shipped

DEPLOYED = {
    "docker": (
        "Dockerfile",
        "Dockerfile.dockerignore",
        "compose.yaml",
        "env.example",
        "haproxy",
        "observability",
    ),
    "kubernetes": ("Dockerfile", "Dockerfile.dockerignore", "helm/parley-agent"),
    "systemd": ("systemd",),
}
"""The files below ``deploy`` for each way to deploy."""

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_OF_THE_CLONE = re.compile(r"^COPY (?!--from|\$).*\n", re.M)

COMMANDS = Commands()


class Init(msgspec.Struct, frozen=True):
    """The options of ``parley init``."""

    folder: Annotated[
        str, Argument("The folder of the agent, whose name becomes its own.", "[FOLDER]")
    ] = "."
    docker: Annotated[bool, CommandOption("Add a Dockerfile, and replicas with compose.")] = False
    kubernetes: Annotated[bool, CommandOption("Add a Dockerfile and a Helm chart.")] = False
    systemd: Annotated[bool, CommandOption("Add a unit.")] = False


@COMMANDS.add("init", "debug")
def init(settings: CommandSettings, output: Output, options: Init) -> None:
    """Begin an agent: its file, a test, and files for deployment if asked for.

    No file is replaced. The agent runs, and its test passes: change both.
    """
    folder = Path(options.folder)
    slug = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not _NAME.fullmatch(slug):
        raise UsageFailure(
            f"{folder.resolve().name!r} gives no name for an agent",
            hint="name a folder in letters and digits: parley init travel-desk",
        )

    def own(text: str) -> str:
        title = slug.replace("-", " ")
        text = text.replace("my-agent", slug).replace("My agent", title.capitalize())
        return text.replace("my agent", title)

    def deployed(text: str) -> str:
        text = _OF_THE_CLONE.sub("", text).replace('".[', '"parley-a2a[')
        return text.replace("examples/starter", ".").replace("parley-agent", slug)

    files = _texts(shipped("examples") / "starter", folder, own)
    for name, wanted in DEPLOYED.items():
        for each in wanted if getattr(options, name) else ():
            place = folder / "deploy" / each.replace("parley-agent", slug)
            files |= _texts(shipped("deploy") / each, place, deployed)
    named = {
        path.with_name(path.name.replace("parley-agent", slug).replace("gitignore", ".gitignore"))
        if path.name != "Dockerfile.dockerignore" else path: text for path, text in files.items()
    }  # fmt: skip
    _write(named)
    for path in named:
        print_line(str(path))
    if options.folder != ".":
        print_line(f"\n  {shell_words(['cd', options.folder])}")
    print_line("  parley dev agent.py\n  parley chat            in another terminal\n  pytest")


class Examples(msgspec.Struct, frozen=True):
    """The options of ``parley examples``."""

    name: Annotated[str, Argument("The example to copy.", "[NAME]")] = ""
    folder: Annotated[str, Argument("The folder to copy it to.", "[FOLDER]")] = "."


@COMMANDS.add("examples", "debug")
def examples(settings: CommandSettings, output: Output, options: Examples) -> None:
    """List the examples, or copy one. No file is replaced."""
    place = shipped("examples")
    found = {path.stem: path for path in sorted(place.iterdir()) if _about(path)}
    if not options.name:
        for name, path in found.items():
            print_line(f"{name:<24} {_about(path)}")
        return
    name = options.name.removesuffix(".py")
    if name not in found:
        raise UsageFailure(f"there is no example {name!r}", hint="parley examples lists them")
    path, folder = found[name], Path(options.folder)
    copied = _texts(path, folder / path.name, lambda text: text)
    _write(copied)
    for each in copied:
        print_line(str(each))


def _about(path: Path) -> str:
    """Return the first line of an example's description; empty for other files."""
    mains = ("__main__.py", "agent.py", "shop.py", "trip.py")
    file = next((path / each for each in mains if (path / each).is_file()), path)
    if file.suffix != ".py" or path.name.startswith(("test_", "_")) or not file.is_file():
        return ""
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return text.partition("\n")[0]


def _texts(source: Path, target: Path, adapted: Callable[[str], str]) -> dict[Path, str]:
    """Return the adapted texts of a file, or of the files in a folder, by their new paths."""
    if source.is_file():
        return {target: adapted(source.read_text("utf-8"))}
    return {
        target / path.relative_to(source): adapted(path.read_text("utf-8"))
        for path in sorted(source.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def _write(files: dict[Path, str]) -> None:
    """Write new files. Raises ``UsageFailure`` before the first if one exists."""
    if there := [str(path) for path in files if path.exists()]:
        raise UsageFailure(
            f"nothing was written, because there is {', '.join(there)}", hint="name another folder"
        )
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(text)
    except OSError as error:
        raise UsageFailure(f"{error.filename} cannot be written: {error.strerror}") from None
