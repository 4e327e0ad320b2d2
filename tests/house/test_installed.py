"""The built wheel in an empty environment: the command, its hints, and commands that it prints."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import parley
from parley.model.distribution import install_command
from tests.conftest import NOTHING_IS_SKIPPED
from tests.house.documents import ROOT, blocks, commands
from tests.house.package import EXTRAS, Environment, Package, environment
from tests.house.test_package import REPOSITORY
from tests.kit.processes import Running

posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

AGENT = "from parley import Agent\nagent = Agent('Echo')\n\n@agent.skill\n"
AGENT += "async def echo(text: str) -> str:\n    'Says it again.'\n    return text\n"


@pytest.fixture(scope="module")
def bare(package: Package, workshop: Path) -> Environment:
    return _environment(package, workshop, "")


@pytest.fixture(scope="module")
def with_cli(package: Package, workshop: Path) -> Environment:
    return _environment(package, workshop, "cli")


def _environment(package: Package, workshop: Path, extra: str) -> Environment:
    wanted = f"{package.wheel}[{extra}]" if extra else str(package.wheel)
    try:
        return environment(workshop / f"with-{extra or 'nothing'}", [wanted])
    except subprocess.CalledProcessError as error:
        if NOTHING_IS_SKIPPED:
            raise
        pytest.skip(f"the wheel cannot be installed with what it needs: {error.stderr}")


def clean(folder: Path, *path: Path) -> dict[str, str]:
    """Return environment variables with which programs are found first in ``path``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("A2ACLI_", "PARLEY_"))}
    for name in ("UV", "VIRTUAL_ENV", "PYTHONPATH"):
        kept.pop(name, None)
    own = Path(sys.executable).parent
    before = [p for p in os.get_exec_path(kept) if Path(p) != own]
    places = os.pathsep.join([*map(str, path), *before])
    return kept | {"PATH": places, "HOME": str(folder), "NO_COLOR": "1"}


