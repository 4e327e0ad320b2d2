"""``parley serve --tenant``: agents behind one address."""

import os
import re
import signal

import pytest

from tests.cli.commands.test_serve import AGENT
from tests.kit.processes import Running

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "echo.py").write_text(AGENT)
    other = AGENT.replace("Echo agent", "Other agent").replace("ONCE", "TWICE")
    (tmp_path / "other.py").write_text(other)
    return tmp_path


def test_tenants_are_served_at_one_address(files, parley):
    tenants = ["--tenant", "acme=echo.py", "--tenant", "globex=echo:agent", "--tenant=o=other.py"]
    with Running(["serve", *tenants, "--port", "0", "--store", "memory:"], files) as server:
        said = server.until("Ctrl-C stops the server")
        base = re.search(r"address +(http://\S+)/acme", said)[1]
        assert "Echo agent for acme" in said
        assert f"card     {base}/globex/.well-known/agent-card.json" in said
        for tenant, reply in (("acme", "ONCE hi"), ("globex", "ONCE hi"), ("o", "TWICE hi")):
            assert parley("send", "-a", f"{base}/{tenant}", "hi").field("Text") == reply
            assert parley("send", "-a", f"{base}/a2a/{tenant}", "hi").field("Text") == reply
        parley("send", "-a", f"{base}/acme", "hi", "--async")
        counts = [
            len(parley("task", "list", "-a", f"{base}/{name}", "-o", "json").document["tasks"])
            for name in ("acme", "globex", "o")
        ]
        assert counts == [1, 0, 0]
        assert server.end(signal.SIGINT) == 0


def test_an_agent_and_tenants_beside_it(files, parley):
    targets = ["echo.py", "--tenant", "o=other.py", "--port", "0", "--store", "memory:"]
    with Running(["serve", *targets], files) as server:
        base = re.search(r"address +(http://\S+)", server.until("Ctrl-C stops the server"))[1]
        assert parley("send", "-a", base, "hi").field("Text") == "ONCE hi"
        assert parley("send", "-a", f"{base}/o", "hi").field("Text") == "TWICE hi"
        assert server.end(signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), "there is nothing to serve"),
        (("--tenant", "echo.py"), "not the name of a tenant and its agent"),
        (("--tenant", "=echo.py"), "not the name of a tenant and its agent"),
        (("--tenant", "acme="), "not the name of a tenant and its agent"),
        (("--tenant", "a=echo.py", "--tenant", "a=other.py"), "'a' is given twice"),
        (("--tenant", "tasks=echo.py"), "a tenant cannot be named 'tasks'"),
        (("--tenant", "a/b=echo.py"), "a tenant's name is letters"),
        (("/a=echo.py", "--tenant", "a=echo.py"), "/a is the path of an agent and of a tenant"),
        (("--tenant", "a=gone.py"), "there is no file gone.py"),
    ],
)
def test_wrong_tenants_are_said_in_a_line(files, parley, flags, words):
    ran = parley("serve", "--store", "memory:", "--port", "0", *flags)
    assert (ran.status, ran.stdout) == (2, "")
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr
