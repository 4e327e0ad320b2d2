"""``parley serve``: agents from files, and the errors if a file cannot be served."""

import os
import re
import signal
import socket

import pytest

from tests.kit.processes import Running

posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

AGENT = '''
from parley import Agent, Turn

agent = Agent("Echo agent", description="Says it again", version="1.0.0")


@agent.skill(examples=["Say $this"])
async def echo(turn: Turn) -> str:
    """Says it again."""
    return "ONCE " + turn.text
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "echo.py"
    path.write_text(AGENT)
    return path


def address_in(said):
    return re.search(r"address +(http://\S+)", said)[1]


@pytest.mark.slow
@posix
def test_a_file_is_served_with_a_banner_that_can_be_followed(file, parley, tmp_path):
    """A2ACLI_SEND_001, against a real agent"""
    with Running(["serve", "echo.py", "--port", "0"], tmp_path) as server:
        said = server.until("Ctrl-C stops the server")
        url = address_in(said)
        assert "Echo agent" in said
        assert said.startswith(
            f"Echo agent\n  address  {url}\n  page     {url}/\n  card     {url}/."
        )
        assert f"parley send -a {url} 'Say $this'" in said
        assert "kept between runs (sqlite:///parley.db)" in said
        ran = parley("send", "-a", url, "hello")
        assert ran.status == 0
        assert ran.field("Text") == "ONCE hello"
        ran = parley("send", "-a", url, "hello", "--async", "-o", "json")
        task_id = ran.document["task"]["id"]
        assert parley("task", "get", task_id, "-a", url, "--wait").status == 0
        listed = parley("task", "list", "-a", url, "-o", "json").document
        assert [task["id"] for task in listed["tasks"]] == [task_id]
        assert server.end(signal.SIGINT) == 0
        assert "Traceback" not in server.stderr
    assert (tmp_path / "parley.db").is_file()


@pytest.mark.parametrize(
    ("code", "target", "status", "words"),
    [
        (None, "gone.py", 2, "there is no file gone.py"),
        (None, "gone_module:agent", 2, "there is no module 'gone_module'"),
        (None, "a b c", 2, "neither a Python file nor a module"),
        ("x = 1", "it.py", 2, "there is no agent in it.py"),
        ("x = 1", "it.py:x", 2, "'x' in it.py is not an Agent, nor a mapping of paths"),
        (AGENT, "it.py:other", 2, "there is no 'other' in it.py"),
        (AGENT + "\nmore = Agent('More')", "it.py", 2, "say which: it.py:agent or it.py:more"),
        (AGENT + "\nmore = {'/': Agent('More')}", "it.py", 2, "it.py:agent or it.py:more"),
        (AGENT + "\nboth = {'': agent, '/': Agent('More')}", "it.py", 2, "two agents would be"),
        (AGENT + "\nlost = {'more': agent}", "it.py:lost", 2, "a mapping of paths such as /echo"),
        (
            "from parley import Agent\na = Agent('A')\na.uses = (a,)",
            "it.py",
            2,
            "agents must not use each other in a circle",
        ),
        ("def broken(:\n", "it.py", 1, "it.py:1: SyntaxError"),
        ("x = 1\nraise OSError('no good')", "it.py", 1, "it.py:2: OSError: no good"),
        ("import not_there", "it.py", 1, "is it installed in this environment?"),
        ("import sys\nsys.exit(3)", "it.py", 1, "it.py:2: SystemExit: 3"),
        ("from parley import Agent\na = Agent('Idle')", "it.py", 2, "skill"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(parley, tmp_path, code, target, status, words):
    if code is not None:
        (tmp_path / "it.py").write_text(code)
    ran = parley("serve", target, "--port", "0", "--store", "memory:")
    assert ran.status == status
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("flags", "status", "words"),
    [
        (("--store", "mysql://ada:secret@x"), 2, "names no store"),
        (("--store", "postgresql://ada:secret@127.0.0.1:1/x"), 1, "cannot be reached"),
        (("--store", "postgresql://x", "--bus", "amqp://ada:secret@x"), 2, "names no bus"),
        (("--bus", "redis://x"), 2, "memory: is for one process alone"),
        (("--bus", "none"), 2, "memory: is for one process alone"),
        (("--lease", "5s"), 2, "lease=5 needs a store that many replicas use"),
        (("--store", "postgresql://x", "--lease", "soon"), 2, "--lease: 'soon' is not a duration"),
        (("--store", "postgresql://x", "--lease", "0.1s"), 2, "0.5 to 3600 seconds"),
        (("--role", "api"), 2, "role='api' needs a store that other processes use too"),
        (("--role", "worker"), 2, "role='worker' needs a store"),
        (("--role", "boss"), 2, "'boss' is not one of both, api, worker"),
        (
            ("--workers", "2"),
            2,
            "workers=2 needs a store that other processes use too: --store postg",
        ),
        (
            ("--store", "postgresql://x", "--workers", "2", "--port", "9", "--grpc-port", "9"),
            1,
            "HTTP and gRPC need a port each",
        ),
        (("--workers", "0"), 2, "workers=0: a server has one process at least"),
        (("--no-migrate",), 2, "only a postgresql:// store"),
        (("--files", "gs://bucket"), 2, "a directory, s3://bucket/prefix, or none"),
        (("--files", "echo.py"), 1, "echo.py is not a directory"),
        (("--files", "s3://UPPER_case"), 2, "a directory, s3://bucket/prefix, or none"),
        (("--log-level", "loud"), 2, "not one of debug, info"),
        (("--log-format", "xml"), 2, "not one of text, json"),
        (("--debug", "--log-level", "error"), 2, "leave out --log-level error"),
        (("--host", "no.such.host.invalid"), 1, "no.such.host.invalid"),
        (("--port", "99999"), 1, "99999"),
        (("--url", "nonsense"), 2, "nonsense"),
        (("--allowed-host", "https://x"), 2, "allowed_hosts takes hosts such as example.com"),
        (("echo.py",), 2, "two agents would be served under /echo-agent"),
    ],
)
def test_wrong_options_are_said_in_a_line(file, parley, flags, status, words):
    ran = parley("serve", "echo.py", "--store", "memory:", "--port", "0", *flags)
    assert (ran.status, ran.stdout) == (status, "")
    assert words in ran.stderr
    assert "secret" not in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_port_in_use_is_said_in_a_line(file, parley):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = parley("serve", "echo.py", "--store", "memory:", "--port", port)
    assert ran.status == 1
    assert f"port {port}" in ran.stderr
    assert "in use" in ran.stderr
    assert "Traceback" not in ran.stderr


LIFESPAN = '''
from contextlib import asynccontextmanager

from parley import Agent, Turn


@asynccontextmanager
async def life(agent):
    with open("life.txt", "a") as told:
        print("in ONCE", file=told)
    yield "ONCE"
    with open("life.txt", "a") as told:
        print("out ONCE", file=told)


agent = Agent("Keeper", lifespan=life)


@agent.skill
async def state(turn: Turn) -> str:
    """Says what is kept."""
    return turn.state
'''


@pytest.mark.slow
def test_a_lifespan_that_fails_is_said_in_a_line(file, parley):
    file.write_text(LIFESPAN.replace("    yield", '    raise OSError("no database")\n    yield'))
    ran = parley("serve", "echo.py", "--port", "0")
    assert ran.status == 1
    assert "the agent 'Keeper' cannot start: its lifespan function" in ran.stderr
    assert "(echo.py, line " in ran.stderr
    assert ") failed: OSError: no database" in ran.stderr
    assert "Traceback" not in ran.stderr
    ran = parley("serve", "echo.py", "--port", "0", "--debug")
    assert "raise OSError" in ran.stderr