def run(words: Sequence[str], folder: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env=clean(folder, *path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
    )


# -- the library and the command ---------------------------------------------------------------


def test_the_library_is_the_one_that_was_built(bare: Environment, tmp_path: Path) -> None:
    code = (
        "import importlib.metadata, parley\n"
        "print(parley.__file__)\n"
        "print(importlib.metadata.version('parley-a2a'), parley.__version__)\n"
        "print(importlib.metadata.packages_distributions()['parley'])\n"
    )
    done = run([bare.python, "-c", code], tmp_path)
    place, versions, names = done.stdout.splitlines()
    assert Path(place).is_relative_to(bare.home)
    assert versions == f"{parley.__version__} {parley.__version__}"
    assert set(re.findall(r"[\w-]+", names)) == {"parley-a2a"}


def test_the_client_needs_no_extra_and_names_its_version(bare: Environment, tmp_path: Path) -> None:
    code = (
        "import asyncio, parley\n"
        "async def main():\n"
        "    heard = []\n"
        "    async def hear(reader, writer):\n"
        "        heard.append(await reader.readuntil(b'\\r\\n\\r\\n'))\n"
        "        writer.close()\n"
        "    server = await asyncio.start_server(hear, '127.0.0.1', 0)\n"
        "    port = server.sockets[0].getsockname()[1]\n"
        "    try:\n"
        "        async with parley.connect(f'http://127.0.0.1:{port}', retries=0): pass\n"
        "    except parley.ClientError: pass\n"
        "    print(heard[0].decode())\n"
        "asyncio.run(main())\n"
    )
    done = run([bare.python, "-c", code], tmp_path)
    assert f"User-Agent: parley/{parley.__version__}\n" in done.stdout, done.stderr


@pytest.mark.parametrize("way", ["command", "module"])
def test_without_its_extra_the_command_says_what_to_install(
    bare: Environment, tmp_path: Path, way: str
) -> None:
    words = [bare.parley] if way == "command" else [bare.python, "-m", "parley"]
    done = run([*words, "--version"], tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip().endswith(install_command("cli"))
    assert done.stderr.count("\n") == 1


def test_python_m_parley_is_the_command_under_the_same_name(
    with_cli: Environment, tmp_path: Path
) -> None:
    module = [with_cli.python, "-m", "parley"]
    assert run([*module, "--version"], tmp_path).stdout == f"parley {parley.__version__}\n"
    for arguments in (["--help"], ["send", "--help"], ["send", "--no-such"], ["nonsense"]):
        by_name = run([with_cli.parley, *arguments], tmp_path)
        by_module = run([*module, *arguments], tmp_path)
        assert by_module.returncode == by_name.returncode
        assert (by_module.stdout, by_module.stderr) == (by_name.stdout, by_name.stderr)
        assert "Usage: parley" in by_name.stdout or "parley" in by_name.stderr
        assert "__main__" not in by_module.stdout + by_module.stderr


def test_a_new_agent_and_the_examples_come_with_the_wheel(
    with_cli: Environment, tmp_path: Path
) -> None:
    made = run([with_cli.parley, "init", "desk", "--docker"], tmp_path)
    assert made.returncode == 0, made.stderr
    assert (tmp_path / "desk/.gitignore").is_file()
    assert "ARG AGENT=.\n" in (tmp_path / "desk/deploy/Dockerfile").read_text("utf-8")
    copied = run([with_cli.parley, "examples", "travel_planner"], tmp_path)
    assert "travel_planner/booking_office.sql" in copied.stdout
    healthy = run([with_cli.parley, "doctor", "--port", "0", "desk/agent.py"], tmp_path)
    assert healthy.returncode == 0, healthy.stdout
    assert f"Packages: parley {parley.__version__} with cli\n" in healthy.stdout


# -- missing extras and tools ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["serve", "agent.py", "--grpc-port", "0"], "grpc"),
        (["serve", "agent.py", "--reload"], "reload"),
        (["serve", "agent.py", "--store", "postgresql://localhost/x"], "postgres"),
        (["store", "status", "--store", "postgresql://localhost/x"], "postgres"),
        (["send", "-a", "card.json", "Hello"], "grpc"),
        (["send", "-a", "card.json", "--transport", "GRPC", "Hello"], "grpc"),
    ],
)
def test_what_needs_another_extra_says_which(
    with_cli: Environment, tmp_path: Path, arguments: list[str], extra: str
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "card.json").write_text(
        '{"name": "x", "description": "x", "version": "1", "capabilities": {}, "skills": [],'
        '"defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],'
        '"supportedInterfaces": [{"protocolBinding": "GRPC", "protocolVersion": "1.0",'
        '"url": "http://127.0.0.1:9"}]}'
    )
    done = run([with_cli.parley, *arguments], tmp_path)
    assert done.returncode not in (0, None)
    assert install_command(extra) in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import parley.client.bindings.grpc", "grpc"),
        ("from agent import agent; parley.asgi(agent, store='postgresql://h/x')", "postgres"),
        (
            "from parley.host.store_urls import open_bus as o; o('redis://h', 'postgresql:')",
            "redis",
        ),
        ("from agent import agent; parley.serve(agent, grpc_port=0)", "grpc"),
    ],
)
def test_the_library_says_which_extra_it_lacks(
    bare: Environment, tmp_path: Path, code: str, extra: str
) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    done = run([bare.python, "-c", f"import parley\n{code}"], tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.endswith((install_command(extra), f"{install_command(extra)})")), done.stderr


def test_with_every_extra_everything_is_there(with_everything: Environment, tmp_path: Path) -> None:
    lines = [f"import {name}" for names in EXTRAS.values() for name in names.split()]
    done = run([with_everything.python, "-c", "\n".join(lines)], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- commands that the command prints for the user to type -------------------------------------


@pytest.fixture(params=["found", "by path", "below here", "module"])
def started(
    request: pytest.FixtureRequest, with_cli: Environment, tmp_path: Path
) -> tuple[list[str], list[Path], str]:
    """The words that start the command, the entries before PATH, and the printed first words."""
    if request.param == "found":
        return ["parley"], [with_cli.scripts], "parley"
    if request.param == "by path":
        return [with_cli.parley], [], with_cli.parley
    if request.param == "below here":
        (tmp_path / ".venv").symlink_to(with_cli.home)
        words = f".venv/{with_cli.scripts.name}/parley"
        return [words], [], words
    return [with_cli.python, "-m", "parley"], [], f"{with_cli.python} -m parley"


@posix
def test_what_the_demo_prints_works_in_another_terminal(
    started: tuple[list[str], list[Path], str], tmp_path: Path
) -> None:
    words, path, begin = started
    with Running(["demo"], tmp_path, command=words, **clean(tmp_path, *path)) as demo:
        said = demo.until("Serving until Ctrl-C.")
        commands = said.partition("Try it yourself")[2].splitlines()
        commands = [line.strip() for line in commands if " send " in line]
        assert len(commands) == 5
        assert all(command.startswith(f"{begin} send ") for command in commands)
        asked = 0
        for command in commands:
            if asked and begin != "parley":  # the others differ only in the start
                break
            done = run(["sh", "-c", command], tmp_path, *path)
            assert done.returncode == 0, done.stderr
            follow = [line for line in done.stdout.splitlines() if line.startswith("Next: ")]
            asked += len(follow)
            for line in follow:
                assert line.startswith(f"Next: {begin} send ")
                answer = line.removeprefix("Next: ").replace("<reply>", "2027-03-14")
                answered = run(["sh", "-c", answer], tmp_path, *path)
                assert answered.returncode == 0, answered.stderr
        assert asked
        assert demo.end(signal.SIGINT) == 0


@posix
def test_what_a_server_prints_works_in_another_terminal(
    started: tuple[list[str], list[Path], str], tmp_path: Path
) -> None:
    words, path, begin = started
    (tmp_path / "agent.py").write_text(AGENT)
    given = clean(tmp_path, *path)
    serve = ["serve", "agent.py", "--port", "0", "--store", "memory:"]
    with Running(serve, tmp_path, command=words, **given) as server:
        said = server.until("Ctrl-C stops the server")
        (command,) = re.findall(r"^  try      (.*)$", said, flags=re.M)
        assert command.startswith(f"{begin} send ")
        done = run(["sh", "-c", command], tmp_path, *path)
        assert done.returncode == 0, done.stderr
        assert "Text: Hello" in done.stdout
        server.end(signal.SIGINT)


@posix
def test_what_uv_has_on_its_path_for_one_command_is_printed_with_its_place(
    with_cli: Environment, tmp_path: Path
) -> None:
    given = clean(tmp_path, with_cli.scripts) | {"UV": "/opt/uv"}
    done = subprocess.run(
        ["parley", "demo", "--once", "--port", "0"],
        cwd=tmp_path, env=given, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert f"run {with_cli.parley} demo --port" in done.stdout
    assert f"\n  {with_cli.parley} send -a " in done.stdout


@posix
def test_reloading_changes_no_words(with_everything: Environment, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    given = clean(tmp_path, with_everything.scripts)
    serve = ["serve", "agent.py", "--port", "0", "--store", "memory:", "--reload"]
    with Running(serve, tmp_path, command=["parley"], **given) as server:
        said = server.until("Ctrl-C stops the server")
        assert re.search(r"^  try      parley send ", said, flags=re.M)
        server.end(signal.SIGINT)


# -- the page about installing -----------------------------------------------------------------


INSTALL = "docs/start/install.md"


def installing() -> list[list[str]]:
    """Return the commands under "Install" of the page about installing, block by block."""
    text = (ROOT / INSTALL).read_text("utf-8")
    section = text.partition("\n## Install\n")[2].partition("\n## ")[0]
    found = [block for block in blocks(INSTALL, section) if block.language == "console"]
    return [[re.split(r"\s+#", c.line)[0] for c in commands(block)] for block in found]


def put_what_parley_needs(from_there: Environment, into: Environment) -> None:
    """Install the dependencies of the package first: from an index, pip takes 10 s to find them.

    Pip has read the index already where the package itself comes from one.
    """
    if (uv := shutil.which("uv")) is None:
        return
    freeze = [uv, "pip", "freeze", "--quiet", "--python", from_there.python]
    found = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout.split("\n")
    into.install("--no-deps", *[line for line in found if "==" in line])


BESIDE = " send -a "
WAYS = [lines for lines in installing() if BESIDE not in lines[0]]


@posix
@pytest.mark.slow
@pytest.mark.parametrize("lines", WAYS, ids=lambda lines: lines[0])
def test_the_ways_to_install_work_as_the_page_has_them(
    lines: list[str], package: Package, with_cli: Environment, tmp_path: Path
) -> None:
    folder = tmp_path
    words = lines[0].split()
    if words[0] == "git":
        assert lines[0] == f"git clone {REPOSITORY}"
        assert lines[1:2] == [f"cd {REPOSITORY.rpartition('/')[2]}"]
        assert all(line.split()[0] == "make" for line in lines[2:])
        return  # .ci/run checks the targets of make
    if any(line.startswith("uv") for line in lines):
        if shutil.which("uv") is None:
            pytest.skip("there is no uv here")
        subprocess.run(["uv", "init", "--bare", "--quiet"], cwd=folder, check=True)
    is_editable = any('-e "' in line for line in lines)
    if is_editable:
        with tarfile.open(package.sdist) as archive:
            archive.extractall(tmp_path, filter="data")
        (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    given = clean(folder)
    for tool in ("PIP", "UV"):
        given[f"{tool}_FIND_LINKS"] = str(package.wheel.parent)
    for name in ("UV_CACHE_DIR", "PIP_CACHE_DIR", "XDG_CACHE_HOME"):
        if name in os.environ:
            given[name] = os.environ[name]
    # In pip, PIP_NO_COMPILE=0 turns compiling off.
    given |= {"PIP_NO_COMPILE": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    given["HOME"] = os.environ["HOME"]  # has the caches and the settings of the index
    shown = 0
    for line in lines:
        is_demo = line.endswith("parley demo")
        line = line.replace("python -m venv", f"{sys.executable} -m venv")
        line += " --once --port 0" if is_demo else ""
        done = subprocess.run(
            line, shell=True, cwd=folder, env=given, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        if is_editable and " -m venv " in line:
            put_what_parley_needs(with_cli, Environment(folder / ".venv"))
        if is_demo:
            shown += 1
            assert f"Parley {parley.__version__}: 5 agents on" in done.stdout
    assert shown


@posix
def test_the_command_next_to_the_demo_works(with_cli: Environment, tmp_path: Path) -> None:
    (line,) = [line for lines in installing() for line in lines if BESIDE in line]
    (tmp_path / ".venv").symlink_to(with_cli.home)
    given = clean(tmp_path)
    with Running(["demo", "--port", "0"], tmp_path, command=[".venv/bin/parley"], **given) as demo:
        said = demo.until("Serving until Ctrl-C.")
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found
        done = run(["sh", "-c", line.replace("http://127.0.0.1:9999", found[0])], tmp_path)
        assert done.returncode == 0, done.stderr
        assert "In Tokyo it is" in done.stdout
        assert demo.end(signal.SIGINT) == 0
