"""Every command and every snippet of the documentation works as the page states.

Each page runs from top to bottom in its own directory, with the wheel that users install, against
real agents (``documents.py`` explains the fences).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from tests.house.documents import ROOT, Block, blocks, commands, missing, pages, tutorial
from tests.house.package import Environment
from tests.kit import forking
from tests.kit.forking import CAN_FORK, ForkedServer, fork
from tests.kit.processes import free_port
from tests.kit.waiting import block_thread

PORT = re.compile(r"(?<=localhost:)\d{4}|(?<=127\.0\.0\.1:)\d{4}|(?<=-port )\d+|(?<=port=)\d+")
ID = r"[0-9a-f]{8}(?:-?[0-9a-f]{4}){3}-?[0-9a-f]{12}"
SERVES = re.compile(
    r"^(parley serve |parley registry serve |parley push listen |python \S+\.py$|uvicorn )"
)


PLAIN = re.compile(r"(parley|python [\w/]+\.py)( |$)[^|<>;&$`*?~(){}#]*$")
"""Commands that need no shell, once quoted text is left out."""

QUOTED = re.compile(r"""\"[^"$`\\]*\"|'[^']*'""")

TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M))


class Page:
    """A page that runs: its directory, and the servers that it started."""

    def __init__(self, directory: Path, python: str, scripts: Path) -> None:
        self.directory = directory
        self.python = python
        self.snippet = ""
        self.ports: dict[str, str] = {}
        self.servers: dict[str, subprocess.Popen[bytes] | ForkedServer] = {}
        self.seen = {"Task": "", "Context": ""}
        self.environment = os.environ | {
            "PATH": str(scripts) + os.pathsep + os.environ["PATH"],
            "HOME": str(directory),
            "NO_COLOR": "1",
        }

    def here(self, text: str) -> str:
        """Return ``text`` with the page's ports replaced by free ports, the same in each call."""
        return PORT.sub(lambda found: self.port(found[0]), text)

    def now(self, line: str) -> str:
        """Return a command with the page's ids replaced by the ids that were printed last."""
        line = re.sub(f"(?<=--context-id ){ID}", lambda _: self.seen["Context"], line)
        return re.sub(f"(?<!--context-id ){ID}", lambda _: self.seen["Task"], line)

    def port(self, written: str) -> str:
        if written not in self.ports:
            self.ports[written] = str(free_port())
            self.environment["A2ACLI_AGENT_CARD"] = f"http://127.0.0.1:{self.port('9999')}"
        return self.ports[written]

    def play(self, block: Block, printed: str | None) -> None:
        """Run a block; ``printed`` is the expected output of a Python block."""
        if block.language == "serve":
            self.serve(f"parley serve {block.text}")
        elif block.file:
            path = self.directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.here(block.text), "utf-8")
            if printed is not None:
                check(printed, self.run(f"python {block.file}"))
                return
            importing = path.parent / f"import_{path.name}"
            importing.write_text(f'import runpy\n\nrunpy.run_path("{block.file}")\n')
            self.run(f"python {importing.relative_to(self.directory).as_posix()}")
            importing.unlink()
        elif block.language == "python":
            check(printed, self.execute(block))
        elif block.language == "console":
            for command in commands(block):
                if SERVES.match(command.line) and "--help" not in command.line:
                    self.serve(command.line)
                    continue
                output = self.run(self.now(self.here(command.line)))
                printed_here = [re.sub(ID, "...", self.here(p)) for p in command.printed]
                line = missing(printed_here, output)
                assert not line, f"$ {command.line}\n{line!r} is not printed, but this:\n{output}"

    def execute(self, block: Block) -> str:
        """Run Python as a file, below the blocks that it continues, and return its output."""
        self.snippet = (self.snippet if block.continues else "") + self.here(block.text)
        path = self.directory / f"snippet_{block.line}.py"
        path.write_text(self.snippet, "utf-8")
        return self.run(f"python {path.name}")

    def run(self, line: str) -> str:
        """Run a command and return its output."""
        if target := re.match(r"make (\w+)", line):  # .ci/run checks the targets of make
            assert target[1] in TARGETS, f"there is no target for: {line}"
            return ""
        if PLAIN.match(QUOTED.sub("", line)):
            words = shlex.split(line)
            ended = forking.run(
                words, self.directory, self.environment, python=self.python, is_merged=True
            )
            status, output = ended.status, ended.stdout.decode()
        else:
            done = subprocess.run(
                line,
                shell=True,
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
            )
            status, output = done.returncode, done.stdout
        assert status == 0, f"$ {line}\nexit status {status}:\n{output}"
        for label in self.seen:
            if ids := re.findall(rf"^{label}: ({ID})$", output, flags=re.M):
                self.seen[label] = ids[-1]
        return output

    def serve(self, line: str) -> None:
        """Start a server in the background and wait until it answers."""
        if line.startswith("parley serve") and "--port" not in line:
            line += " --port 9999"
        found = PORT.search(line) or re.search(r"9999", "9999")
        assert found
        if old := self.servers.pop(found[0], None):
            stop(old)
        port = self.port(found[0])
        log = self.directory / f"server-{port}.log"
        with log.open("wb") as output:
            server = self.servers[found[0]] = self.started(self.here(line).split(), output)
        deadline = time.monotonic() + 20
        while not answers(port):
            ended = server.poll() if isinstance(server, subprocess.Popen) else server.returncode
            assert ended is None, f"$ {line}\n{log.read_text()}"
            assert time.monotonic() < deadline, f"$ {line}\ndoes not answer:\n{log.read_text()}"
            block_thread(0.05)

    def started(self, words: list[str], output: BinaryIO) -> subprocess.Popen[bytes] | ForkedServer:
        """Start a program in the background: forked, if it is Parley's or a Python file."""
        program, *arguments = words
        found = shutil.which(program, path=self.environment["PATH"])
        assert found, f"there is no command {program}"
        if CAN_FORK and program in ("parley", "python"):
            return fork(
                words if program == "parley" else arguments,
                output=output,
                environment=self.environment,
                folder=self.directory,
                python=self.python,
            )
        return subprocess.Popen(
            [found, *arguments],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def close(self) -> None:
        for server in self.servers.values():
            stop(server)


def check(printed: str | None, output: str) -> None:
    line = missing((printed or "").splitlines(), output)
    assert not line, f"{line!r} is not printed, but this:\n{output}"


def answers(port: str) -> bool:
    """Return whether a server responds; a listening server may not have opened its store yet."""
    where = ("127.0.0.1", int(port))
    with contextlib.suppress(OSError), socket.create_connection(where, 1) as asking:
        asking.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        asking.recv(1)  # or the end, if the server expects TLS
        return True
    return False


def stop(server: subprocess.Popen[bytes] | ForkedServer) -> None:
    wait = server.wait if isinstance(server, subprocess.Popen) else server.wait_here
    with contextlib.suppress(ProcessLookupError):
        server.send_signal(signal.SIGTERM)
    try:
        wait(20)
    except (subprocess.TimeoutExpired, TimeoutError):
        server.kill()
        wait(20)


@pytest.fixture
def page(tmp_path: Path, with_everything: Environment) -> Iterator[Page]:
    shutil.copytree(
        ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    page = Page(tmp_path, with_everything.python, with_everything.scripts)
    yield page
    page.close()


@pytest.mark.parametrize("name", sorted({*pages()} - {*tutorial()}))
def test_everything_on_the_page_works(name: str, page: Page) -> None:
    play(page, name)


def test_the_tutorial_works_from_its_first_page_to_its_last(page: Page) -> None:
    assert len(tutorial()) == 8
    for name in tutorial():
        play(page, name)


def play(page: Page, name: str) -> None:
    """Run all blocks of a page, from top to bottom."""
    all_blocks = list(blocks(name))
    for block, following in zip_longest(all_blocks, all_blocks[1:]):
        if block.not_run:
            continue
        printed = following.text if following and following.language == "text" else None
        try:
            page.play(block, printed)
        except Exception as error:
            error.add_note(f"at {block.page}, line {block.line}")
            raise


def test_a_page_with_a_wrong_output_is_noticed(page: Page) -> None:
    wrong = Block("README.md", 1, "python", "print('one')\nprint('two')\n")
    page.play(wrong, "one\ntwo\n")
    page.play(wrong, "...\ntw...\n")
    with pytest.raises(AssertionError, match="'three' is not printed"):
        page.play(wrong, "one\nthree\n")


def test_a_snippet_that_does_not_run_as_a_file_is_noticed(page: Page) -> None:
    with pytest.raises(AssertionError, match="'await' outside function"):
        page.play(Block("README.md", 1, "python", "import asyncio\nawait asyncio.sleep(0)\n"), None)
    page.play(Block("README.md", 1, "python", "one = 1\n"), None)
    alone = Block("README.md", 1, "python", "print(one)\n")
    with pytest.raises(AssertionError, match="'one' is not defined"):
        page.play(alone, None)
    page.play(Block("README.md", 1, "python", "one = 1\n"), None)
    page.play(msgspec.structs.replace(alone, continues=True), "1\n")


def test_a_command_that_fails_is_noticed(page: Page) -> None:
    with pytest.raises(AssertionError, match="exit status 3"):
        page.play(Block("README.md", 1, "console", "$ python -c 'exit(3)'\n"), None)
